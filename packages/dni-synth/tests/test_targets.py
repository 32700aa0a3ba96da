"""Regression targets: lambda = 0 is the bootstrap, lambda = 1 the exact gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import (
    TIME,
    UNITS,
    WINDOW,
    future_gradients,
    make_learner,
    run,
    sequence,
    squares,
    start_params,
    window_losses,
    zero_hidden,
)

import dni_synth
from dni_synth._sequence import cut
from dni_synth._targets import lambda_targets


@pytest.fixture(scope="module")
def learner():
    learner = make_learner()
    learner.attach(dni_synth.Affine(scale=0.5))
    return learner


def targets(learner, lam, **options):
    windows = cut((sequence(),), window_losses(learner), learner.injection.batch_shape, chunk_size=WINDOW, **options)
    return lambda_targets(learner, windows, lam)


def fitted_map(learner):
    states = learner.synthesizer.states_dict()
    return states["h/weight"].value, states["h/bias"].value


@jax.jit
def reference(params, fitted, xs, lam):
    """G_k = d/dh [L_k + <(1 - lam) M(h') + lam G_{k+1}, h'>] by a loop from the end."""
    windows = xs.reshape(-1, WINDOW, *xs.shape[1:])
    entries = [zero_hidden(xs)]
    for xw in windows:
        entries.append(run(params, entries[-1], xw)[0])
    following, found = jnp.zeros_like(entries[0]), []
    for k in reversed(range(len(windows))):
        live = k < len(windows) - 1
        m = entries[k + 1] @ fitted[0] + fitted[1]
        c = live * ((1 - lam) * m + lam * following)

        def value(h, c=c, xw=windows[k]):
            after, ys = run(params, h, xw)
            return jnp.sum(squares(ys)) + jnp.sum(c * after)

        following = jax.grad(value)(entries[k])
        found.append(following)
    return jnp.stack(found[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_targets_equal_a_loop_from_the_end(learner, lam):
    found = targets(learner, lam).gradients[("h",)]

    expected = reference(start_params(), fitted_map(learner), sequence(), lam)

    np.testing.assert_allclose(found, expected, atol=1e-6 * float(jnp.abs(expected).max()))


def test_lambda_one_is_the_exact_gradient(learner):
    found = targets(learner, 1.0).gradients[("h",)]

    exact = future_gradients(start_params(), sequence())

    np.testing.assert_allclose(found[1:], exact[:-1], atol=1e-6 * float(jnp.abs(exact).max()))
    assert np.abs(targets(learner, 0.0).gradients[("h",)][1:] - exact[:-1]).max() > 1e-2


@pytest.mark.slow
def test_entries_are_the_states_at_the_windows_start(learner):
    found = targets(learner, 1.0).entries[("h",)]

    expected, _ = run(start_params(), zero_hidden(sequence()), sequence()[:WINDOW])

    np.testing.assert_allclose(found[1], expected, atol=1e-6)
    np.testing.assert_array_equal(found[0], jnp.zeros_like(found[0]))


@pytest.mark.slow
def test_states_are_as_before(learner):
    learner.hidden_states[("h",)].value = jnp.ones((3, UNITS))

    targets(learner, 0.5)

    np.testing.assert_array_equal(learner.hidden_states[("h",)].value, jnp.ones((3, UNITS)))
    learner.reset_state()


@pytest.mark.slow
def test_a_done_boundary_cuts_the_targets_before_it(learner):
    done = jnp.array([False, True, False, True])

    found = targets(learner, 1.0, done=done).gradients[("h",)]

    first = future_gradients(start_params(), sequence()[: 2 * WINDOW])
    np.testing.assert_allclose(found[1], first[0], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_stream_that_goes_on_ends_with_the_estimate(learner):
    found = targets(learner, 1.0, done=jnp.zeros(TIME // WINDOW, bool)).gradients[("h",)]

    without = targets(learner, 1.0).gradients[("h",)]

    assert np.abs(found[-1] - without[-1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("target", "options"), [("mc", {}), ("lambda", {"lam": 0.5})])
def test_a_joint_fit_can_use_them(target, options):
    learner = make_learner()
    learner.attach(dni_synth.Affine(), lr=0.0)
    step = window_losses(learner)

    learner.etrace_grad(sequence(), step_fn=step, chunk_size=WINDOW, synth="fit", target=target, **options)

    zero = jnp.zeros((UNITS, UNITS)), jnp.zeros(UNITS)
    expected = reference(start_params(), zero, sequence(), options.get("lam", 1.0))[1:]
    assert float(learner.fit_error) == pytest.approx(float(jnp.mean(expected**2)), rel=1e-5)
