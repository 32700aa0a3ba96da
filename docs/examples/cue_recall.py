"""Cue recall: credit that no window contains, carried by synthetic gradients.

The first of 24 inputs shows a sign, and only the output of the last step is judged: it should be 0.6 times the sign.
Cut into windows of four steps, the gradient of the cue's weights is exactly zero, so truncation stays at chance, 0.36.
A synthesiser that learns in the same pass carries the credit from window to window.

Plots go to `demo-output/`: the losses of truncation, DNI and BPTT; and, while DNI learns, its estimates against the
true gradients, with the cosine at every boundary. Run: python docs/examples/cue_recall.py
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import brainstate
import braintools
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

import dni_synth
import etrace_engines as ee

TIME, WINDOW, BATCH, UNITS, GOAL = 24, 4, 32, 8, 0.6
ROUNDS, ROUND = 20, 20  # rounds of training steps
REPORT_ROUND = 0  # when DNI's estimates are compared with the truth: on the way, since they vanish with the loss
OUT = Path("demo-output")
METHODS: dict[str, dict[str, Any]] = {
    "truncation": {"chunk_size": WINDOW, "synth": "off"},
    "DNI": {"chunk_size": WINDOW, "synth": "fit"},
    "BPTT": {"chunk_size": TIME, "synth": "off"},
}


class Memory(brainstate.nn.Module):
    """A leaky network, h' = 0.95 h + 0.05 tanh(x win + h w), y = h' wout, that is deaf at the start: win = 0."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        first, second = jax.random.split(jax.random.key(seed))
        self.win = brainstate.ParamState(jnp.zeros((1, UNITS)))
        self.w = brainstate.ParamState(jax.random.normal(first, (UNITS, UNITS)) / UNITS**0.5)
        self.wout = brainstate.ParamState(jax.random.normal(second, (UNITS, 1)) / UNITS**0.5)

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Start at rest."""
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: jax.Array) -> jax.Array:
        """Advance one step."""
        self.h.value = 0.95 * self.h.value + 0.05 * jnp.tanh(x @ self.win.value + self.h.value @ self.w.value)
        return self.h.value @ self.wout.value


def trials(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the inputs, and the sign repeated for every step, both of shape (time, batch, 1)."""
    sign = jax.random.rademacher(key, (BATCH, 1), float)
    return jnp.zeros((TIME, BATCH, 1)).at[0].set(sign), jnp.broadcast_to(sign, (TIME, BATCH, 1))


def make_learner(seed: int) -> dni_synth.DNI:
    """Return a learner whose parameters are all plain: no trace carries credit over a window's end."""
    model = Memory(seed)
    brainstate.nn.init_all_states(model, batch_size=BATCH)
    learner = dni_synth.DNI(model, traced=())
    learner.compile_graph(jnp.zeros((BATCH, 1)), batch_size=BATCH)
    synthesizer = dni_synth.Normalized(dni_synth.Affine())
    learner.attach(synthesizer, context_dim=1, optimizer=braintools.optim.Adam(1e-2))
    return learner


def task_of(learner: dni_synth.DNI) -> dict[str, Any]:
    """Return what every call over a sequence is told: losses, which of them count, and the synthesiser's context."""

    def step_fn(x: jax.Array, sign: jax.Array) -> jax.Array:
        return jnp.mean((learner(ee.MultiStepData(x)) - GOAL * sign) ** 2, axis=(1, 2))

    return {"step_fn": step_fn, "mask": np.arange(TIME) == TIME - 1, "context_fn": lambda x, sign: sign[-1]}


def make_round(learner: dni_synth.DNI, options: dict[str, Any]) -> Callable[[jax.Array], jax.Array]:
    """Return a compiled function that takes one training step for each key and returns the losses."""
    task = task_of(learner) | options
    optimizer = braintools.optim.Adam(3e-3)
    optimizer.register_trainable_weights(learner.param_states)

    def step(key: jax.Array) -> jax.Array:
        learner.reset_state()
        gradients, loss = learner.etrace_grad(*trials(key), **task, return_value=True, loss_output="scalar")
        optimizer.update(gradients)
        return loss

    compiled: Callable[[jax.Array], jax.Array] = brainstate.transform.jit(
        lambda keys: brainstate.transform.for_loop(step, keys)
    )
    return compiled


def train(method: str, seed: int, bar: tqdm) -> tuple[np.ndarray, dni_synth.DNIReport | None]:
    """Return the loss of every step, and for DNI a report on its estimates while it was learning."""
    learner = make_learner(seed)
    run_round = make_round(learner, METHODS[method])
    losses, report = [], None
    for number, keys in enumerate(jax.random.split(jax.random.key(100 + seed), (ROUNDS, ROUND))):
        losses.append(np.asarray(run_round(keys)))
        bar.set_postfix_str(f"{method}, seed {seed}: loss {losses[-1][-1]:.1e}", refresh=False)
        bar.update()
        if (method, seed, number) == ("DNI", 0, REPORT_ROUND):
            learner.reset_state()
            report = dni_synth.dni_report(learner, *trials(keys[0]), **task_of(learner), chunk_size=WINDOW)
    return np.concatenate(losses), report


def plot_losses(curves: dict[str, list[np.ndarray]], path: Path) -> None:
    """Plot the loss of every seed under each method."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for color, (method, runs) in zip(("tab:gray", "tab:blue", "tab:orange"), curves.items(), strict=True):
        for number, losses in enumerate(runs):
            axes.semilogy(np.maximum(losses, 1e-12), color=color, label=None if number else method, linewidth=0.9)
    axes.axhline(GOAL**2, color="black", linestyle=":", linewidth=0.8)
    axes.set(xlabel="training step", ylabel="loss", title="A cue at step 1, judged at step 24 (dotted: chance)")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train three seeds under each method, draw the plots and print the final losses."""
    OUT.mkdir(exist_ok=True)
    seeds = range(3)
    curves: dict[str, list[np.ndarray]] = {method: [] for method in METHODS}
    with tqdm(total=len(METHODS) * len(seeds) * ROUNDS, desc="cue recall") as bar:
        for method in METHODS:
            for seed in seeds:
                losses, report = train(method, seed, bar)
                curves[method].append(losses)
                if report is not None:
                    report.plot(OUT / "cue_recall_estimates.png")
                    bar.write(str(report))
    plot_losses(curves, OUT / "cue_recall_losses.png")
    print(f"{'method':<12}" + "".join(f"{f'seed {seed}':>12}" for seed in seeds))
    for method, runs in curves.items():
        print(f"{method:<12}" + "".join(f"{losses[-ROUND:].mean():>12.1e}" for losses in runs))


if __name__ == "__main__":
    main()
