"""Reading and writing the arrays that states hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import brainstate
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


def initialise_in_place(model: Any, leaves: Sequence[StateLeaf], batch_size: int) -> None:
    """Initialise a model's states for a batch size, and keep the state objects of the leaves."""
    brainstate.nn.init_all_states(model, batch_size=batch_size)
    fresh = model.states()
    for leaf in leaves:
        if leaf.path in fresh and fresh[leaf.path] is not leaf.state:
            leaf.state.value = fresh[leaf.path].value
            _put(model, leaf.path, leaf.state)


def _put(model: Any, path: Sequence[Any], state: Any) -> None:
    *parents, name = path
    owner = model
    for key in parents:
        owner = getattr(owner, key) if isinstance(key, str) and hasattr(owner, key) else owner[key]
    if isinstance(name, str) and hasattr(owner, name):
        setattr(owner, name, state)
    else:
        owner[name] = state
