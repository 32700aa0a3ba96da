"""A sequence cut into windows, and the program that one window runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import etrace_engines as ee

from ._concrete import numpy_for
from ._groups import Path
from ._window import Boundary

ContextFn = Callable[..., jax.Array]


@dataclass(frozen=True)
class Windows:
    """Time-first sequences cut into windows, with everything that belongs to each window stacked in front.

    Parameters
    ----------
    slices : tuple of pytree, leaves of shape (windows, steps, ...), or (windows, ...) for single steps
        What `step_fn` gets.
    weights : Array, shape (windows, steps)
        Weight of each step's loss.
    live : Array, shape (windows, *batch)
        0 where nothing follows the window's exit.
    step_fn : callable
        Runs the learner and returns the losses.
    context_fn : callable, optional
        Returns the context at a window's exit from its slices.
    steps : int, optional
        Window length; None for single steps.
    has_aux : bool
        Whether `step_fn` returns a pair.
    scalar : bool
        Whether it returns one loss for the whole window.
    """

    slices: tuple[Any, ...]
    weights: jax.Array
    live: jax.Array
    step_fn: Callable[..., Any]
    context_fn: ContextFn | None
    steps: int | None
    has_aux: bool = False
    scalar: bool = False

    @property
    def inputs(self) -> tuple[Any, jax.Array, jax.Array]:
        """What a loop over the windows runs on."""
        return self.slices, self.weights, self.live

    def boundary(self, slices: tuple[Any, ...], live: jax.Array) -> Boundary:
        """Return what is known at the exit of one window."""
        context = None if self.context_fn is None else jnp.asarray(self.context_fn(*slices))
        return Boundary(context, live)

    def merged(self) -> Windows:
        """Return the same sequence as a single window."""
        flat = [jax.tree.map(lambda a: a.reshape(1, -1, *a.shape[2 if self.steps else 1 :]), s) for s in self.slices]
        total = self.weights.size
        return Windows(
            tuple(flat), self.weights.reshape(1, total), self.live[-1:], self.step_fn, None, total, self.has_aux
        )


def cut(
    sequences: tuple[Any, ...],
    step_fn: Callable[..., Any],
    batch_shape: tuple[int, ...],
    *,
    chunk_size: int | None = None,
    mask: Any = None,
    done: Any = None,
    context_fn: ContextFn | None = None,
    has_aux: bool = False,
) -> Windows:
    """Check sequences and cut them into windows of `chunk_size` steps."""
    if not sequences:
        raise ValueError("`etrace_grad` needs at least one time-first sequence.")
    length = sequence_length(sequences)
    size = 1 if chunk_size is None else chunk_size
    check_chunks(length, size)
    count = length // size
    lead = (count,) if size == 1 else (count, size)
    slices = tuple(jax.tree.map(lambda a: jnp.reshape(a, (*lead, *jnp.shape(a)[1:])), s) for s in sequences)
    step_weights = step_weights_of(mask, length).reshape(count, size)
    live = live_boundaries(done, step_weights, batch_shape)
    return Windows(slices, step_weights, live, step_fn, context_fn, None if size == 1 else size, has_aux)


def sequence_length(sequences: tuple[Any, ...]) -> int:
    """Return the common length of the sequences."""
    lengths = {int(np.shape(leaf)[0]) for leaf in jax.tree.leaves(sequences) if np.ndim(leaf)}
    if len(lengths) != 1 or any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(sequences)):
        raise ValueError(f"`sequences` must be time-first arrays of one length, got lengths {sorted(lengths)}.")
    return lengths.pop()


def check_chunks(length: int, chunk_size: int) -> None:
    """Refuse a window length that does not divide the sequence."""
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be at least 1, got {chunk_size}.")
    if length == 0 or length % chunk_size:
        trimmed = length - length % chunk_size
        raise ValueError(
            f"`chunk_size` must divide the sequence length, got chunk_size={chunk_size} and {length} steps. "
            f"Trim the sequence to {trimmed} steps or choose another `chunk_size`."
        )


def step_weights_of(mask: Any, length: int) -> Any:
    """Return the weight of each step's loss, shape (time,)."""
    dtype = jnp.result_type(float)
    if mask is None:
        return np.ones(length, dtype)
    if np.shape(mask) != (length,):
        raise ValueError(f"`mask` must have shape ({length},), one weight per step, got {np.shape(mask)}.")
    given = numpy_for(mask).asarray(mask)
    return given if jnp.issubdtype(given.dtype, jnp.floating) else given.astype(dtype)


