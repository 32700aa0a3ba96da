"""Ten epochs of `train_synthetic_gradient`, compilation included: ours and braintrace's, side by side.

Run it with ``nox -s bench -- dni``. Both fit an affine synthesiser to the same model on the same inputs. Every round
makes new learners, so each fit compiles its program, as the first one of a user does; what the process keeps are small
operations, which both share. braintrace is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--threads", type=int, default=1, choices=(1, 2))
PARSER.add_argument("--rounds", type=int, default=3)
PARSER.add_argument("--json", help="file for the results")
OPTIONS = PARSER.parse_args()
if OPTIONS.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import brainstate  # noqa: E402  # after the flags
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import dni_synth  # noqa: E402
import etrace_engines  # noqa: E402

try:
    import braintrace
except ImportError:
    braintrace = None

warnings.simplefilter("ignore")

INPUTS, UNITS, BATCH, STEPS, WINDOW, EPOCHS, RATE = 4, 32, 16, 60, 5, 10, 0.05
GOAL = 5.0


class Leaky(brainstate.nn.Module):
    """h' = 0.8 h + 0.4 tanh(x win + h w), y = h' wout."""

    def __init__(self, matmul: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.matmul = matmul
        shapes = {"win": (INPUTS, UNITS), "w": (UNITS, UNITS), "wout": (UNITS, 1)}
        for seed, (name, shape) in enumerate(shapes.items()):
            values = np.random.default_rng(seed).normal(size=shape) / shape[0] ** 0.5
            setattr(self, name, brainstate.ParamState(jnp.asarray(values, jnp.float32)))

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        h = self.h.value
        self.h.value = 0.8 * h + 0.4 * jnp.tanh(self.matmul(x, self.win.value) + self.matmul(h, self.w.value))
        return self.h.value @ self.wout.value


def ours(xs: Any) -> Any:
    """Return a learner with an affine synthesiser."""
    learner = etrace_engines.compile(Leaky(jnp.matmul), dni_synth.DNI, xs[0], batch_size=BATCH)
    learner.attach(dni_synth.Affine())
    return learner


def theirs(xs: Any) -> Any:
    """Return braintrace's learner with its affine synthesiser."""
    synthesizer = braintrace.SyntheticGradient({0: (BATCH, UNITS, 1)})
    return braintrace.compile(
        Leaky(braintrace.matmul), braintrace.DNI, xs[0], batch_size=BATCH, synthesizer=synthesizer
    )


def measure(make: Callable[[Any], Any], fit: Callable[..., list[float]], xs: Any) -> tuple[float, list[float]]:
    """Return the seconds of one fit with its compilation, and its errors by epoch."""
    learner = make(xs)
    start = time.perf_counter()
    errors = fit(learner, xs, chunk_size=WINDOW, epochs=EPOCHS, lr=RATE)
    return time.perf_counter() - start, [float(error) for error in errors]


def main() -> None:
    """Print seconds, the median ratio of the same round, and the errors of the first and the last epoch."""
    xs = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUTS))
    contenders = {"dni-synth": (ours, dni_synth.train_synthetic_gradient)}
    if braintrace is not None:
        contenders["braintrace"] = (theirs, braintrace.train_synthetic_gradient)
    rounds = [{name: measure(*pair, xs) for name, pair in contenders.items()} for _ in range(OPTIONS.rounds)]
    seconds = {name: [found[name][0] for found in rounds] for name in contenders}
    size = f"{STEPS} steps in windows of {WINDOW}, batch {BATCH}, {UNITS} units, {EPOCHS} epochs"
    print(f"{size}, {OPTIONS.threads} thread(s), median of {OPTIONS.rounds} rounds")
    print(f"{'':12s}{'seconds':>9s}{'first error':>13s}{'last error':>12s}")
    for name, found in rounds[0].items():
        print(f"{name:12s}{statistics.median(seconds[name]):9.2f}{found[1][0]:13.6f}{found[1][-1]:12.6f}")
    results: dict[str, Any] = {"threads": OPTIONS.threads, "seconds": seconds}
    if braintrace is not None:
        pairs = zip(seconds["braintrace"], seconds["dni-synth"], strict=True)
        results["peer_to_ours"] = ratio = statistics.median(peer / own for peer, own in pairs)
        print(f"braintrace / dni-synth: {ratio:.1f} (goal: {GOAL:g})")
    if OPTIONS.json:
        with open(OPTIONS.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
