"""The fit by itself, against a training loop written in plain JAX."""

import brainstate
import braintools
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import BATCH, TIME, UNITS, WINDOW, gap, make_learner, run, sequence, squares, start_params, zero_hidden

import dni_synth
import etrace_engines as ee

EPOCHS = 3
RATE = 0.05


def sgd(rate):
    return (lambda p: ()), lambda g, s: (jax.tree.map(lambda g: -rate * g, g), s)


def adam(rate, b1=0.9, b2=0.999, eps=1e-8):
    """Kingma and Ba (2015), algorithm 1."""

    def init(p):
        zero = jax.tree.map(jnp.zeros_like, p)
        return zero, zero, jnp.zeros(())

    def update(g, state):
        m, v, t = state
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, v, g)
        t = t + 1
        change = jax.tree.map(lambda m, v: -rate * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + eps), m, v)
        return change, (m, v, t)

    return init, update


def reference_fit(optimizer, xs, window=WINDOW, epochs=EPOCHS, reset=True):
    """Return the errors and the fitted map, computed without the package."""
    params = start_params()
    init, update = optimizer
    fitted = {"weight": jnp.zeros((UNITS, UNITS)), "bias": jnp.zeros(UNITS)}
    state = init(fitted)
    windows = xs.reshape(-1, window, *xs.shape[1:])
    predict = lambda m, h: h @ m["weight"] + m["bias"]

    def regress(fitted, state, h, target):
        error, g = jax.value_and_grad(lambda m: jnp.mean((predict(m, h) - target) ** 2))(fitted)
        change, state = update(g, state)
        return jax.tree.map(jnp.add, fitted, change), state, error

    def fit_window(carry, xw):
        h, fitted, state = carry

        def value(h):
            after, ys = run(params, h, xw)
            return jnp.sum(squares(ys)) + jnp.sum(jax.lax.stop_gradient(predict(fitted, after)) * after), after

        target, after = jax.grad(value, has_aux=True)(h)
        fitted, state, error = regress(fitted, state, h, target)
        return (after, fitted, state), error

    def fit_epoch(carry, _):
        h, fitted, state = carry
        h = zero_hidden(xs) if reset else h
        (h, fitted, state), errors = jax.lax.scan(fit_window, (h, fitted, state), windows)
        fitted, state, error = regress(fitted, state, h, jnp.zeros_like(h))
        return (h, fitted, state), (errors.sum() + error) / (len(windows) + 1)

    start = (zero_hidden(xs), fitted, state)
    (_, fitted, _), errors = jax.jit(lambda s: jax.lax.scan(fit_epoch, s, None, length=epochs))(start)
    return errors, fitted


def package_fit(optimizer=None, traced=(), learner=None, **options):
    learner = make_learner(traced=traced) if learner is None else learner
    if learner.synthesizer is None:
        learner.attach(dni_synth.Affine())
    if optimizer is not None:
        optimizer.register_trainable_weights(learner.synthesizer.states_dict())
    options = {"chunk_size": WINDOW, "epochs": EPOCHS, "lr": RATE} | options
    errors = dni_synth.train_synthetic_gradient(learner, sequence(), optimizer=optimizer, **options)
    return learner, errors


def weights(learner):
    return {name.split("/")[1]: state.value for name, state in learner.synthesizer.states_dict().items()}


ADAM = lambda: braintools.optim.Adam(RATE), adam(RATE)


@pytest.mark.parametrize(
    ("optimizer", "reference", "traced"),
    [
        pytest.param(None, sgd(RATE), (), id="sgd-plain"),
        pytest.param(*ADAM, None, id="adam-traced"),
        pytest.param(None, sgd(RATE), None, id="sgd-traced", marks=pytest.mark.slow),
        pytest.param(*ADAM, (), id="adam-plain", marks=pytest.mark.slow),
    ],
)
def test_history_and_weights_equal_an_independent_loop_and_the_model_stays(optimizer, reference, traced):
    learner, errors = package_fit(optimizer and optimizer(), traced)

    expected, fitted = reference_fit(reference, sequence())

    np.testing.assert_allclose(errors, expected, rtol=1e-5, atol=1e-6)
    for name, value in weights(learner).items():
        np.testing.assert_allclose(value, fitted[name], atol=1e-6)
    assert errors[0] > errors[-1]
    for path, state in learner.param_states.items():
        np.testing.assert_array_equal(state.value, start_params()[path[-1]], err_msg="the model moved")


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 4, TIME])
def test_any_window_length_that_divides_the_sequence(window):
    _, errors = package_fit(chunk_size=window, epochs=2)

    expected, _ = reference_fit(sgd(RATE), sequence(), window, epochs=2)

    np.testing.assert_allclose(errors, expected, rtol=1e-5)


@pytest.mark.slow
def test_without_reset_an_epoch_starts_where_the_last_ended():
    _, errors = package_fit(reset=False)

    expected, _ = reference_fit(sgd(RATE), sequence(), reset=False)

    np.testing.assert_allclose(errors, expected, rtol=1e-5)
    assert abs(errors[1] - reference_fit(sgd(RATE), sequence())[0][1]) > 1e-6


