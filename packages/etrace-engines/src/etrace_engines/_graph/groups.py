"""Hidden groups: hidden states of one shape that are coupled position by position (V and a of an adaptive neuron)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import Literal as JaxprLiteral
from .._compat import is_float
from .._ops import is_elementwise
from .layout import LAYOUT
from .lift import Path, StepFunction
from .relations import Cone


@dataclass(frozen=True)
class HiddenGroup:
    """Hidden states that share a trace.

    Attributes
    ----------
    index : int
        Number of the group in `learner.groups`.
    members : tuple of int
        Numbers of the hidden arrays in the step function, in the order of the states.
    paths : tuple of tuple
        Paths of the states in the model.
    shapes : tuple of tuple of int
        Shape of each member, batch axis included; equal unless the group is joint.
    joint : bool
        Whether the states lie side by side, as positions of one state, instead of on top of each other.
    layout_batch : int or None
        Batch size by which a joint group lays its states out; it stays when `batch_size` is dropped.
    batch_size : int or None
        Size of the leading batch axis; None for an unbatched learner.
    """

    index: int
    members: tuple[int, ...]
    paths: tuple[Path, ...]
    shapes: tuple[tuple[int, ...], ...]
    batch_size: int | None
    joint: bool = False
    layout_batch: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one state, batch axis included; of the concatenated states for a joint group."""
        if not self.joint:
            return self.shapes[0]
        sizes = sum(math.prod(shape) for shape in self.shapes)
        return (sizes,) if self.batch_size is None else (self.batch_size, sizes // self.batch_size)

    @property
    def varshape(self) -> tuple[int, ...]:
        """Shape of one state, without the batch axis."""
        return self.shape if self.batch_size is None else self.shape[1:]

    @property
    def num_states(self) -> int:
        """Number of states at each position; one for a joint group, whose states lie side by side."""
        return 1 if self.joint else len(self.members)

    @property
    def num_positions(self) -> int:
        """Number of positions, batch included."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Number of positions of one batch row."""
        return self.num_positions // (self.batch_size or 1)

    def rows(self, arrays: Sequence[Array]) -> Array:
        """Stack one array per member to shape (states, *shape)."""
        if not self.joint:
            return jnp.stack(arrays)
        batch = self.layout_batch or 1
        side_by_side = jnp.concatenate([a.reshape(batch, -1) for a in arrays], axis=-1)
        return side_by_side.reshape(1, *self.shape)

    def unstack(self, rows: Array) -> list[Array]:
        """Undo `rows`."""
        if not self.joint:
            return list(rows)
        batch = self.layout_batch or 1
        ends = np.cumsum([math.prod(shape) // batch for shape in self.shapes])[:-1]
        parts = jnp.split(rows.reshape(batch, -1), ends, axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def find_groups(
    step: StepFunction, cone: Cone, batch_size: int | None, hidden_groups: Literal["auto", "joint"]
) -> tuple[HiddenGroup, ...]:
    """Partition the hidden arrays into groups."""
    joint = hidden_groups == "joint" and bool(step.hidden)
    parts = [list(range(len(step.hidden)))] if joint else _coupled(step, cone)
    shape = lambda i: tuple(step.closed.jaxpr.outvars[step.num_outputs + i].aval.shape)
    return tuple(
        HiddenGroup(
            k,
            tuple(part),
            tuple(step.hidden[i].path for i in part),
            tuple(map(shape, part)),
            batch_size,
            joint,
            batch_size,
        )
        for k, part in enumerate(parts)
    )


def _coupled(step: StepFunction, cone: Cone) -> list[list[int]]:
    """Union the hidden arrays of one shape that reach each other through elementwise and layout equations."""
    jaxpr = step.closed.jaxpr
    count = len(step.hidden)
    old = jaxpr.invars[step.num_args + len(step.params) :][:count]
    new = jaxpr.outvars[step.num_outputs :][:count]
    owner: dict[Any, int] = {v: i for i, v in enumerate(old)}
    owner |= {v: i for i, v in enumerate(new) if not isinstance(v, JaxprLiteral) and v not in owner}
    producer = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    parent = list(range(count))
    for i, start in enumerate(new):
        if isinstance(start, JaxprLiteral):
            continue
        for j in _reached(start, owner, producer):
            if old[i].aval.shape == old[j].aval.shape and is_float(old[i].aval) and is_float(old[j].aval):
                parent = [parent[i] if p == parent[j] else p for p in parent]
    return [[i for i in range(count) if parent[i] == root] for root in dict.fromkeys(parent)]


def _reached(start: Any, owner: dict[Any, int], producer: dict[Any, Any]) -> Iterable[int]:
    """Yield the hidden arrays (old or new) that `start` reads position by position."""
    todo, seen = [start], {start}
    while todo:
        v = todo.pop()
        if v in owner:
            yield owner[v]
        if v is not start and v in owner:
            continue
        eqn = producer.get(v)
        if eqn is None or not (eqn.primitive.name in LAYOUT or is_elementwise(eqn)):
            continue
        fresh = [u for u in eqn.invars if not isinstance(u, JaxprLiteral) and u not in seen]
        seen.update(fresh)
        todo.extend(fresh)
