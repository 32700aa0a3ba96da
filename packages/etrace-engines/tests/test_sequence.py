"""Sequence drivers: what they sum, mask, return and refuse."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import BATCH, INPUTS, STEPS, UNITS, Net, batch_loss, call_gradients, data, make, sequence_gradient
from engine_oracles import relative_error, squared

import etrace_config
from etrace_engines import MultiStepData

MASK = np.array([0.0, 1.0, 0.0, 0.5, 2.0, 0.0])


@pytest.fixture(scope="module")
def learned():
    """Compile one learner and its gradients per step: the truth that the driver's sums are made of."""
    xs, targets = data()
    learner, _ = make("leaky", "D_RTRL", xs[0])
    return learner, xs, targets, call_gradients(learner, xs, targets)


def weighted(per_step, mask):
    """Return the masked sum of gradients per step."""
    return jax.tree.map(lambda g: jnp.tensordot(jnp.asarray(mask, g.dtype), g, 1), per_step)


def drive(learner, xs, targets, **options):
    """Return the driver's result from the sequence's start."""

    @brainstate.transform.jit
    def run(xs, targets):
        learner.reset_state()
        return learner.etrace_grad(xs, targets, step_fn=lambda x, y: squared(learner(x), y), **options)

    return run(xs, targets)


def losses_of(learner, xs, targets):
    """Return the loss of every step, by calling the learner."""
    learner.reset_state()
    return np.array([squared(learner(x), y) for x, y in zip(xs, targets, strict=True)])


def test_sum_is_the_sum_of_the_calls_gradients(learned):
    learner, xs, targets, per_step = learned

    found = drive(learner, xs, targets, reduction="sum")

    assert relative_error(found, weighted(per_step, np.ones(STEPS))) < 1e-6
    assert relative_error(found, weighted(per_step, MASK)) > 1e-2


def test_mean_divides_masked_losses_and_gradients_once(learned):
    learner, xs, targets, per_step = learned

    found, loss = drive(learner, xs, targets, mask=MASK, return_value=True, loss_output="scalar")

    assert relative_error(found, weighted(per_step, MASK / MASK.sum())) < 1e-6
    assert float(loss) == pytest.approx(losses_of(learner, xs, targets) @ MASK / MASK.sum(), rel=1e-5)


@pytest.mark.slow
def test_mean_of_a_mask_of_little_weight_divides_by_one(learned):
    learner, xs, targets, per_step = learned

    assert relative_error(drive(learner, xs, targets, mask=0.1 * MASK), weighted(per_step, 0.1 * MASK)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "weights"), [("per_step", np.ones(STEPS)), ("masked", MASK)])
def test_losses_come_raw_or_masked(kind, weights, learned):
    learner, xs, targets, _ = learned

    _, losses = drive(learner, xs, targets, mask=MASK, return_value=True, loss_output=kind)

    np.testing.assert_allclose(losses, losses_of(learner, xs, targets) * weights, rtol=1e-5)


@pytest.mark.slow
def test_masked_steps_still_advance_model_and_trace(learned):
    learner, xs, targets, per_step = learned
    last = np.eye(STEPS)[-1]

    found = drive(learner, xs, targets, mask=last)

    assert relative_error(found, weighted(per_step, last)) < 1e-6
    learner.reset_state()
    alone = call_gradients(learner, xs[-1:], targets[-1:])
    assert relative_error(alone, jax.tree.map(lambda g: g[-1:], per_step)) > 1e-2


@pytest.mark.slow
def test_aux_is_stacked_after_the_losses(learned):
    learner, xs, targets, _ = learned

    def step(x, target):
        y = learner(x)
        return squared(y, target), {"output": y}

    learner.reset_state()
    gradients, losses, aux = learner.etrace_grad(xs, targets, step_fn=step, has_aux=True, return_value=True)

    assert gradients.keys() == learner.param_states.keys()
    assert losses.shape == (STEPS,)
    assert aux["output"].shape == (STEPS, BATCH, UNITS)


