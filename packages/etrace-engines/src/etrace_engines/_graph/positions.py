"""Positions: which equations keep hidden state p at position p, and which positions an output element reaches.

`same_position` follows labels: each element of a variable carries the hidden position it comes from. Elementwise equations merge
equal labels, layout equations move them, and whatever else reads a label *joins positions*: under the diagonal scope it reads
the frozen past. `reach` is the map N(q) of a relation's outputs; identity where the tail is plainly elementwise, else probed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import JaxprEqn, Literal, bind
from .._ops import is_elementwise
from .groups import LAYOUT, HiddenGroup
from .lift import StepFunction
from .probe import structural_pattern
from .relations import Relation


def same_position(
    step: StepFunction, groups: Sequence[HiddenGroup], detached: frozenset[tuple[int, int]]
) -> tuple[list[bool], dict[int, frozenset[int]]]:
    """Find what the diagonal scope keeps.

    Returns
    -------
    live : list of bool
        Per hidden array: whether its new value depends on the entry values at its own positions, and on no others.
    freeze : dict
        Equation number -> operands that join positions.
    """
    live = [False] * len(step.hidden)
    freeze: dict[int, set[int]] = {}
    for group in groups:
        labels = _labels(step, groups, group, detached, freeze)
        new = step.closed.jaxpr.outvars[step.num_outputs :]
        for member, shape in zip(group.members, group.shapes, strict=True):
            label = None if isinstance(new[member], Literal) else labels.get(new[member])
            live[member] = label is not None and _is_identity(label, int(np.prod(shape)))
    return live, {index: frozenset(operands) for index, operands in freeze.items()}


def _labels(
    step: StepFunction,
    groups: Sequence[HiddenGroup],
    group: HiddenGroup,
    detached: frozenset[tuple[int, int]],
    freeze: dict[int, set[int]],
) -> dict[Any, np.ndarray]:
    jaxpr = step.closed.jaxpr
    first = step.num_args + len(step.params)
    labels: dict[Any, np.ndarray] = {
        jaxpr.invars[first + i]: np.arange(int(np.prod(shape))).reshape(shape)
        for i, shape in zip(group.members, group.shapes, strict=True)
    }
    new = jaxpr.outvars[step.num_outputs :]
    slabs = {new[i] for other in groups if other is not group for i in other.members if not isinstance(new[i], Literal)}
    for index, eqn in enumerate(jaxpr.eqns):
        ins = [None if isinstance(v, Literal) or v in slabs else labels.get(v) for v in eqn.invars]
        ins = [None if (index, k) in detached else label for k, label in enumerate(ins)]
        if all(label is None for label in ins):
            continue
        outs, frozen = _propagate(eqn, ins, int(np.prod(group.shape)))
        if frozen:
            freeze.setdefault(index, set()).update(frozen)
        labels.update({v: out for v, out in zip(eqn.outvars, outs, strict=True) if out is not None})
    return labels


def _propagate(eqn: JaxprEqn, ins: list[np.ndarray | None], size: int) -> tuple[list[np.ndarray | None], set[int]]:
    """Return the labels of the outputs, and the operands to freeze."""
    labelled = {k for k, label in enumerate(ins) if label is not None}
    if eqn.primitive.name in LAYOUT:
        operands = [np.full(v.aval.shape, -1) if label is None else label for v, label in zip(eqn.invars, ins, strict=True)]
        return [np.asarray(out) for out in bind(eqn, [jnp.asarray(x) for x in operands])], set()
    if not is_elementwise(eqn):
        return [None] * len(eqn.outvars), labelled
    shape = eqn.outvars[0].aval.shape
    spread = {k: np.broadcast_to(ins[k], shape) for k in labelled}  # type: ignore[arg-type]  # labelled are not None
    kept = set(labelled)
    if _conflict(list(spread.values())):
        kept = {k for k in labelled if _is_identity(spread[k], size)}
    if not kept:
        return [None] * len(eqn.outvars), labelled
    merged = np.max([spread[k] for k in kept], axis=0)
    return [merged] * len(eqn.outvars), labelled - kept


def _conflict(labels: Sequence[np.ndarray]) -> bool:
    highest = np.max(labels, axis=0)
    return any(bool(np.any((label >= 0) & (label != highest))) for label in labels)


def _is_identity(label: np.ndarray, size: int) -> bool:
    flat = label.ravel()
    return flat.size == size and bool(np.all((flat == np.arange(size)) | (flat == -1)))


def plainly_elementwise(
    step: StepFunction, relation: Relation, group: HiddenGroup, detached: frozenset[tuple[int, int]], slabs: frozenset[Any]
) -> bool:
    """Whether every path from the relation's output to the group is elementwise and of the group's shape."""
    jaxpr = step.closed.jaxpr
    start = jaxpr.eqns[relation.equation].outvars[0]
    targets = {jaxpr.outvars[step.num_outputs + i] for i in group.members if not isinstance(jaxpr.outvars[step.num_outputs + i], Literal)}
    needed = _ancestors(step, targets, slabs, detached)
    reached = {start} if start not in slabs else set()
    if start.aval.shape != group.shape:
        return False
    for index, eqn in enumerate(jaxpr.eqns[relation.equation + 1 :], relation.equation + 1):
        reads = any(v in reached and (index, k) not in detached for k, v in enumerate(eqn.invars) if not isinstance(v, Literal))
        if not reads or not any(v in needed for v in eqn.outvars):
            continue
        if not is_elementwise(eqn) or any(v.aval.shape != group.shape for v in eqn.outvars):
            return False
        reached.update(v for v in eqn.outvars if v not in slabs)
    return bool(reached & (targets | needed))


def _ancestors(step: StepFunction, targets: set[Any], slabs: frozenset[Any], detached: frozenset[tuple[int, int]]) -> set[Any]:
    found = set(targets)
    for index, eqn in reversed(list(enumerate(step.closed.jaxpr.eqns))):
        if any(v in found for v in eqn.outvars):
            found.update(
                v for k, v in enumerate(eqn.invars) if not isinstance(v, Literal) and v not in slabs and (index, k) not in detached
            )
    return found


def reach(
    taps_to_states: Callable[[Array], list[Array]], output_shape: tuple[int, ...], group: HiddenGroup, weights: Sequence[Array]
) -> np.ndarray | None:
    """Probe the map N(q) of one relation into one group.

    Parameters
    ----------
    taps_to_states : callable
        From a tap of the relation's shape to the new states of the group.
    output_shape : tuple of int
        Shape of the relation's output.

    Returns
    -------
    array of int, shape (slots, *output_shape), or None
        Flat positions in the group, batch included, -1 where an element reaches fewer; None where nothing is reached.
    """
    batch = group.batch_size
    by_row = batch is not None and output_shape[:1] == (batch,) and batch > 1
    row_shape = output_shape[1:] if by_row else output_shape

    def to_row(v: Array) -> Array:
        tap = v.reshape(row_shape)
        tap = jnp.zeros(output_shape, v.dtype).at[0].set(tap) if by_row else tap
        rows = group.rows(taps_to_states(tap))
        return (rows[:, 0] if by_row else rows).ravel()

    pattern = structural_pattern(to_row, jnp.zeros(int(np.prod(row_shape))), weights)
    pattern = pattern.reshape(group.num_states, -1, pattern.shape[1]).any(0)  # positions, outputs
    if not pattern.any():
        return None
    slots = to_slots(pattern).reshape(-1, *row_shape)
    if not by_row or batch is None:
        return slots
    width = int(np.prod(group.varshape))
    return np.stack([np.where(slots >= 0, slots + b * width, -1) for b in range(batch)], axis=1)


def to_slots(pattern: np.ndarray) -> np.ndarray:
    """List the rows of each column of a Boolean pattern: shape (slots, columns), padded with -1."""
    counts = pattern.sum(0)
    slots = np.full((int(counts.max(initial=0)), pattern.shape[1]), -1)
    rows, columns = np.nonzero(pattern)
    order = np.argsort(columns, kind="stable")
    rows, columns = rows[order], columns[order]
    starts = np.cumsum(counts) - counts
    slots[np.arange(rows.size) - starts[columns], columns] = rows
    return slots


def color_positions(maps: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Color hidden positions so that no two of one color are reached by the same output element: shape (size,)."""
    wide = [m.reshape(m.shape[0], -1) for m in maps if m.shape[0] > 1]
    if not wide:
        return np.zeros(size, int)
    rivals: list[set[int]] = [set() for _ in range(size)]
    for slots in wide:
        for column in {tuple(c[c >= 0].tolist()) for c in slots.T}:
            for p in column:
                rivals[p].update(column)
    colors = np.full(size, -1)
    for p in range(size):
        taken = {int(colors[r]) for r in rivals[p] if r != p}
        colors[p] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colors
