"""Slots: the hidden elements that a trace keeps per output element of its relation.

There are K blocks of S coupled elements. Arrays "at slots" have shape (K, S, *output shape), transitions (K, S, S,
*output shape). `BlockSlots` serves the diagonal and coupled scopes: a block is a hidden position with its states.
`NeighbourSlots` serves sparse_n: one block of all elements within n steps. Identity maps never gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._graph.groups import HiddenGroup


class Slots(Protocol):
    """What a trace needs to know about where its output elements lead."""

    @property
    def counts(self) -> tuple[int, int]:
        """Blocks K, and coupled elements S in each."""

    def signal(self, rows: Array) -> Array:
        """Read a group's signal, shape (S, *group shape), at the slots."""

    def transition(self, operator: Array) -> Array:
        """Read a group's transition at the slots."""

    def influence(self, df: Array) -> Array:
        """Move Df from the blocks of the position map to the slots."""


@dataclass(frozen=True)
class BlockSlots:
    """Blocks at the positions that an output element reaches; `positions` (K, *output shape), None for the identity."""

    num_states: int
    positions: np.ndarray | None

    @property
    def counts(self) -> tuple[int, int]:
        """Blocks K, and coupled elements S in each."""
        return (1 if self.positions is None else self.positions.shape[0]), self.num_states

    def signal(self, rows: Array) -> Array:
        """Read a group's signal, shape (S, *group shape), at the slots."""
        if self.positions is None:
            return rows[None]
        flat = rows.reshape(rows.shape[0], -1)
        return jnp.moveaxis(flat[:, np.maximum(self.positions, 0)], 1, 0)

    def transition(self, operator: Array) -> Array:
        """Read blocks D, shape (S, S, *group shape), at the slots."""
        if self.positions is None:
            return operator[None]
        flat = operator.reshape(*operator.shape[:2], -1)
        return jnp.moveaxis(flat[:, :, np.maximum(self.positions, 0)], 2, 0)

    def influence(self, df: Array) -> Array:
        """Return Df as it is."""
        return df


@dataclass(frozen=True)
class NeighbourSlots:
    """One block of hidden elements per output element.

    Parameters
    ----------
    group : HiddenGroup
        The group, with `batch_size` None where the output does not lead with the batch.
    elements : array of int, shape (M, *output shape without batch)
        Numbers of hidden elements within a batch row, states before positions; -1 where there are fewer than M.
    places : array of int, same shape
        Where each of them lies among the (K, S) blocks of the position map; -1 for those reached in later steps only.
    """

    group: HiddenGroup
    elements: np.ndarray
    places: np.ndarray

    @property
    def counts(self) -> tuple[int, int]:
        """Blocks K, and coupled elements S in each."""
        return 1, self.elements.shape[0]

    @property
    def _valid(self) -> Array:
        return jnp.asarray(self.elements >= 0)

    def signal(self, rows: Array) -> Array:
        """Read a group's signal, shape (S, *group shape), at the slots."""
        batch = self.group.batch_size or 1
        flat = jnp.moveaxis(rows.reshape(rows.shape[0], batch, -1), 0, 1).reshape(batch, -1)
        picked = jnp.where(self._valid, flat[:, np.maximum(self.elements, 0)], 0)  # batch, M, *output
        return self._batch_after_slots(picked, 1)[None]

    def transition(self, operator: Array) -> Array:
        """Read the full Jacobian, shape (batch or 1, S n, S n), at pairs of slots."""
        index = np.maximum(self.elements, 0)
        picked = operator[:, index[:, None], index[None, :]]
        picked = jnp.where(self._valid[:, None] & self._valid[None], picked, 0)
        return self._batch_after_slots(picked, 2)[None]

    def influence(self, df: Array) -> Array:
        """Move Df from the blocks of the position map to the slots."""
        flat = df.reshape(-1, *df.shape[2:])
        batched = self.group.batch_size is not None
        places = (
            np.broadcast_to(self.places[:, None], (self.places.shape[0], *flat.shape[1:])) if batched else self.places
        )
        picked = jnp.take_along_axis(flat, jnp.asarray(np.maximum(places, 0)), axis=0)
        return jnp.where(jnp.asarray(places >= 0), picked, 0)[None]

    def _batch_after_slots(self, x: Array, slots: int) -> Array:
        return jnp.moveaxis(x, 0, slots) if self.group.batch_size is not None else x[0]
