"""How far the model's parameters have moved since a fit, without a copy of them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ._concrete import numpy_for

PROJECTIONS = 4
# Elements of one array that are looked at, evenly spaced: a fit inside a training loop pays for them at every step.
SAMPLES = 4096


def parameter_digest(leaves: list[Any]) -> Any:
    """Return the norm and some fixed projections of a sample of each array, shape (arrays, 1 + PROJECTIONS)."""
    rows = []
    for leaf in leaves:
        xp = numpy_for(leaf)
        flat = xp.ravel(xp.asarray(leaf)).astype(np.float32)
        sample = flat[:: max(1, -(-flat.size // SAMPLES))]
        waves = np.cos(np.outer(np.arange(1, PROJECTIONS + 1), np.arange(1, sample.size + 1))).astype(np.float32)
        rows.append(xp.concatenate([xp.linalg.norm(sample)[None], waves @ sample]))
    return numpy_for(rows).stack(rows)


def current_digest(learner: Any) -> Any:
    """Return the digest of the model's parameters."""
    return parameter_digest(jax.tree.leaves([state.value for state in learner.param_states.values()]))


def movement(then: np.ndarray, now: np.ndarray) -> float:
    """Return by how much the parameters have moved, the largest share of an array's norm."""
    # A fixed projection with elements of mean square 1/2 measures a change of size d as about d / sqrt(2).
    moved = np.sqrt(2 * np.mean((now[:, 1:] - then[:, 1:]) ** 2, axis=1))
    return float(np.max(moved / np.maximum(then[:, 0], np.finfo(np.float32).tiny)))
