"""Learning signals: what meets the trace in place of dL/dh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from etrace_config import ETraceConfig

from .._compat import aval, is_float
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .step import Signal

ErrorSignal = Literal["hidden", "output"]


def make_signal(graph: Graph, config: ETraceConfig, error_signal: ErrorSignal, key: Array) -> Signal | None:
    """Return the map from a step's true signal to what meets the trace; None where they are the same."""
    if config.learning_signal == "modulatory":
        return lambda signal, modulator, errors: expand_modulator(modulator, graph.groups, signal)
    if config.learning_signal != "random_feedback":
        return None
    if error_signal == "hidden":
        square = _matrices(graph.groups, [math.prod(g.varshape) for g in graph.groups], key)
        return lambda signal, modulator, errors: project(graph.groups, signal, square)
    outputs = graph.step.closed.jaxpr.outvars[: graph.step.num_outputs]
    width = sum(aval(v).size for v in outputs if is_float(aval(v)))
    from_output = _matrices(graph.groups, [width // (g.batch_size or 1) for g in graph.groups], key)
    return lambda signal, modulator, errors: broadcast_error(graph.groups, signal, errors, from_output)


def _matrices(groups: Sequence[HiddenGroup], widths: Sequence[int], key: Array) -> list[Array]:
    """Draw a fixed random matrix per group: shape (n, width), entries N(0, 1/width), n positions of a batch element."""
    keys = jax.random.split(key, len(groups))
    sizes = [(math.prod(g.varshape), width) for g, width in zip(groups, widths, strict=True)]
    return [jax.random.normal(k, size) / math.sqrt(size[1]) for k, size in zip(keys, sizes, strict=True)]


def project(groups: Sequence[HiddenGroup], signal: Sequence[Array], matrices: Sequence[Array]) -> list[Array]:
    """Project each group's signal through its matrix, alike for all states: B L."""
    projected: list[Array] = []
    for group, rows, matrix in zip(groups, signal, matrices, strict=True):
        flat = rows.reshape(group.num_states, -1, matrix.shape[1])
        projected.append((flat @ matrix.T.astype(rows.dtype)).reshape(rows.shape))
    return projected


def broadcast_error(
    groups: Sequence[HiddenGroup], signal: Sequence[Array], errors: Sequence[Array], matrices: Sequence[Array]
) -> list[Array]:
    """Send the error at the output to each group through its matrix, alike for all states: B dL/dy."""
    floats = [e for e in errors if e.dtype != jax.dtypes.float0]
    sent: list[Array] = []
    for group, rows, matrix in zip(groups, signal, matrices, strict=True):
        flat = jnp.concatenate([e.reshape(group.batch_size or 1, -1) for e in floats], axis=-1)
        reached = (flat.astype(rows.dtype) @ matrix.T.astype(rows.dtype)).reshape(group.shape)
        sent.append(jnp.broadcast_to(reached, rows.shape))
    return sent


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
