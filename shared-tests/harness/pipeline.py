"""An ensemble trained across the packages: gradients by engines, later credit by dni-synth, steps by batched-optim.

``python pipeline.py folder steps`` resumes in this process from what another saved half-way, and saves again.
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
from engine_models import BATCH, INPUTS, UNITS, batch_loss, data, normal, zeros
from safetensors.numpy import load_file, save_file

import batched_optim
import dni_synth
import etrace_engines
from harness import bridge

MEMBERS, WINDOW = 3, 2
RATES = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)


class Network(brainstate.nn.Module):
    """h' = .7 h + .3 tanh(x win + h w); `w` has a trace, and `win` gets credit over a window's end by DNI alone."""

    def __init__(self):
        super().__init__()
        self.win = brainstate.ParamState(normal(3, INPUTS, UNITS))
        self.w = brainstate.ParamState(normal(4, UNITS, UNITS))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(zeros(UNITS, batch_size))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + 0.3 * jnp.tanh(x @ self.win.value + self.h.value @ self.w.value)
        return self.h.value


def make_learner(x0):
    """Return a learner with a synthesiser that is fitted in the same pass."""
    learner = etrace_engines.compile(Network(), dni_synth.DNI, x0, batch_size=BATCH, traced=[("w",)])
    learner.attach(dni_synth.Affine(), lr=0.05)
    return learner


def of_members(values):
    """Return a tree with a row for each member, (members, ...), each on its own scale."""
    scales = jnp.linspace(0.5, 1.5, MEMBERS)
    return jax.tree.map(lambda v: scales.reshape(-1, *[1] * v.ndim) * v, values)


class Pipeline:
    """The ensemble: where it starts, and one compiled program for all members' gradients."""

    def __init__(self):
        xs, targets = data()
        learner = make_learner(xs[0])
        fitted = learner.synthesizer.states_dict()
        self.start = of_members({path: state.value for path, state in learner.param_states.items()})
        self.unfitted = of_members({name: state.value for name, state in fitted.items()})
        self.gradient = jax.jit(jax.vmap(_pure(learner, fitted, xs, targets)))

    def run(self, optimizer, params, fitted, steps):
        """Return parameters and fitted synthesisers after some steps, and the gradients on the way."""
        seen = []
        for _ in range(steps):
            gradients, fitted = self.gradient(bridge.to_jax(params, self.start), fitted)
            seen.append(bridge.to_torch(gradients))
            params = optimizer.step(params, seen[-1])
        return params, fitted, seen


def _pure(learner, fitted, xs, targets):
    """Return a function from one member's parameters and synthesiser to its gradients and the synthesiser fitted on."""

    def losses(x, y):
        return batch_loss(learner(etrace_engines.MultiStepData(x)), y)

    def one(xs, targets):
        learner.reset_state()
        return learner.etrace_grad(xs, targets, step_fn=losses, chunk_size=WINDOW, synth="fit")

    pure = brainstate.transform.StatefulFunction(one, return_only_write=False)
    pure.make_jaxpr(xs, targets)
    names = {id(state): name for name, state in (*learner.param_states.items(), *fitted.items())}
    states = [(names.get(id(state)), state.value) for state in pure.get_states(xs, targets)]

    def of_member(params, member_fitted):
        given = {**params, **member_fitted}
        after, gradients = pure.jaxpr_call([given.get(name, value) for name, value in states], xs, targets)
        return gradients, {name: value for (name, _), value in zip(states, after, strict=True) if name in fitted}

    return of_member


def save(folder, name, optimizer, params, fitted):
    """Write the whole run: optimizer and parameters to one file, the synthesisers to another."""
    batched_optim.save(folder / f"{name}.safetensors", optimizer, params)
    save_file({key: jax.device_get(value) for key, value in fitted.items()}, folder / f"{name}-fitted.safetensors")


def resume(folder, steps):
    """Continue from the files named half, and save where it got to as resumed."""
    with jax.enable_x64(True), brainstate.environ.context(precision=64):
        loaded = batched_optim.load(folder / "half.safetensors")
        fitted = jax.tree.map(jnp.asarray, load_file(folder / "half-fitted.safetensors"))
        save(folder, "resumed", loaded.optimizer, *Pipeline().run(loaded.optimizer, loaded.params, fitted, steps)[:2])


if __name__ == "__main__":
    torch.set_num_threads(1)
    resume(Path(sys.argv[1]), int(sys.argv[2]))
