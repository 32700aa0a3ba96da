"""Learning signals: what meets the trace in place of dL/dh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.groups import HiddenGroup


def feedback_matrices(groups: Sequence[HiddenGroup], key: Array) -> list[Array]:
    """Draw a fixed random matrix per group: shape (n, n), entries N(0, 1/n), for n positions of one batch element."""
    sizes = [math.prod(g.varshape) for g in groups]
    keys = jax.random.split(key, len(groups))
    return [jax.random.normal(k, (n, n)) / math.sqrt(n) for k, n in zip(keys, sizes, strict=True)]


def project(groups: Sequence[HiddenGroup], signal: Sequence[Array], matrices: Sequence[Array]) -> list[Array]:
    """Project each group's signal through its matrix, alike for all states: B L."""
    projected: list[Array] = []
    for group, rows, matrix in zip(groups, signal, matrices, strict=True):
        flat = rows.reshape(group.num_states, -1, matrix.shape[0])
        projected.append((flat @ matrix.T.astype(rows.dtype)).reshape(rows.shape))
    return projected


def expand_modulator(modulator: Any, groups: Sequence[HiddenGroup], like: Sequence[Array]) -> list[Array]:
    """Expand a modulator to every group's signal.

    A scalar reaches everything alike; shape (batch,) each batch element; shape (n,) = varshape each unit; the group's
    full shape each element. It fits all groups or none, and a shape that fits in two ways is refused.
    """
    value = jnp.asarray(modulator)
    return [_expand_to(value, group, rows) for group, rows in zip(groups, like, strict=True)]


def _expand_to(value: Array, group: HiddenGroup, rows: Array) -> Array:
    readings: dict[str, tuple[int, ...]] = {"one value": (), "per unit": group.varshape, "full": group.shape}
    if group.batch_size is not None:
        readings["per sample"] = (group.batch_size,)
    found = {tuple(shape) for shape in readings.values() if value.shape == tuple(shape)}
    names = [name for name, shape in readings.items() if value.shape == tuple(shape)]
    if not found:
        allowed = ", ".join(f"{shape} ({name})" for name, shape in readings.items())
        raise ValueError(
            f"`modulator` has shape {value.shape}, which fits no reading for hidden group "
            f"{group.index}; allowed are {allowed}."
        )
    if {"per unit", "per sample"} <= set(names):
        raise ValueError(
            f"`modulator` of shape {value.shape} could be per sample or per unit of hidden group "
            f"{group.index}, since both count {value.shape[0]}; pass the full shape {group.shape}."
        )
    if names[0] == "per sample":
        value = value.reshape(value.shape + (1,) * len(group.varshape))
    return jnp.broadcast_to(value, rows.shape).astype(rows.dtype)
