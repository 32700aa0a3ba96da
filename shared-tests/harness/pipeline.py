"""An ensemble trained across the packages: vmapped gradients by the engines, steps and files by batched-optim.

``python pipeline.py checkpoint steps out`` resumes from a checkpoint in this process and saves again.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # a fresh interpreter: find the harness, and the engines' models
    HERE = Path(__file__).parent
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "packages" / "etrace-engines" / "tests")]

import brainstate
import jax
import jax.numpy as jnp
import torch
from engine_models import data, make
from engine_oracles import squared

import batched_optim
from harness import bridge

MEMBERS = 3
RATES = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)


def member_parameters(learner):
    """Return the parameters of all members, (members, ...): those of the learner, each member's on its own scale."""
    scales = jnp.linspace(0.5, 1.5, MEMBERS)
    values = {path: state.value for path, state in learner.param_states.items()}
    return jax.tree.map(lambda v: scales.reshape(-1, *[1] * v.ndim) * v, values)


def ensemble_gradient(learner, xs, targets):
    """Return the function from all members' parameters to all their online gradients, compiled."""

    def one(xs, targets):
        learner.reset_state()
        return learner.etrace_grad(xs, targets, step_fn=lambda x, y: squared(learner(x), y))

    pure = brainstate.transform.StatefulFunction(one, return_only_write=False)
    pure.make_jaxpr(xs, targets)
    states = pure.get_states(xs, targets)
    path_of = {id(state): path for path, state in learner.param_states.items()}
    values = [(path_of.get(id(state)), state.value) for state in states]

    def of_member(params):
        return pure.jaxpr_call([params[path] if path else value for path, value in values], xs, targets)[1]

    return jax.jit(jax.vmap(of_member))


class Pipeline:
    """The ensemble: its gradient, and the form in which parameters cross the bridge."""

    def __init__(self):
        xs, targets = data()
        learner, _ = make("gru", "D_RTRL", xs[0])
        self.start = member_parameters(learner)
        self.gradient = ensemble_gradient(learner, xs, targets)

    def run(self, optimizer, params, steps):
        """Return the parameters after some steps, as tensors, and the gradients on the way."""
        seen = []
        for _ in range(steps):
            gradients = bridge.to_torch(self.gradient(bridge.to_jax(params, self.start)))
            seen.append(gradients)
            params = optimizer.step(params, gradients)
        return params, seen


def resume(checkpoint, steps, out):
    """Continue a run from a file, and save where it got to."""
    with jax.enable_x64(True), brainstate.environ.context(precision=64):
        loaded = batched_optim.load(checkpoint)
        params, _ = Pipeline().run(loaded.optimizer, loaded.params, int(steps))
        batched_optim.save(out, loaded.optimizer, params)


if __name__ == "__main__":
    torch.set_num_threads(1)
    resume(*sys.argv[1:])
