"""The joint fit: gradients and regression from one pass."""

import brainstate
import braintools
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import (
    BATCH,
    TIME,
    UNITS,
    WINDOW,
    bptt,
    by_name,
    gap,
    last,
    make_learner,
    run,
    sequence,
    squares,
    start_params,
    window_losses,
    zero_hidden,
)

import dni_synth
import etrace_engines as ee

RATE = 0.05
OPTIONS = {"chunk_size": WINDOW, "reduction": "sum"}


@jax.jit
def window_gradient(params, h, xw, fitted, scale):
    """Gradient of one window and the injected product, by parameters and entry state, and the exit state."""

    def value(p, h):
        after, ys = run(p, h, xw)
        c = jax.lax.stop_gradient(after @ fitted[0] + fitted[1]) * scale
        return jnp.sum(squares(ys)) + jnp.sum(c * after), after

    return jax.grad(value, argnums=(0, 1), has_aux=True)(params, h)


@jax.jit
def regression_step(fitted, h, target):
    error, g = jax.value_and_grad(lambda f: jnp.mean((h @ f[0] + f[1] - target) ** 2))(fitted)
    return error, jax.tree.map(lambda a, b: a - RATE * b, fitted, g)


def reference_joint(xs, calls=2, scale=lambda call: 1.0):
    """Return gradients of the last call, errors of each call, and the map, without the package."""
    params = start_params()
    fitted = jnp.zeros((UNITS, UNITS)), jnp.zeros(UNITS)
    windows = xs.reshape(-1, WINDOW, *xs.shape[1:])
    count = len(windows)
    live = jnp.ones((count, BATCH)).at[-1].set(0)
    errors = []
    for call in range(calls):
        h, total, own = zero_hidden(xs), jax.tree.map(jnp.zeros_like, params), []
        for k in range(count):
            (g, target), after = window_gradient(params, h, windows[k], fitted, live[k][:, None] * scale(call))
            total = jax.tree.map(jnp.add, total, g)
            if k:
                error, fitted = regression_step(fitted, h, target)
                own.append(error)
            h = after
        errors.append(float(np.mean(own)))
    return total, errors, fitted


def fit(learner, xs, calls=2, **options):
    errors = []
    for _ in range(calls):
        learner.reset_state()
        found = learner.etrace_grad(xs, step_fn=window_losses(learner), synth="fit", **OPTIONS, **options)
        errors.append(float(learner.fit_error))
    return by_name(found), errors


def weights(learner):
    states = learner.synthesizer.states_dict()
    return states["h/weight"].value, states["h/bias"].value


