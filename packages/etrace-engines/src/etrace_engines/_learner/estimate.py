"""Estimates of the gradient of what comes after a window, for the states at its exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import is_float
from .._graph.lift import Path, StateLeaf

ExitEstimator = Callable[[dict[Path, Any]], dict[Path, Any] | None]


def exit_cotangents(
    estimator: ExitEstimator | None, leaves: Sequence[StateLeaf], values: Sequence[Array]
) -> list[Array]:
    """Ask an estimator for cotangents, by path of single-array states; zero where it has none."""
    zeros = [jnp.zeros_like(v) if is_float(v) else _float0(v) for v in values]
    found = (estimator({leaf.path: v for leaf, v in zip(leaves, values, strict=True)}) or {}) if estimator else {}
    return [
        jax.lax.stop_gradient(jnp.asarray(found[leaf.path], v.dtype)) if leaf.path in found else zero
        for leaf, v, zero in zip(leaves, values, zeros, strict=True)
    ]


def _float0(x: Array) -> Any:
    return np.zeros(x.shape, jax.dtypes.float0)
