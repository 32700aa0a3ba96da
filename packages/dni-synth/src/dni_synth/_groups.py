"""Which hidden states a synthesiser sees together, and in what shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from ._protocol import GroupShape

# A value may be a physical quantity; `Any` stands for "array or quantity", a pytree with one array as its leaf.
Path = tuple[Any, ...]
Values = Mapping[Path, Any]


@dataclass(frozen=True)
class Group:
    """States of one shape that a synthesiser maps together, stacked along the feature axis.

    Parameters
    ----------
    name : str
        Key of the group in everything that a synthesiser takes and returns: its state paths joined by ``+``.
    paths : tuple of path
        Keys of the states, in the order in which they are stacked.
    varshape : tuple of int
        Shape of one state of one batch element.
    dtype : dtype
        Of the hidden values and the estimates.
    """

    name: str
    paths: tuple[Path, ...]
    varshape: tuple[int, ...]
    dtype: Any  # a NumPy dtype or a JAX extended one; they share no public base

    @property
    def shape(self) -> GroupShape:
        """The shape that a synthesiser sees, without batch axes."""
        features = math.prod(self.varshape[-1:]) * len(self.paths)
        return GroupShape(positions=self.varshape[:-1], features=features, dtype=self.dtype)

    def batch_shape(self, values: Values) -> tuple[int, ...]:
        """Return the batch axes of the states: ``(batch,)``, or ``()`` for an unbatched learner."""
        leaf = leaf_of(values[self.paths[0]])
        return tuple(leaf.shape[: leaf.ndim - len(self.varshape)])

    def gather(self, values: Values) -> jax.Array:
        """Stack the states into ``(*batch, *positions, features)``."""
        stacked = jnp.stack([leaf_of(values[path]) for path in self.paths], axis=-1)
        shape = self.shape
        return stacked.reshape(*self.batch_shape(values), *shape.positions, shape.features)

    def scatter(self, estimate: jax.Array, values: Values) -> dict[Path, Any]:
        """Undo `gather`: cut an estimate into one value per path, shaped like the states in `values`."""
        stacked = estimate.reshape(*self.batch_shape(values), *self.varshape, len(self.paths))
        return {
            path: jax.tree.unflatten(jax.tree.structure(values[path]), [stacked[..., index]])
            for index, path in enumerate(self.paths)
        }


def leaf_of(value: Any) -> jax.Array:
    """Return the one array inside a state's value."""
    leaf: jax.Array = jax.tree.leaves(value)[0]
    return leaf


def name_of_path(path: Path) -> str:
    """Return a path as dotted text."""
    return ".".join(map(str, path))


def named(paths: tuple[Path, ...], varshape: tuple[int, ...], dtype: Any) -> Group:
    """Return a group with the name that its paths give."""
    return Group("+".join(map(name_of_path, paths)), paths, varshape, dtype)


def hidden_groups(learner: Any) -> tuple[Group, ...]:
    """Return the hidden groups of a compiled learner; the states of a joint group, of several shapes, one by one."""
    found = []
    for group in learner.groups:
        batch_axes = 0 if group.batch_size is None else 1
        dtype = leaf_of(learner.hidden_states[group.paths[0]].value).dtype
        if group.joint:
            shapes = zip(group.paths, group.shapes, strict=True)
            found += [named((path,), tuple(shape[batch_axes:]), dtype) for path, shape in shapes]
        else:
            found.append(named(tuple(group.paths), tuple(group.varshape), dtype))
    return tuple(found)


def other_groups(states: Mapping[Path, brainstate.State], batch: tuple[int, ...]) -> tuple[Group, ...]:
    """Return one group for each carried state that is not hidden and has the batch axes of the hidden ones."""
    leaves = {path: leaf_of(state.value) for path, state in states.items()}
    return tuple(
        named((path,), tuple(leaf.shape[len(batch) :]), leaf.dtype)
        for path, leaf in leaves.items()
        if leaf.shape[: len(batch)] == batch
    )
