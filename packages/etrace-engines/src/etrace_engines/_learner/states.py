"""Reading and writing the arrays that states hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.lift import StateLeaf


def read_states(leaves: Sequence[StateLeaf]) -> list[Array]:
    """Return the arrays, in the order of the leaves."""
    return [jnp.asarray(jax.tree.leaves(leaf.state.value)[leaf.index]) for leaf in leaves]


def write_states(leaves: Sequence[StateLeaf], values: Sequence[Array]) -> None:
    """Set states from their arrays; the leaves of one state are adjacent."""
    by_state: dict[int, tuple[Any, list[Array]]] = {}
    for leaf, value in zip(leaves, values, strict=True):
        by_state.setdefault(id(leaf.state), (leaf.state, []))[1].append(value)
    for state, arrays in by_state.values():
        state.value = jax.tree.unflatten(jax.tree.structure(state.value), arrays)
