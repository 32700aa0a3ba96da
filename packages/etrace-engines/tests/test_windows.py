"""Windows: the cotangent at entry, the cut of a sequence, and one step as a window."""

import brainstate
import jax
import jax.numpy as jnp
import pytest
from engine_models import BATCH, BUILDERS, STEPS, UNITS, batch_loss, data, make
from engine_oracles import bptt, relative_error, squared

import etrace_config
import etrace_engines
from etrace_engines import MultiStepData


def gradient_of_rest(learner, xs, targets, start, cut):
    """Run the first steps in windows of `cut`, then return the gradient of one window over the rest."""

    @brainstate.transform.jit
    def run(xs, targets):
        learner.reset_state()
        learner.etrace_evolve(xs[:start], chunk_size=cut)
        loss = lambda: batch_loss(learner(MultiStepData(xs[start:])), targets[start:]).sum()
        return brainstate.transform.grad(loss, learner.param_states)()

    return run(xs, targets)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("cut", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "rule",
    [etrace_config.pp_prop(0.9), pytest.param(etrace_config.eprop(0.8, "symmetric"), marks=pytest.mark.slow)],
    ids=["io_factorized", "kappa"],
)
def test_trace_does_not_depend_on_the_cut_into_windows(rule, cut):
    xs, targets = data()
    learner, _ = make("leaky", rule, xs[0], vjp_method="multi-step")

    by_steps = gradient_of_rest(learner, xs, targets, 4, 1)

    assert relative_error(gradient_of_rest(learner, xs, targets, 4, cut), by_steps) < 1e-13
    assert relative_error(gradient_of_rest(learner, xs, targets, 3, 3), by_steps) > 1e-3


@pytest.mark.parametrize(
    ("name", "method"),
    [("lstm", "multi-step"), pytest.param("gru", "single-step", marks=pytest.mark.slow)],
)
def test_cotangent_at_entry_is_exact(name, method):
    xs, targets = data()
    learner, model = make(name, "D_RTRL", xs[0], vjp_method=method)
    steps = STEPS if method == "multi-step" else 1
    run = (lambda: learner(MultiStepData(xs))) if method == "multi-step" else (lambda: learner(xs[0])[None])

    found = brainstate.transform.jit(
        lambda: brainstate.transform.grad(
            lambda: batch_loss(run(), targets[:steps]).sum(), {**learner.param_states, **learner.hidden_states}
        )()
    )()

    expected = bptt(model, xs[:steps], targets, wrt="state")
    assert relative_error({path: found[path] for path in expected}, expected) < 1e-6


def test_cotangent_of_inputs_is_exact():
    xs, targets = data()
    learner, model = make("leaky", "D_RTRL", xs[0])

    def total(x):
        learner.reset_state()
        return squared(learner(x), targets[0])

    found = brainstate.transform.grad(total, argnums=0)(xs[0])

    learner.reset_state()
    exact = jax.grad(lambda x: squared(model.step(model.params, model.state, x)[1], targets[0]))(xs[0])
    assert relative_error(found, exact) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_outputs_and_states_are_the_models_own(name):
    xs, _ = data()
    learner, model = make(name, "D_RTRL", xs[0], vjp_method="multi-step")

    outputs = learner(MultiStepData(xs))

    state, expected = model.state, []
    for x in xs:
        state, y = model.step(model.params, state, x)
        expected.append(y)
    assert relative_error(outputs, jnp.stack(expected)) < 1e-6
    assert relative_error({path: learner.hidden_states[path].value for path in state}, state) < 1e-6


@pytest.mark.slow
def test_plain_input_of_a_window_learner_is_a_window_of_one_step():
    xs, _ = data()
    learner, _ = make("gru", "D_RTRL", xs[0], vjp_method="multi-step")

    one = learner(xs[0])

    learner.reset_state()
    assert one.shape == (BATCH, UNITS)
    assert jnp.array_equal(learner(MultiStepData(xs[:1]))[0], one)


def test_multi_step_data_is_a_pytree():
    wrapped = jax.tree.map(lambda x: x + 1, etrace_engines.MultiStepData({"a": jnp.zeros(2)}))

    assert wrapped.data["a"].tolist() == [1, 1]
