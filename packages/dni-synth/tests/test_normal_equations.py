"""Ridge regression and recursive least squares, against the normal equations in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import (
    BATCH,
    TIME,
    UNITS,
    WINDOW,
    future_gradients,
    last,
    make_learner,
    run,
    sequence,
    start_params,
    window_losses,
    zero_hidden,
)

import dni_synth

RHO = 1e-3


def boundaries():
    """Hidden values and exact gradients at the boundaries that something follows, (boundaries, batch, units)."""
    xs, params = sequence(), start_params()
    hidden = [run(params, zero_hidden(xs), xs[:end])[0] for end in range(WINDOW, TIME, WINDOW)]
    return np.asarray(jnp.stack(hidden), np.float64), np.asarray(future_gradients(params, xs)[:-1], np.float64)


def ridge(hidden, targets, rho=RHO):
    rows = np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1))], -1).reshape(-1, hidden.shape[-1] + 1)
    return np.linalg.solve(rows.T @ rows + rho * np.eye(rows.shape[1]), rows.T @ targets.reshape(len(rows), -1))


def solution(learner):
    states = learner.synthesizer.states_dict()
    return np.concatenate([states["h/weight"].value, states["h/bias"].value[None]])


def attached(optimizer=None, synthesizer=None):
    learner = make_learner()
    learner.attach(dni_synth.Affine() if synthesizer is None else synthesizer, optimizer=optimizer)
    return learner


def test_ridge_equals_the_normal_equations():
    learner = attached()

    error = dni_synth.fit_ridge(
        learner, sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, regularization=RHO
    )

    hidden, targets = boundaries()
    expected = ridge(hidden, targets)
    np.testing.assert_allclose(solution(learner), expected, atol=2e-4 * np.abs(expected).max())
    predicted = hidden @ expected[:-1] + expected[-1]
    assert float(error) == pytest.approx(np.mean((predicted - targets) ** 2), rel=1e-3)
    assert float(error) < 0.5 * np.mean(targets**2)


@pytest.mark.slow
def test_ridge_leaves_out_ended_elements():
    learner = attached()
    done = np.zeros((TIME // WINDOW, BATCH), bool)
    done[:, 0] = done[-1] = True

    dni_synth.fit_ridge(
        learner, sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, regularization=RHO, done=done
    )

    hidden, targets = boundaries()
    expected = ridge(hidden[:, 1:], targets[:, 1:])
    np.testing.assert_allclose(solution(learner), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("forgetting", [1.0, 0.8])
def test_recursive_least_squares_equals_the_weighted_ridge(forgetting):
    learner = attached(dni_synth.RecursiveLeastSquares(forgetting, RHO))

    learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, synth="fit", target="mc")

    hidden, targets = boundaries()
    rows = np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1))], -1)
    age = forgetting ** np.arange(len(rows))[::-1]
    gram = np.einsum("t,tbi,tbj->ij", age, rows, rows) + RHO * np.eye(UNITS + 1)
    expected = np.linalg.solve(gram, np.einsum("t,tbi,tbj->ij", age, rows, targets))
    np.testing.assert_allclose(solution(learner), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.slow
def test_a_context_multiplies_the_features():
    labels = jnp.ones((TIME, BATCH, 1)).at[:, 0].set(-1.0)
    learner = make_learner()
    learner.attach(dni_synth.Affine(), context_dim=1)

    dni_synth.fit_ridge(
        learner,
        sequence(),
        labels,
        step_fn=window_losses(learner),
        chunk_size=WINDOW,
        regularization=RHO,
        context_fn=last,
    )

    hidden, targets = boundaries()
    label = np.broadcast_to(labels[0], (len(hidden), BATCH, 1))
    features = np.concatenate([hidden, label, hidden * label], -1)
    expected = ridge(features, targets)
    np.testing.assert_allclose(solution(learner), expected, atol=5e-3 * np.abs(expected).max())


def test_other_synthesisers_are_refused():
    learner = attached(synthesizer=dni_synth.MLP(4))
    with pytest.raises(TypeError, match="`fit_ridge` needs an Affine synthesiser, got MLP"):
        dni_synth.fit_ridge(learner, sequence(), step_fn=window_losses(learner), chunk_size=WINDOW)
    with pytest.raises(TypeError, match="`RecursiveLeastSquares` needs an Affine"):
        attached(dni_synth.RecursiveLeastSquares(), dni_synth.MLP(4))


@pytest.mark.parametrize("values", [{"forgetting": 0.0}, {"forgetting": 1.1}, {"regularization": 0.0}])
def test_numbers_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match="must be"):
        dni_synth.RecursiveLeastSquares(**values)