def live_boundaries(done: Any, weights: Any, batch_shape: tuple[int, ...]) -> Any:
    """Return 1 at the boundaries that something follows; by default where a later step has a weight."""
    count = weights.shape[0]
    if done is None:
        xp = numpy_for(weights)
        some = xp.any(weights != 0, axis=1)
        # Counted from the end; what comes after window k is what the windows from k + 1 on have.
        from_here = xp.cumsum(some[::-1])[::-1]
        later = xp.concatenate([from_here[1:] > 0, xp.zeros(1, bool)])
    else:
        if np.shape(done) not in {(count,), (count, *batch_shape)}:
            raise ValueError(
                f"`done` must have one row per window, shape ({count},) or {(count, *batch_shape)}, "
                f"got {np.shape(done)}."
            )
        xp = numpy_for(done)
        later = xp.logical_not(xp.asarray(done, bool))
    later = later.reshape(*later.shape, *(1 for _ in range(1 + len(batch_shape) - later.ndim)))
    return xp.broadcast_to(later, (count, *batch_shape)).astype(weights.dtype)


@jax.custom_vjp
def anchor(total: jax.Array, outputs: Any) -> jax.Array:
    """Return `total`; its gradient also runs the transposed program that made `outputs`, with zero cotangents."""
    return total


def _anchor_forward(total: jax.Array, outputs: Any) -> tuple[jax.Array, Any]:
    return total, outputs


def _anchor_backward(outputs: Any, cotangent: jax.Array) -> tuple[jax.Array, Any]:
    return cotangent, jax.tree.map(zero_cotangent, outputs)


anchor.defvjp(_anchor_forward, _anchor_backward)


def zero_cotangent(array: jax.Array) -> Any:
    """Return the zero cotangent of an array, which for integers is of JAX's type without values."""
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.zeros_like(array)
    return np.zeros(array.shape, jax.dtypes.float0)


@dataclass(frozen=True)
class WindowResult:
    """What one window gives: gradients by path, per-step losses, auxiliary data."""

    gradients: dict[Path, Any]
    losses: jax.Array
    aux: Any


def run_window(
    learner: Any, windows: Windows, slices: tuple[Any, ...], weights: jax.Array, states: dict[Path, brainstate.State]
) -> WindowResult:
    """Run one window and differentiate its weighted loss with respect to `states`."""

    def weighted_loss() -> tuple[jax.Array, tuple[jax.Array, Any]]:
        with learner.injection.recording() as outputs:
            result = windows.step_fn(*slices)
        losses, aux = result if windows.has_aux else (result, None)
        losses = losses_of(losses, None if windows.scalar else windows.steps)
        total = jnp.sum(losses * weights.astype(losses.dtype))
        return anchor(total, outputs), (losses, aux)

    keys = list(states)
    gradients, (losses, aux) = brainstate.transform.grad(weighted_loss, [states[key] for key in keys], has_aux=True)()
    return WindowResult(dict(zip(keys, gradients, strict=True)), losses, aux)


def losses_of(losses: Any, steps: int | None) -> jax.Array:
    """Check what `step_fn` returned and give it the shape (steps,)."""
    expected = () if steps is None else (steps,)
    if np.shape(losses) != expected:
        what = "a scalar" if steps is None else f"one loss per step of the window, shape {expected}"
        raise ValueError(f"`step_fn` must return {what}, got shape {np.shape(losses)}.")
    return jnp.reshape(losses, (-1,))


def window_length(inputs: tuple[Any, ...]) -> int | None:
    """Return the number of steps of a window that a learner is called on; None for a single step."""
    for value in inputs:
        if isinstance(value, ee.MultiStepData):
            return int(jax.tree.leaves(value)[0].shape[0])
    return None
