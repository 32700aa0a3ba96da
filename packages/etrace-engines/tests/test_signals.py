"""Learning signals other than the true one."""

import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import BATCH, STEPS, UNITS, cell_of, data, make, normal, sequence_gradient
from engine_oracles import relative_error, rule_gradient

import etrace_config
import etrace_engines

FEEDBACK = etrace_config.eprop(0.0, "random")
MODULATED = etrace_config.three_factor()


def feedback_matrix(learner, xs):
    """Read the matrix off one-step gradients of the bias: with a signal e_j they are column j times Df."""
    h0 = next(iter(learner.hidden_states.values())).value
    weights = next(iter(learner.param_states.values())).value
    slope = lambda x: 0.3 * (1 - jnp.tanh(x @ weights["weight"][: x.shape[-1]] + weights["bias"]) ** 2)
    columns = []
    for j in range(UNITS):
        y = 0.3 * jnp.tanh(xs[0] @ weights["weight"][: xs.shape[-1]] + weights["bias"]) + 0.7 * h0
        target = y.at[0, j].add(-0.5)  # so that the signal of sample 0 is e_j, and that of the others is 0
        gradient = sequence_gradient(learner, xs[:1], target[None])
        columns.append(next(iter(gradient.values()))["bias"] / slope(xs[0, 0]))
    return np.stack(columns, axis=1)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_random_feedback_projects_the_signal_through_one_fixed_matrix():
    xs, targets = data()
    learner, _ = make("leaky", FEEDBACK, xs[0])
    matrix = feedback_matrix(learner, xs)

    found = sequence_gradient(learner, xs, targets)

    learner.reset_state()
    cell = cell_of("leaky", learner)
    expected = rule_gradient(*cell[:2], FEEDBACK, cell[2], xs, targets, feedback=matrix)
    assert relative_error(found, expected) < 1e-11
    symmetric = rule_gradient(*cell[:2], etrace_config.d_rtrl(), cell[2], xs, targets)
    assert relative_error(symmetric, expected) > 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_random_feedback_at_the_entry_of_windows_uses_the_same_matrix():
    xs, targets = data()
    single, _ = make("leaky", FEEDBACK, xs[0])
    learner, _ = make("leaky", FEEDBACK, xs[0], vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=2)

    matrix = feedback_matrix(single, xs)
    learner.reset_state()
    cell = cell_of("leaky", learner)
    expected = rule_gradient(*cell[:2], FEEDBACK, cell[2], xs, targets, feedback=matrix, window=2)
    assert relative_error(found, expected) < 1e-11


@pytest.mark.slow
def test_random_feedback_key_chooses_the_matrix():
    xs, targets = data()
    gradient = lambda key: sequence_gradient(
        make("leaky", "EProp", xs[0], feedback="random", random_feedback_key=key)[0], xs, targets
    )

    first = gradient(1)

    assert relative_error(gradient(1), first) == 0.0
    assert relative_error(gradient(2), first) > 0.1


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["leaky", pytest.param("lstm", marks=pytest.mark.slow)])
def test_modulator_of_each_step_takes_the_place_of_the_signal(name):
    xs, targets = data()
    modulators = normal(5, STEPS)
    learner, _ = make(name, MODULATED, xs[0])

    found = sequence_gradient(learner, xs, targets, modulators=modulators)

    learner.reset_state()
    cell = cell_of(name, learner)
    oracle = lambda modulators: rule_gradient(*cell[:2], MODULATED, cell[2], xs, targets, modulators=modulators)
    assert relative_error(found, oracle(np.asarray(modulators))) < 1e-12
    assert relative_error(oracle(np.ones(STEPS)), oracle(np.asarray(modulators))) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(BATCH,), (UNITS,), (BATCH, UNITS)], ids=["per-sample", "per-unit", "full"])
def test_modulator_of_ones_means_the_same_in_every_shape(shape):
    xs, targets = data()
    learner, _ = make("leaky", MODULATED, xs[0])

    found = sequence_gradient(learner, xs, targets, modulators=jnp.ones((STEPS, *shape)))

    assert relative_error(found, sequence_gradient(learner, xs, targets, modulators=jnp.ones(STEPS))) < 1e-6


@pytest.mark.slow
def test_per_sample_modulator_of_zero_silences_that_sample():
    xs, targets = data()
    learner, _ = make("leaky", MODULATED, xs[0])
    only_first = jnp.broadcast_to(jnp.array([1.0, 0.0]), (STEPS, BATCH))

    found = sequence_gradient(learner, xs, targets, modulators=only_first)

    changed = sequence_gradient(learner, xs.at[:, 1].add(1.0), targets, modulators=only_first)
    assert relative_error(found, changed) < 1e-6
    both = sequence_gradient(learner, xs.at[:, 1].add(1.0), targets, modulators=jnp.ones((STEPS, BATCH)))
    assert relative_error(both, changed) > 1e-2


def _square_learner():
    """Compile with as many samples as units, so that shapes are ambiguous."""
    return make("leaky", MODULATED, jnp.zeros((UNITS, 3)), batch=UNITS)[0]


MODULATOR_ERRORS = {
    "missing": (lambda: make("leaky", MODULATED, jnp.zeros((2, 3)))[0](jnp.ones((2, 3))), "is missing"),
    "not-used": (
        lambda: make("leaky", "D_RTRL", jnp.zeros((2, 3)))[0](jnp.ones((2, 3)), modulator=1.0),
        "learning_signal='modulatory'",
    ),
}


@pytest.mark.parametrize("case", MODULATOR_ERRORS)
def test_modulator_is_asked_for_exactly_where_it_is_used(case):
    call, message = MODULATOR_ERRORS[case]

    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_ambiguous_modulator_is_refused_with_the_full_shape():
    xs, targets = data(batch=UNITS)

    with pytest.raises(ValueError, match=r"per sample or per unit .* pass the full shape \(4, 4\)"):
        sequence_gradient(_square_learner(), xs, targets, modulators=jnp.ones((STEPS, UNITS)))


@pytest.mark.parametrize(
    ("rule", "method", "remedy"),
    [(MODULATED, "multi-step", "single-step"), (etrace_config.dni(), "single-step", "multi-step")],
)
def test_signal_and_method_must_fit(rule, method, remedy):
    with pytest.raises(ValueError, match=f"needs `vjp_method='{remedy}'`"):
        make("leaky", rule, jnp.zeros((2, 3)), vjp_method=method)


def test_named_rules_choose_their_signals():
    assert etrace_engines.ThreeFactor(None).config.learning_signal == "modulatory"
    assert etrace_engines.EProp(None, feedback="random").config.learning_signal == "random_feedback"
