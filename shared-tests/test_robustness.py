"""Long runs: memory stays flat and numbers stay finite, however long a stream or a training is."""

import sys

import brainstate
import jax
import jax.numpy as jnp
import pytest
import torch
from engine_models import BATCH, INPUTS, Leaky
from engine_oracles import squared

import batched_optim
import etrace_engines

resource = pytest.importorskip("resource", reason="peak memory is read from the POSIX resource module")
pytestmark = pytest.mark.slow
LEAK = 4 * 2**20  # bytes; 10,000 steps that leave 1 KiB each behind take 10 MiB
KINDS = {
    "sgd": batched_optim.BatchedSGD,
    "adam": batched_optim.BatchedAdam,
    "lbfgs": batched_optim.BatchedLBFGS,
}
RULES = {
    "per-parameter": etrace_engines.D_RTRL,
    "factorised": lambda model, **options: etrace_engines.pp_prop(model, 0.9, **options),
    "neighbourhood": lambda model, **options: etrace_engines.SnAp(model, 2, **options),
    "random projection": etrace_engines.UORO,
}


def growth(step, warm=1000, steps=10_000):
    """Return by how many bytes the peak memory of this process grows after the first steps."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    for _ in range(warm):
        step()
    before = peak()
    for _ in range(steps - warm):
        step()
    return peak() - before


def learner_of(rule):
    """Return a compiled learner of a small network, and its gradient of one step."""
    brainstate.random.seed(0)
    model = Leaky()
    brainstate.nn.init_all_states(model, batch_size=BATCH)
    learner = RULES[rule](model)
    learner.compile_graph(jnp.zeros((BATCH, INPUTS)), batch_size=BATCH)
    return learner, lambda x: brainstate.transform.grad(
        lambda: squared(learner(x), jnp.zeros((BATCH, 4))), learner.param_states
    )()


@pytest.mark.parametrize("kind", KINDS)
def test_optimizer_keeps_its_memory_over_many_steps(kind):
    run = {"params": {"w": torch.randn(8, 64, generator=torch.Generator().manual_seed(0))}}
    optimizer = KINDS[kind](run["params"], [], lr=0.01)

    def step():
        run["params"] = optimizer.step(run["params"], {"w": run["params"]["w"] - 1})

    assert growth(step) < LEAK


@pytest.mark.parametrize("rule", RULES)
def test_learner_keeps_its_memory_over_many_steps(rule):
    _, gradient = learner_of(rule)
    compiled = brainstate.transform.jit(gradient)
    x = jnp.ones((BATCH, INPUTS))

    assert growth(lambda: jax.block_until_ready(compiled(x))) < LEAK


def test_a_leak_is_seen():
    kept = []

    assert growth(lambda: kept.append(torch.ones(1024))) > LEAK


@pytest.mark.parametrize("rule", RULES)
def test_a_million_steps_stay_finite_and_flat(rule):
    learner, gradient = learner_of(rule)
    stretch = 10_000

    @brainstate.transform.jit
    def run(key):
        xs = jax.random.normal(key, (stretch, BATCH, INPUTS))
        totals = brainstate.transform.for_loop(lambda x: jax.tree.map(jnp.sum, gradient(x)), xs)
        return jax.tree.map(lambda total: jnp.abs(total).max(), totals)

    keys = iter(jax.random.split(jax.random.key(0), 1_000_000 // stretch))
    largest = []

    assert growth(lambda: largest.append(jax.device_get(run(next(keys)))), warm=10, steps=100) < LEAK
    assert next(keys, None) is None
    assert all(
        jnp.isfinite(leaf).all() for leaf in jax.tree.leaves([largest, [s.value for s in learner.states().values()]])
    )
