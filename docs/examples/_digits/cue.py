"""Experiment (c): remember a cue over six windows, which takes credit that no window contains.

The first of 24 inputs shows a sign, and only the output of the last step is judged. Cut into windows of four
steps, the gradient of the cue's weights is exactly zero: the window that sees the cue sees no loss. A synthesiser
predicts, at every window's end, the gradient of the loss still to come, and it learns while the network does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import brainstate
import braintools
import jax
import jax.numpy as jnp
from tqdm import tqdm

import dni_synth
import etrace_engines

STEPS = 24
WINDOW = 4
BATCH = 32
HIDDEN = 8
GOAL = 0.6  # the last output should be this times the sign
UPDATES = 3000
REPORT = 50  # updates between two points of a curve


@dataclass
class CueRun:
    """What one way of crediting the cue came to."""

    method: str
    loss: float = 0.0
    curve: list[float] = field(default_factory=list)
    seconds: float = 0.0


class Leaky(brainstate.nn.Module):
    """A small leaky network: h' = 0.95 h + 0.05 tanh(x w_in + h w), y = h' w_out."""

    def __init__(self, key: jax.Array):
        super().__init__()
        keys = jax.random.split(key)
        # The cue's weights start at zero: no readout can find the cue until credit has reached them.
        self.w_in = brainstate.ParamState(jnp.zeros((1, HIDDEN)))
        self.w = brainstate.ParamState(jax.random.normal(keys[0], (HIDDEN, HIDDEN)) / HIDDEN**0.5)
        self.w_out = brainstate.ParamState(jax.random.normal(keys[1], (HIDDEN, 1)) / HIDDEN**0.5)

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Start at rest."""
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, HIDDEN)))

    def update(self, x: jax.Array) -> jax.Array:
        """Advance by one step and return the output, shape (batch, 1)."""
        h = self.h.value
        self.h.value = 0.95 * h + 0.05 * jnp.tanh(x @ self.w_in.value + h @ self.w.value)
        return self.h.value @ self.w_out.value


def trial(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return inputs, shape (time, batch, 1), and the sign repeated for every step, same shape."""
    sign = jax.random.rademacher(key, (BATCH, 1), float)
    return jnp.zeros((STEPS, BATCH, 1)).at[0].set(sign), jnp.broadcast_to(sign, (STEPS, BATCH, 1))


METHODS: dict[str, dict[str, Any]] = {
    "truncated": {"chunk_size": WINDOW, "synth": "off"},
    "DNI": {"chunk_size": WINDOW, "synth": "fit"},
    "BPTT": {"chunk_size": STEPS, "synth": "off"},
}


def make_gradient(learner: dni_synth.DNI, options: dict[str, Any]) -> Callable[[jax.Array], tuple[Any, jax.Array]]:
    """Return a function from a random key to the gradient and the loss of one batch of trials."""
    judged = jnp.arange(STEPS) == STEPS - 1

    def losses(xs: jax.Array, signs: jax.Array) -> jax.Array:
        return ((learner(etrace_engines.MultiStepData(xs)) - GOAL * signs) ** 2).mean((1, 2))

    def gradient(key: jax.Array) -> tuple[Any, jax.Array]:
        learner.reset_state()
        return learner.etrace_grad(
            *trial(key),
            step_fn=losses,
            mask=judged,
            loss_output="scalar",
            return_value=True,
            context_fn=lambda xs, signs: signs[-1],  # the synthesiser knows the label, the network does not
            **options,
        )

    return gradient


def train(method: str, progress: tqdm, seed: int = 0) -> CueRun:
    """Train one network, all of whose parameters are plain: no trace carries credit over a boundary."""
    learner = etrace_engines.compile(
        Leaky(jax.random.key(seed)), dni_synth.DNI, jnp.zeros((BATCH, 1)), batch_size=BATCH, traced=()
    )
    dni_synth.attach(learner, dni_synth.Affine(), context_dim=1, optimizer=braintools.optim.Adam(1e-2))
    optimizer = braintools.optim.Adam(3e-3)
    optimizer.register_trainable_weights(learner.param_states)
    gradient = make_gradient(learner, METHODS[method])

    def update(key: jax.Array) -> jax.Array:
        grads, loss = gradient(key)
        optimizer.update(grads)
        return loss

    updates = brainstate.transform.jit(lambda keys: brainstate.transform.for_loop(update, keys))
    run = CueRun(method)
    started = time.perf_counter()
    for keys in jax.random.split(jax.random.key(seed + 1), (UPDATES // REPORT, REPORT)):
        run.curve.append(float(updates(keys)[-1]))
        progress.set_postfix_str(f"{method}: loss {run.curve[-1]:.1e}", refresh=False)
        progress.update()
    run.seconds = time.perf_counter() - started
    run.loss = run.curve[-1]
    return run