@pytest.mark.slow
def test_weights_choose_what_is_differentiated(learned):
    learner, xs, targets, _ = learned
    gain = brainstate.ParamState(jnp.ones(()))
    learner.reset_state()

    step = lambda x, y: gain.value * squared(learner(x), y)
    found = learner.etrace_grad(xs, targets, step_fn=step, weights={"gain": gain}, reduction="sum")

    assert float(found["gain"]) == pytest.approx(losses_of(learner, xs, targets).sum(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [etrace_config.pp_prop(0.9), etrace_config.ostl_recurrent()], ids=["pp_prop", "coupled"]
)
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_driver_equals_calls_for_other_rules(name, rule, double):
    xs, targets = data()
    learner, _ = make(name, rule, xs[0])

    per_step = call_gradients(learner, xs, targets)

    assert relative_error(sequence_gradient(learner, xs, targets), weighted(per_step, np.ones(STEPS))) < 1e-11


def late(p, h, x):
    """A leaky unit whose output reads its state before the step, too."""
    new = 0.8 * h["h"] + jnp.tanh(x @ p["w_in"] + h["h"] @ p["w"])
    return {"h": new}, new + jnp.tanh(h["h"])


@pytest.mark.parametrize(
    "rule",
    [
        etrace_config.pp_prop(0.9),
        pytest.param(etrace_config.d_rtrl(), marks=pytest.mark.slow),
        pytest.param(etrace_config.eprop(0.5), marks=pytest.mark.slow),
    ],
    ids=["pp_prop", "d_rtrl", "kappa"],
)
def test_driver_counts_what_outputs_read_of_entry_states(rule, double):
    xs, targets = data()
    net = Net({"w_in": (INPUTS, UNITS), "w": (UNITS, UNITS)}, {"h": (UNITS,)}, late)
    learner, _ = make(lambda: net, rule, xs[0])

    per_step = call_gradients(learner, xs, targets)

    assert relative_error(sequence_gradient(learner, xs, targets), weighted(per_step, np.ones(STEPS))) < 1e-11


@pytest.mark.slow
def test_states_and_traces_after_the_driver_are_those_after_the_calls(learned):
    learner, xs, targets, _ = learned
    states = lambda: jax.tree.map(jnp.copy, [learner.trace.value, [s.value for s in learner.hidden_states.values()]])

    drive(learner, xs, targets)
    by_driver = states()
    call_gradients(learner, xs, targets)

    assert relative_error(by_driver, states()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 2])
def test_evolve_advances_as_calls_do(window):
    xs, _ = data()
    learner, _ = make("leaky", "D_RTRL", xs[0], vjp_method="multi-step")
    states = lambda: jax.tree.map(jnp.copy, [learner.trace.value, [s.value for s in learner.hidden_states.values()]])

    outputs = learner.etrace_evolve(xs, chunk_size=window, return_outputs=True)
    after = states()
    learner.reset_state()
    expected = learner(MultiStepData(xs))

    assert relative_error(outputs, expected) < 1e-6
    assert relative_error(after, states()) < 1e-6


def test_evolve_returns_nothing_unless_asked(learned):
    learner, xs, *_ = learned

    assert learner.etrace_evolve(xs) is None


STEP = lambda learner: lambda x, y: squared(learner(x), y)
ERRORS = {
    "no step_fn": (lambda run, x, y: run.etrace_grad(x, y), TypeError, "`step_fn` is needed"),
    "step_fn not callable": (lambda run, x, y: run.etrace_grad(x, y, step_fn=3), TypeError, "got int"),
    "no sequence": (lambda run, x, y: run.etrace_grad(step_fn=STEP(run)), ValueError, "At least one sequence"),
    "wrapped": (
        lambda run, x, y: run.etrace_grad(MultiStepData(x), y, step_fn=STEP(run)),
        TypeError,
        "not `MultiStepData`",
    ),
    "lengths": (lambda run, x, y: run.etrace_grad(x, y[1:], step_fn=STEP(run)), ValueError, r"got \[\(5,\), \(6,\)\]"),
    "mask": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), mask=np.ones(3)),
        ValueError,
        r"\(6,\).*got \(3,\)",
    ),
    "reduction": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), reduction="max"),
        ValueError,
        "'max'.*'mean', 'sum'",
    ),
    "loss_output": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), loss_output="all"),
        ValueError,
        "'all'.*'per_step'",
    ),
    "loss shape": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=lambda x, y: run(x)),
        ValueError,
        r"a scalar, got .*\(2, 4\)",
    ),
    "chunk not int": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), chunk_size=2.0),
        TypeError,
        "int or None, got float",
    ),
    "chunk below 1": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), chunk_size=0),
        ValueError,
        "at least 1",
    ),
    "window on single step": (
        lambda run, x, y: run.etrace_grad(x, y, step_fn=STEP(run), chunk_size=2),
        ValueError,
        "need `vjp_method='multi-step'`",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_misuse_is_refused_and_changes_nothing(case, learned):
    learner, xs, targets, _ = learned
    call, kind, message = ERRORS[case]
    learner.reset_state()
    learner(xs[0])
    states = lambda: jax.tree.map(np.asarray, [learner.trace.value, [s.value for s in learner.hidden_states.values()]])
    before = states()

    with pytest.raises(kind, match=message):
        call(learner, xs, targets)

    assert jax.tree.all(jax.tree.map(np.array_equal, states(), before))


def test_length_that_no_window_divides_is_refused_with_the_trimmed_length():
    xs, targets = data()
    learner, _ = make("leaky", "D_RTRL", xs[0], vjp_method="multi-step")
    step = lambda x, y: batch_loss(learner(MultiStepData(x)), y)

    with pytest.raises(ValueError, match=r"`chunk_size=4` does not divide the sequence length 6; .* 4 steps"):
        learner.etrace_grad(xs, targets, step_fn=step, chunk_size=4)
