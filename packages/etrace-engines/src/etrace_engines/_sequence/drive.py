"""What the sequence drivers share: checking sequences, and a step function turned into a pure one over states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from .._data import MultiStepData


@dataclass(frozen=True)
class PureStep:
    """A step function over states as a pure function: (values, slices) -> (values, output)."""

    states: tuple[Any, ...]
    written: tuple[bool, ...]
    call: Callable[[list[Any], Sequence[Any]], tuple[list[Any], Any]]

    def values(self) -> list[Any]:
        """Return what the states hold now."""
        return [state.value for state in self.states]

    def write(self, values: Sequence[Any]) -> None:
        """Set the states."""
        for state, value in zip(self.states, values, strict=True):
            state.value = value


@dataclass(frozen=True)
class Task:
    """What is differentiated: a step function over sequences, mask and weights, `size` steps a call."""

    step_fn: Callable[..., Any]
    sequences: tuple[Any, ...]
    mask: Array
    weights: Mapping[Any, Any]
    size: int
    has_aux: bool

    def split(self, out: Any) -> tuple[Array, Any]:
        """Split the step function's result into loss and auxiliary output, and check the loss."""
        loss, aux = out if self.has_aux else (out, None)
        check_loss(loss, self.size)
        return loss, aux


def purify(step_fn: Callable[..., Any], slices: Sequence[Any], extra: Sequence[Any] = ()) -> PureStep:
    """Trace a step function once, and make it pure over the states that it reads and writes, `extra` included."""
    lifted = brainstate.transform.StatefulFunction(step_fn, return_only_write=False)
    lifted.make_jaxpr(*slices)
    found = list(lifted.get_states(*slices))
    states = tuple({id(s): s for s in [*found, *extra]}.values())
    changed = {id(s) for s in lifted.get_write_states(*slices)}

    def call(values: list[Any], inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        after, out = lifted.jaxpr_call(values[: len(found)], *inputs)
        return [*after, *values[len(found) :]], out

    return PureStep(states, tuple(id(s) in changed for s in states), call)


def sequence_length(sequences: Sequence[Any]) -> int:
    """Check that the sequences share a leading length, and return it.

    Raises
    ------
    TypeError
        If a sequence is wrapped in `MultiStepData`.
    ValueError
        If there is no sequence, or lengths differ, or the length is 0.
    """
    if not sequences:
        raise ValueError(
            "At least one sequence is needed, as a positional argument, to know the number of steps; got none."
        )
    if any(isinstance(s, MultiStepData) for s in sequences):
        raise TypeError(
            "Sequences are plain arrays with time leading, not `MultiStepData`; wrap the slices inside `step_fn`."
        )
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tuple(sequences))}
    if len(lengths) != 1 or lengths == {()} or lengths == {(0,)}:
        raise ValueError(f"All arrays of the sequences need one leading length of at least 1, got {sorted(lengths)}.")
    return int(next(iter(lengths))[0])


def check_chunk(chunk_size: Any, length: int, vjp_method: str) -> int:
    """Return the number of steps per call of the step function.

    Raises
    ------
    TypeError
        If `chunk_size` is neither None nor an int.
    ValueError
        If it is below 1, does not divide the length, or a window meets a single-step learner.
    """
    if chunk_size is None:
        return 1
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"`chunk_size` must be an int or None, got {type(chunk_size).__name__}.")
    if chunk_size < 1:
        raise ValueError(f"`chunk_size={chunk_size}` must be at least 1.")
    if chunk_size > 1 and vjp_method != "multi-step":
        raise ValueError(
            f"`chunk_size={chunk_size}` drives windows, which need `vjp_method='multi-step'`, got {vjp_method!r}."
        )
    if length % chunk_size:
        trimmed = length - length % chunk_size
        raise ValueError(
            f"`chunk_size={chunk_size}` does not divide the sequence length {length}; "
            f"trim the sequences to {trimmed} steps."
        )
    return chunk_size


def to_chunks(sequences: Sequence[Any], size: int) -> tuple[Any, ...]:
    """Split the leading axis: (time, ...) -> (time / size, size, ...); size 1 leaves it."""
    if size == 1:
        return tuple(sequences)
    return tuple(jax.tree.map(lambda x: jnp.reshape(x, (-1, size, *jnp.shape(x)[1:])), list(sequences)))


def first_slices(sequences: Sequence[Any]) -> tuple[Any, ...]:
    """Return the first slice of each sequence."""
    return tuple(jax.tree.map(lambda x: jnp.asarray(x)[0], list(sequences)))


def add_trees(a: Any, b: Any) -> Any:
    """Add two pytrees of arrays."""
    return jax.tree.map(lambda x, y: x + y, a, b)


def scale_tree(tree: Any, factor: Array) -> Any:
    """Multiply a pytree of arrays by a number."""
    return jax.tree.map(lambda x: (x * factor).astype(x.dtype), tree)


def check_loss(loss: Any, size: int) -> None:
    """Check the shape of what a step function returns."""
    expected = () if size == 1 else (size,)
    if jnp.shape(loss) != expected:
        what = "a scalar" if size == 1 else f"one loss per step of the window, shape ({size},)"
        raise ValueError(f"`step_fn` must return {what}, got shape {jnp.shape(loss)}.")
