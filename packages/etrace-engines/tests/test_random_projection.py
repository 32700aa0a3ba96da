"""UORO is unbiased: over all signs, its mean is real-time recurrent learning; over seeds, it converges at 1/sqrt(n)."""

import itertools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import data, make, normal, tanh_network
from engine_oracles import bptt, relative_error, squared

import etrace_engines

UNITS, STEPS = 2, 3


def small(**options):
    """Compile a tanh network of two units, without a batch axis."""
    xs, targets = normal(1, STEPS, 1), normal(2, STEPS, UNITS)
    learner, model = make(lambda: tanh_network(1, UNITS), "UORO", xs[0], batch=None, **options)
    return learner, model, xs, targets


def gradients_of_steps(learner, xs, targets):
    """Return the summed gradient of single steps, from the traces' present key."""
    gradient = lambda x, y: brainstate.transform.grad(lambda: squared(learner(x), y), learner.param_states)()
    steps = brainstate.transform.for_loop(gradient, xs, targets)
    return jax.tree.map(lambda g: g.sum(0), steps)


@pytest.mark.usefixtures("double")
def test_mean_over_all_signs_is_the_exact_gradient(monkeypatch):
    signs = []
    monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: signs[-1].reshape(shape).astype(dtype))
    learner, model, xs, targets = small()

    @brainstate.transform.jit
    def run(pattern):
        learner.reset_state()
        total = []
        for x, target, step in zip(xs, targets, pattern, strict=True):
            signs.append(step)
            total.append(
                brainstate.transform.grad(lambda x=x, y=target: squared(learner(x), y), learner.param_states)()
            )
        return jax.tree.map(lambda *g: sum(g), *total)

    patterns = np.array(list(itertools.product((-1.0, 1.0), repeat=UNITS * STEPS))).reshape(-1, STEPS, UNITS)
    each = [run(jnp.asarray(pattern)) for pattern in patterns]

    expected = bptt(model, xs, targets)
    mean = jax.tree.map(lambda *g: sum(g) / len(g), *each)
    assert relative_error(mean, expected) < 1e-12
    assert relative_error(each[0], expected) > 1e-2


@pytest.mark.slow
def test_mean_over_seeds_converges_at_the_rate_of_independent_draws():
    xs, targets = normal(1, STEPS, 1), normal(2, STEPS, UNITS)
    learner, model, *_ = small()

    @brainstate.transform.jit
    def run(key):
        learner.reset_state()
        learner.trace.value = learner.trace.value._replace(key=key)
        return gradients_of_steps(learner, xs, targets)

    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    draws = np.stack([flat(run(key)) for key in jax.random.split(jax.random.key(0), 4096)])

    distance = lambda n: np.linalg.norm(
        draws[: (len(draws) // n) * n].reshape(-1, n, draws.shape[1]).mean(1) - exact, axis=1
    )
    exact = flat(bptt(model, xs, targets))
    sizes = [4, 16, 64, 256]
    errors = [np.sqrt((distance(n) ** 2).mean()) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4
    assert np.linalg.norm(draws.mean(0) - exact) < 5 * errors[0] * np.sqrt(4 / len(draws))


@pytest.mark.slow
def test_projection_key_chooses_the_signs():
    gradient = lambda key: gradients_of_steps(*small(projection_key=key)[::2], small()[3])

    first = gradient(1)

    assert relative_error(gradient(1), first) == 0.0
    assert relative_error(gradient(2), first) > 1e-3


@pytest.mark.slow
def test_whole_sequence_window_is_bptt():
    xs, targets = data()
    learner, model = make("lstm", etrace_engines.UORO, xs[0], vjp_method="multi-step")

    @brainstate.transform.jit
    def run():
        outputs = lambda: learner(etrace_engines.MultiStepData(xs))
        return brainstate.transform.grad(lambda: squared(outputs(), targets), learner.param_states)()

    assert relative_error(run(), bptt(model, xs, targets)) < 1e-6