def check(found, errors, learner, expected):
    total, expected_errors, fitted = expected
    for name, value in total.items():
        assert gap(found[name], value) < 1e-5, name
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-5)
    for mine, theirs in zip(weights(learner), fitted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def attached(**options):
    learner = make_learner()
    learner.attach(dni_synth.Affine(), lr=RATE, **options)
    return learner


def test_gradients_errors_and_weights_equal_an_independent_loop():
    learner = attached()

    found, errors = fit(learner, sequence(), calls=1)

    check(found, errors, learner, reference_joint(sequence(), calls=1))


@pytest.mark.slow
def test_inside_jit_equals_eager():
    learner = attached()

    @brainstate.transform.jit
    def both(xs):
        return fit_traced(learner, xs)

    found, errors = both(sequence())

    check(by_name(found), errors, learner, reference_joint(sequence()))


def fit_traced(learner, xs):
    errors = []
    for _ in range(2):
        learner.reset_state()
        found = learner.etrace_grad(xs, step_fn=window_losses(learner), synth="fit", **OPTIONS)
        errors.append(learner.fit_error)
    return found, jnp.stack(errors)


@pytest.mark.slow
def test_done_masks_end_episodes_in_use_and_in_the_fit():
    done = jnp.zeros((TIME // WINDOW, BATCH), bool).at[1, 0].set(True).at[2].set(True).at[-1].set(True)
    learner = attached()

    found, errors = fit(learner, sequence(), done=done)
    ignored = fit(attached(), sequence())[0]

    expected = reference_joint_with_dead_boundary(done)
    check(found, errors, learner, expected)
    assert gap(ignored["win"], found["win"]) > 1e-4


def reference_joint_with_dead_boundary(done):
    """A boundary at which every element ends takes no step and counts in no mean."""
    live = 1.0 - done
    params, xs = start_params(), sequence()
    fitted = jnp.zeros((UNITS, UNITS)), jnp.zeros(UNITS)
    windows, errors = xs.reshape(-1, WINDOW, *xs.shape[1:]), []
    for _ in range(2):
        h, total, own = zero_hidden(xs), jax.tree.map(jnp.zeros_like, params), []
        for k, xw in enumerate(windows):
            (g, target), after = window_gradient(params, h, xw, fitted, live[k][:, None])
            total = jax.tree.map(jnp.add, total, g)
            if k and live[k - 1].sum():
                rows = np.flatnonzero(live[k - 1])
                error, fitted = regression_step(fitted, h[rows], target[rows])
                own.append(error)
            h = after
        errors.append(float(np.mean(own)))
    return total, errors, fitted


@pytest.mark.slow
def test_the_schedule_scales_the_injection_while_fitting():
    schedule = dni_synth.Schedule(warmup=1, ramp=2)
    learner = attached(schedule=schedule)

    found, errors = fit(learner, sequence(), calls=2)

    check(found, errors, learner, reference_joint(sequence(), scale=lambda call: (0.0, 0.5)[call]))


@pytest.mark.slow
def test_a_frozen_synthesiser_stays():
    learner = attached(schedule=dni_synth.Schedule(freeze=1))
    fit(learner, sequence(), calls=1)
    once = [np.asarray(w) for w in weights(learner)]

    fit(learner, sequence(), calls=1)

    for before, after in zip(once, weights(learner), strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.abs(once[0]).max() > 0


@pytest.mark.parametrize("values", [{"warmup": -1}, {"ramp": -2}, {"freeze": -1}])
def test_a_negative_schedule_is_refused(values):
    with pytest.raises(ValueError, match="must be at least 0"):
        dni_synth.Schedule(**values)


@pytest.mark.slow
def test_a_stream_fits_across_calls():
    xs = sequence()
    whole, parts = attached(), attached()
    whole.etrace_grad(xs, step_fn=window_losses(whole), synth="fit", done=[False] * 4, **OPTIONS)

    for start in range(0, TIME, WINDOW):
        parts.etrace_grad(
            xs[start : start + WINDOW], step_fn=window_losses(parts), synth="fit", done=[False], **OPTIONS
        )

    np.testing.assert_allclose(weights(parts)[0], weights(whole)[0], atol=1e-6)
    assert np.abs(weights(whole)[0]).max() > 1e-4


@pytest.mark.slow
def test_an_optimizer_given_to_attach_fits():
    optimizer = braintools.optim.Adam(1e-2)
    learner = make_learner()
    learner.attach(dni_synth.Affine(), optimizer=optimizer)

    fit(learner, sequence(), calls=1)

    assert np.abs(weights(learner)[0]).max() == pytest.approx(0.03, rel=0.2)  # three Adam steps of 0.01


def test_an_optimizer_of_the_model_does_not_move_the_synthesiser():
    learner = attached()
    params = learner.states(brainstate.ParamState)

    assert {id(state) for state in params.values()} == {id(state) for state in learner.param_states.values()}


def features(h, label):
    """(h, c, h c): one affine map of h for each value of a label."""
    return jnp.concatenate([h, label, h * label], axis=-1)


def labelled_losses(ys, labels, alive):
    return jnp.sum(alive * (ys - labels) ** 2, axis=tuple(range(1, ys.ndim)))


@jax.jit
def labelled_window(h, slices, fitted, live):
    def value(p, h):
        xs, labels, alive = slices
        after, ys = run(p, h, xs)
        c = live[..., None] * (features(after, labels[-1]) @ fitted[0] + fitted[1])
        return jnp.sum(labelled_losses(ys, labels, alive)) + jnp.sum(jax.lax.stop_gradient(c) * after), after

    return jax.grad(value, argnums=(0, 1), has_aux=True)(start_params(), h)


@jax.jit
def labelled_regression(fitted, h, label, target, live):
    def loss(f):
        missing = jnp.where(live[..., None] > 0, features(h, label) @ f[0] + f[1] - target, 0)
        return jnp.sum(missing**2) / (jnp.sum(live) * UNITS)

    error, g = jax.value_and_grad(loss)(fitted)
    return error, jax.tree.map(lambda a, b: a - RATE * b, fitted, g)


def reference_labelled(sequences, done):
    """One joint fit on labelled sequences that end at different windows, without the package."""
    windows = [[s[t : t + WINDOW] for s in sequences] for t in range(0, TIME, WINDOW)]
    fitted = jnp.zeros((2 * UNITS + 1, UNITS)), jnp.zeros(UNITS)
    h, total, errors = zero_hidden(sequences[0]), jax.tree.map(jnp.zeros_like, start_params()), []
    for k, slices in enumerate(windows):
        (g, target), after = labelled_window(h, slices, fitted, 1.0 - done[k])
        total = jax.tree.map(jnp.add, total, g)
        if k and not done[k - 1].all():
            error, fitted = labelled_regression(fitted, h, windows[k - 1][1][-1], target, 1.0 - done[k - 1])
            errors.append(error)
        h = after
    return total, [float(np.mean(errors))], fitted


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, None], ids=["batch 1", "batch 3", "unbatched"])
def test_labels_and_ragged_ends_at_every_batch_size(batch_size):
    batch = () if batch_size is None else (batch_size,)
    last_window = 2 - jnp.arange(3)[: batch_size or 1].reshape(batch)  # the first sequence is the longest
    done = jnp.arange(TIME // WINDOW).reshape(-1, *(1 for _ in batch)) >= last_window
    alive = jnp.repeat(jnp.arange(TIME // WINDOW), WINDOW).reshape(-1, *(1 for _ in batch)) <= last_window
    labels = jnp.where(last_window == 1, -1.0, 1.0)[..., None] * jnp.ones((TIME, *batch, 1))
    sequences = sequence(batch=batch), labels, alive[..., None] * 1.0
    learner = make_learner(batch_size=batch_size)
    learner.attach(dni_synth.Affine(), context_dim=1, lr=RATE)

    def step_fn(xs, labels, alive):
        return labelled_losses(learner(ee.MultiStepData(xs)), labels, alive)

    options = OPTIONS | {"step_fn": step_fn, "context_fn": lambda xs, labels, alive: labels[-1], "synth": "fit"}
    found = learner.etrace_grad(*sequences, done=done, **options)

    check(by_name(found), [float(learner.fit_error)], learner, reference_labelled(sequences, done))


@pytest.mark.slow
def test_the_context_reaches_the_synthesiser_at_the_exit_it_belongs_to():
    xs = sequence()
    context = jnp.arange(TIME, dtype=float)[:, None, None] * jnp.ones((TIME, BATCH, 1))
    seen = []

    class Spy(dni_synth.Zero):
        def apply(self, params, hiddens, context):
            jax.debug.callback(lambda c: seen.append(float(c.max())), context)
            return super().apply(params, hiddens, context)

    learner = make_learner()
    learner.attach(Spy(), context_dim=1)
    learner.etrace_grad(xs, context, step_fn=window_losses(learner), context_fn=last, **OPTIONS)
    jax.effects_barrier()

    assert seen == [2.0, 5.0, 8.0, 11.0]


def test_a_missing_context_is_named():
    learner = make_learner()
    learner.attach(dni_synth.Affine(), context_dim=2)

    with pytest.raises(ValueError, match=r"2 context features.*context_fn"):
        learner.etrace_grad(sequence(), step_fn=window_losses(learner), **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("loss_output", ["per_step", "masked", "scalar"])
def test_the_result_has_the_form_of_the_engines(reduction, loss_output):
    mask = (jnp.arange(TIME) % 2).astype(float)
    options = {"mask": mask, "reduction": reduction, "loss_output": loss_output, "return_value": True}
    learner = make_learner()
    step = lambda xs: (window_losses(learner)(xs), xs.sum())

    mine = learner.etrace_grad(sequence(), step_fn=step, chunk_size=WINDOW, synth="off", has_aux=True, **options)
    learner.reset_state()
    theirs = super(dni_synth.DNI, learner).etrace_grad(
        sequence(), step_fn=step, chunk_size=WINDOW, has_aux=True, **options
    )

    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), mine, theirs)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"synth": "maybe"}, "`synth` must be one of 'use', 'fit', 'off', got 'maybe'"),
        ({"target": "td"}, "`target` must be one of"),
        ({"lam": 0.5}, "`lam=0.5` is set but `target` is 'bootstrap'"),
        ({"target": "lambda", "lam": 1.5}, "in \\[0, 1\\]"),
        ({"chunk_size": 5}, "to 10 steps"),
        ({"mask": jnp.ones(3)}, "`mask` must have shape \\(12,\\)"),
        ({"done": jnp.ones(3, bool)}, "`done` must have one row per window"),
    ],
)
def test_bad_options_are_named(options, match):
    learner = attached()
    with pytest.raises(ValueError, match=match):
        learner.etrace_grad(sequence(), step_fn=window_losses(learner), **{"chunk_size": WINDOW, **options})


def test_a_fit_without_a_synthesiser_is_refused():
    learner = make_learner()
    with pytest.raises(RuntimeError, match="attach"):
        learner.etrace_grad(sequence(), step_fn=window_losses(learner), synth="fit", **OPTIONS)


@pytest.mark.slow
def test_without_a_fit_the_gradient_is_truncated():
    learner = attached()

    found = by_name(learner.etrace_grad(sequence(), step_fn=window_losses(learner), **OPTIONS))

    assert gap(found["win"], bptt(start_params(), sequence())["win"]) > 1e-3
