"""Positions: which equations keep hidden state p at position p, and which positions an output element reaches.

`same_position` follows labels: each element of a variable carries the hidden position it comes from. Elementwise
equations merge equal labels, layout equations move them, and whatever else reads a label *joins positions*: under the
diagonal scope it reads the frozen past. `reach` is the map N(q) of a relation's outputs; identity where the tail is
plainly elementwise, else probed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jax import Array

from .._compat import JaxprEqn, Literal, aval
from .._ops import is_elementwise
from .groups import HiddenGroup
from .layout import LAYOUT, move_elements
from .lift import StepFunction
from .probe import structural_pattern


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
    new = step.closed.jaxpr.outvars[step.num_outputs :]
    for group in groups:
        start = entry_labels(step, group, range(len(group.members)))
        labels, joins = follow_labels(step, start, slabs_of(step, groups, group), detached, group.num_positions)
        for index, operands in joins.items():
            freeze.setdefault(index, set()).update(operands)
        for member, shape in zip(group.members, group.shapes, strict=True):
            label = None if isinstance(new[member], Literal) else labels.get(new[member])
            live[member] = label is not None and is_identity(label, int(np.prod(shape)))
    return live, {index: frozenset(operands) for index, operands in freeze.items()}


def entry_labels(step: StepFunction, group: HiddenGroup, members: Iterable[int]) -> dict[Any, np.ndarray]:
    """Label the entry values of some of a group's members with their own positions."""
    old = step.closed.jaxpr.invars[step.num_args + len(step.params) :]
    label = lambda shape: np.arange(int(np.prod(shape))).reshape(shape)
    return {old[group.members[k]]: label(group.shapes[k]) for k in members}


def slabs_of(step: StepFunction, groups: Sequence[HiddenGroup], group: HiddenGroup) -> frozenset[Any]:
    """Return the new states of all other groups."""
    new = step.closed.jaxpr.outvars[step.num_outputs :]
    others = (new[i] for other in groups if other.index != group.index for i in other.members)
    return frozenset(v for v in others if not isinstance(v, Literal))


def follow_labels(
    step: StepFunction,
    start: dict[Any, np.ndarray],
    slabs: frozenset[Any],
    detached: frozenset[tuple[int, int]],
    size: int,
) -> tuple[dict[Any, np.ndarray], dict[int, set[int]]]:
    """Follow labels through the step: those of every variable that has some, and the operands that join positions."""
    labels = dict(start)
    joins: dict[int, set[int]] = {}
    for index, eqn in enumerate(step.closed.jaxpr.eqns):
        ins = [None if isinstance(v, Literal) or v in slabs else labels.get(v) for v in eqn.invars]
        ins = [None if (index, k) in detached else label for k, label in enumerate(ins)]
        if all(label is None for label in ins):
            continue
        outs, frozen = _propagate(eqn, ins, size)
        if frozen:
            joins[index] = frozen
        labels.update({v: out for v, out in zip(eqn.outvars, outs, strict=True) if out is not None})
    return labels, joins


def _propagate(eqn: JaxprEqn, ins: list[np.ndarray | None], size: int) -> tuple[list[np.ndarray | None], set[int]]:
    """Return the labels of the outputs, and the operands to freeze."""
    labelled = {k for k, label in enumerate(ins) if label is not None}
    if eqn.primitive.name in LAYOUT:
        operands = [
            np.full(aval(v).shape, -1) if label is None else label for v, label in zip(eqn.invars, ins, strict=True)
        ]
        return list(move_elements(eqn, operands)), set()
    if not is_elementwise(eqn):
        return [None] * len(eqn.outvars), labelled
    shape = aval(eqn.outvars[0]).shape
    spread = {k: np.broadcast_to(ins[k], shape) for k in labelled}  # type: ignore[arg-type]  # labelled are not None
    kept = set(labelled)
    if _conflict(list(spread.values())):
        kept = {k for k in labelled if is_identity(spread[k], size)}
    if not kept:
        return [None] * len(eqn.outvars), labelled
    merged = np.max([spread[k] for k in kept], axis=0)
    return [merged] * len(eqn.outvars), labelled - kept


