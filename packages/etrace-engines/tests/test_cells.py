"""Stock cells, unmodified: each compiles, trains, and is exact where a rule promises it."""

import brainstate
import jax
import jax.numpy as jnp
import pytest
from engine_models import BATCH, BUILDERS, STEPS, UNITS, data, make, sequence_gradient
from engine_oracles import bptt, relative_error, squared

QUICK = ("lstm",)
cells = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in BUILDERS if name != "leaky"]
every_cell = pytest.mark.parametrize("name", cells)


@every_cell
def test_whole_sequence_window_is_bptt_in_single_precision(name):
    xs, targets = data()
    learner, model = make(name, "D_RTRL", xs[0], vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=STEPS)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 1e-6
    assert relative_error(bptt(model, xs, targets, window=1), expected) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_whole_sequence_window_is_bptt_in_double_precision(name, double):
    xs, targets = data()
    learner, model = make(name, "D_RTRL", xs[0], vjp_method="multi-step")

    assert relative_error(sequence_gradient(learner, xs, targets, window=STEPS), bptt(model, xs, targets)) < 1e-12


@every_cell
def test_training_online_lowers_the_loss(name):
    xs, _ = data()
    targets = jnp.broadcast_to(0.5 * jnp.sin(jnp.arange(UNITS)), (STEPS, BATCH, UNITS))
    learner, _ = make(name, "D_RTRL", xs[0])

    def epoch(_):
        learner.reset_state()
        step = lambda x, target: squared(learner(x), target)
        gradients, loss = learner.etrace_grad(xs, targets, step_fn=step, return_value=True, loss_output="scalar")
        for path, state in learner.param_states.items():
            state.value = jax.tree.map(lambda value, slope: value - 0.1 * slope, state.value, gradients[path])
        return loss

    losses = brainstate.transform.jit(lambda: brainstate.transform.for_loop(epoch, jnp.arange(50)))()
    assert losses[-1] < 0.5 * losses[0]