@pytest.mark.slow
def test_states_of_the_caller_are_as_before():
    learner = make_learner(traced=None)
    learner(ee.MultiStepData(sequence(2)))
    before = {key: jax.tree.map(np.asarray, state.value) for key, state in learner.carried_states.items()}

    package_fit(learner=learner)

    for key, state in learner.carried_states.items():
        jax.tree.map(np.testing.assert_array_equal, state.value, before[key])


@pytest.mark.slow
def test_the_loss_of_the_caller_is_the_one_that_is_fitted():
    _, errors = package_fit(loss_fn=lambda y: 3 * jnp.sum(y**2), epochs=1, lr=0.0)
    _, once = package_fit(epochs=1, lr=0.0)

    np.testing.assert_allclose(errors, 9 * np.asarray(once), rtol=1e-5)


@pytest.mark.slow
def test_inside_jit_equals_eager():
    learner, errors = package_fit()
    jitted = make_learner()
    jitted.attach(dni_synth.Affine())

    @brainstate.transform.jit
    def fit(xs):
        found = dni_synth.train_synthetic_gradient(jitted, xs, chunk_size=WINDOW, epochs=EPOCHS, lr=RATE)
        return jnp.stack(found)

    np.testing.assert_allclose(fit(sequence()), errors, rtol=1e-5)
    np.testing.assert_allclose(weights(jitted)["weight"], weights(learner)["weight"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("time", "epochs"), [(6, 1), (12, 4)])
def test_one_trace_serves_all_windows_and_epochs(time, epochs):
    calls = []
    learner = make_learner()
    learner.attach(dni_synth.Zero())

    def loss(y):
        if not isinstance(y, jax.ShapeDtypeStruct):
            calls.append(y.shape)
        return jnp.sum(y**2)

    dni_synth.train_synthetic_gradient(learner, sequence()[:time], chunk_size=WINDOW, loss_fn=loss, epochs=epochs)

    # One for the program, and two windows of two outputs each to describe the loss in the signature.
    assert len(calls) == 1 + 4


@pytest.mark.slow
@pytest.mark.parametrize("cell", [brainstate.nn.GRUCell, brainstate.nn.LSTMCell], ids=lambda cell: cell.__name__)
def test_after_reset_a_stock_cell_starts_exactly_where_it_first_did(cell):
    brainstate.random.seed(0)
    learner = ee.compile(cell(2, 4), dni_synth.DNI, jnp.zeros((BATCH, 2)), batch_size=BATCH)
    learner.attach(dni_synth.Affine())

    errors = dni_synth.train_synthetic_gradient(learner, sequence(), chunk_size=WINDOW, epochs=2, lr=0.0)
    on = dni_synth.train_synthetic_gradient(learner, sequence(), chunk_size=WINDOW, epochs=2, lr=0.0, reset=False)

    assert errors[0] == errors[1]
    assert on[0] != on[1]


@pytest.mark.slow
def test_a_step_compiled_before_a_fit_stays_right_after_it():
    learner = make_learner()
    learner.attach(dni_synth.Affine())
    step = brainstate.transform.jit(lambda xs: learner(ee.MultiStepData(xs)))
    first = step(sequence())
    learner.reset_state()

    package_fit(learner=learner)

    np.testing.assert_allclose(step(sequence()), first, rtol=1e-6)
    assert learner.hidden_states[("h",)].value.shape == (BATCH, UNITS)
    assert gap(step(sequence()), first) > 1e-3  # from where the last call ended: it reads and writes the live states


def test_without_a_synthesiser_it_says_how_to_attach_one():
    with pytest.raises(RuntimeError, match="attach"):
        dni_synth.train_synthetic_gradient(make_learner(), sequence())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chunk_size": 0}, "`chunk_size` must be at least 1, got 0"),
        ({"chunk_size": 5}, "chunk_size=5 and 12 steps.*to 10 steps"),
        ({"batch_size": 1}, "got 1, and its states have the batch axes \\(3,\\)"),
    ],
)
def test_bad_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        package_fit(**options)


@pytest.mark.slow
def test_the_batch_size_of_the_learner_is_accepted():
    _, errors = package_fit(batch_size=BATCH, epochs=1)

    assert len(errors) == 1


def test_a_synthesiser_with_context_is_sent_to_the_joint_fit():
    learner = make_learner()
    learner.attach(dni_synth.Affine(), context_dim=1)

    with pytest.raises(ValueError, match="context_fn"):
        dni_synth.train_synthetic_gradient(learner, sequence(), chunk_size=WINDOW)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, None], ids=["batch 1", "batch 3", "unbatched"])
def test_batched_and_unbatched_learners(batch_size):
    batch = () if batch_size is None else (batch_size,)
    xs = sequence(batch=batch)
    learner = make_learner(batch_size=batch_size)
    learner.attach(dni_synth.Affine())

    errors = dni_synth.train_synthetic_gradient(learner, xs, chunk_size=WINDOW, epochs=2, lr=RATE)

    np.testing.assert_allclose(errors, reference_fit(sgd(RATE), xs, epochs=2)[0], rtol=1e-5)