def _conflict(labels: Sequence[np.ndarray]) -> bool:
    highest = np.max(labels, axis=0)
    return any(bool(np.any((label >= 0) & (label != highest))) for label in labels)


def is_identity(label: np.ndarray, size: int) -> bool:
    """Whether each element is labelled with its own position, or not at all."""
    flat = label.ravel()
    return flat.size == size and bool(np.all((flat == np.arange(size)) | (flat == -1)))


def plainly_elementwise(
    step: StepFunction,
    equation: int,
    group: HiddenGroup,
    needed: set[Any],
    slabs: frozenset[Any],
    detached: frozenset[tuple[int, int]],
) -> bool:
    """Whether every path from an equation's output to the group is elementwise and of the group's shape.

    `needed` are the variables that the group's new states depend on.
    """
    eqns = step.closed.jaxpr.eqns
    start = eqns[equation].outvars[0]
    if start.aval.shape != group.shape:
        return False
    reached = {start} - slabs
    for index, eqn in enumerate(eqns[equation + 1 :], equation + 1):
        reads = any(
            v in reached and (index, k) not in detached for k, v in enumerate(eqn.invars) if not isinstance(v, Literal)
        )
        if not reads or not any(v in needed for v in eqn.outvars):
            continue
        if not is_elementwise(eqn) or any(v.aval.shape != group.shape for v in eqn.outvars):
            return False
        reached.update(v for v in eqn.outvars if v not in slabs)
    return True


def ancestors(
    step: StepFunction, targets: set[Any], slabs: frozenset[Any], detached: frozenset[tuple[int, int]]
) -> set[Any]:
    """Return the variables that the targets depend on, other than through slabs and detached operands."""
    found = set(targets)
    for index, eqn in reversed(list(enumerate(step.closed.jaxpr.eqns))):
        if any(v in found for v in eqn.outvars):
            found.update(
                v
                for k, v in enumerate(eqn.invars)
                if not isinstance(v, Literal) and v not in slabs and (index, k) not in detached
            )
    return found


def reach(
    taps_to_states: Callable[[dict[int, Array]], list[Array]],
    taps: dict[int, Any],
    group: HiddenGroup,
    weights: Sequence[Array],
) -> dict[int, np.ndarray | None]:
    """Probe the maps N(q) of relations into one group, all at once.

    Parameters
    ----------
    taps_to_states : callable
        From taps to the new states of the group.
    taps : dict of equation number to array
        A tap of the output's shape for each relation.

    Returns
    -------
    dict of equation number to array of int, shape (slots, *output shape), or None
        Flat positions in the group, batch included, -1 where an element reaches fewer; no entry where nothing is
        reached. None where the output does not lead with the group's batch axis, whatever the axis' size: probe it
        again with a group that has none.
    """
    batch = group.batch_size

    def first_row(taps: dict[int, Array]) -> Array:
        rows = group.rows(taps_to_states(taps))
        return (rows if batch is None else rows[:, 0]).ravel()

    patterns = dict(zip(sorted(taps), structural_pattern(first_row, taps, weights), strict=True))
    found: dict[int, np.ndarray | None] = {}
    for equation, pattern in patterns.items():
        shape = taps[equation].shape
        by_position: np.ndarray = np.any(pattern.reshape(group.num_states, -1, pattern.shape[1]), axis=0)
        if not by_position.any():
            continue
        if batch is None:
            found[equation] = to_slots(by_position).reshape(-1, *shape)
            continue
        by_row = by_position.reshape(by_position.shape[0], batch, -1) if shape[:1] == (batch,) else None
        leads = by_row is not None and not by_row[:, 1:].any()
        own = None if by_row is None else to_slots(by_row[:, 0]).reshape(-1, *shape[1:])
        found[equation] = _all_rows(own, group) if leads and own is not None else None
    return found


def _all_rows(slots: np.ndarray, group: HiddenGroup) -> np.ndarray:
    """Repeat slots found within batch row 0 for every row."""
    batch = group.batch_size or 1
    return np.stack([np.where(slots >= 0, slots + b * group.width, -1) for b in range(batch)], axis=1)


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
