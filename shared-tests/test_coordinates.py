"""Every legal coordinate of the space of learning rules runs, and its gradients are those of its equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import cell_of

import etrace_config
import etrace_engines
from harness.cases import COORDINATES, MODELS, NOT_YET, RULES, methods, representative, rule_of
from harness.devices import DISTINCT, tolerance
from harness.oracles import bptt, feedback_matrix, relative_error, rule_gradient
from harness.runs import STEPS, WINDOW, caller, data, make, total

ROUNDING = tolerance("cpu", "float64")
QUICK = representative(RULES)


def cases():
    """Return models x rules x methods as parameters; all are slow but a few rules, each method on another model."""
    rows = [(model, rule, method) for model in MODELS for rule in RULES for method in methods(rule)]
    quick = lambda model, rule, method: rule in QUICK and method == methods(rule)[0 if model == "leaky" else -1]
    marks = lambda row: [] if quick(*row) else [pytest.mark.slow]
    return [pytest.param(*row, id=f"{row[0]}-{row[1].describe()}-{row[2]}", marks=marks(row)) for row in rows]


def control(rule):
    """Return a rule that must give other gradients: of another recursion, or of another decay."""
    if rule.is_factorized:
        return rule.replace(decay=tuple({0.0: 0.0, 0.9: 0.5}[d] for d in (rule.decay_x, rule.decay_f)))
    if rule.temporal_recursion == "scalar_leak":
        return rule.replace(decay=0.5)
    if rule.temporal_recursion == "none":
        return rule.replace(temporal_recursion="scalar_leak", decay=0.9)
    return rule.replace(temporal_recursion="none", recurrence_scope="diagonal", sparse_n=None, decay=None)


def one_step_gradients(learner, gradients, pure, x):
    """Return ``gradient(j)``: that of the first step where the loss pulls at unit j of sample 0 only."""
    y = pure.step(pure.params, pure.state, x)[1]

    def gradient(j):
        learner.reset_state()
        return gradients(x[None], y.at[0, j].add(-0.5)[None])[0]

    return gradient


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("model", "rule", "method"), cases())
def test_coordinate_gives_the_gradients_of_its_equations(model, rule, method):
    if rule.describe() in NOT_YET:
        pytest.skip(NOT_YET[rule.describe()])
    xs, targets = data(steps=STEPS)
    modulators = jnp.asarray([1.0, -2.0, 0.5, 3.0]) if rule.learning_signal == "modulatory" else None
    learner, pure = make(MODELS[model].build, rule, xs[0], vjp_method=method)
    cell, params, h = cell_of(model, learner)

    gradients = caller(learner)
    calls = gradients(xs, targets, modulators)

    window = WINDOW if method == "multi-step" else 1
    if modulators is None and (rule.learning_signal == "symmetric" or method == "multi-step"):
        truth = jax.jit(lambda xs, targets: bptt(pure, xs, targets))
        exact = truth(xs[:window], targets[:window])  # the first call sees its whole past
        assert relative_error(calls[0], exact) < ROUNDING
        assert relative_error(truth(xs[1 : 1 + window], targets[:window]), exact) > DISTINCT
    if rule.trace_factorization == "random_projection":
        return  # from the second call on, a random variable; that its mean is exact is tested with the engine
    feedback = None
    if rule.learning_signal == "random_feedback":
        if method == "multi-step":  # within a window the gradient is exact, and does not show the matrix
            learner, _ = make(MODELS[model].build, rule, xs[0])
            gradients = caller(learner)
        feedback = feedback_matrix(cell, params, rule, h, xs[0], one_step_gradients(learner, gradients, pure, xs[0]))
    options = {"window": None if method == "single-step" else WINDOW, "feedback": feedback, "modulators": modulators}
    oracle = lambda rule: rule_gradient(cell, params, rule, h, xs, targets, **options)
    expected = oracle(rule)
    assert relative_error(total(calls), expected) < 100 * ROUNDING
    if control(rule) != rule:
        assert relative_error(oracle(control(rule)), expected) > DISTINCT


def test_quick_rules_show_every_value_of_every_axis():
    for axis in ("trace_factorization", "temporal_recursion", "recurrence_scope", "learning_signal", "trace_filter"):
        assert {getattr(rule, axis) for rule in QUICK} == {getattr(rule, axis) for rule in RULES}
    assert len(QUICK) < 15


def test_rules_leave_out_nothing_but_the_schedule():
    assert len(COORDINATES) == 3 * len(RULES)
    assert {rule_of(coordinate) for coordinate in COORDINATES} == set(RULES)


def test_nothing_is_left_to_build():
    assert NOT_YET == {}


@pytest.mark.parametrize("coordinate", COORDINATES, ids=lambda c: c.describe())
def test_learner_is_built_for_every_coordinate(coordinate):
    engines = {
        "per_param": etrace_engines.ParamDimVjpAlgorithm,
        "io_factorized": etrace_engines.IODimVjpAlgorithm,
        "random_projection": etrace_engines.RandomProjectionVjpAlgorithm,
    }

    learner = engines[coordinate.trace_factorization](None, coordinate, vjp_method=methods(coordinate)[0])

    assert learner.config == coordinate


@pytest.mark.slow
@pytest.mark.parametrize("coordinate", COORDINATES, ids=lambda c: c.describe())
def test_every_coordinate_compiles_and_traces_all_weights(coordinate):
    xs, _ = data(steps=STEPS)

    learner, _ = make("lstm", coordinate, xs[0], vjp_method=methods(coordinate)[0])

    assert {row.treatment for row in learner.report()} == {"traced"}


def test_single_precision_meets_the_same_oracles_less_closely():
    xs, targets = data(steps=STEPS)
    learner, _ = make("leaky", etrace_config.d_rtrl(), xs[0])
    cell, params, h = cell_of("leaky", learner)

    found = total(caller(learner)(xs, targets))

    expected = rule_gradient(cell, params, etrace_config.d_rtrl(), h, xs, targets)
    assert relative_error(found, expected) < tolerance("cpu", "float32")
    assert np.isfinite(relative_error(found, expected))
