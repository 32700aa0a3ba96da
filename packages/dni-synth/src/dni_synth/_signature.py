"""What a synthesiser was fitted for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._concrete import is_traced
from ._digest import current_digest
from ._sequence import Windows


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a synthesiser was fitted for.

    Parameters
    ----------
    chunk_size : int
        Window length in steps.
    batch_shape : tuple of int
        Batch axes of the learner: ``(batch,)``, or ``()`` for an unbatched one.
    groups : tuple of str
        The hidden groups.
    additive : bool or None
        Whether a window's loss is the sum of its steps' losses; None if that could not be found out.
    window_probe, step_probe : ndarray or None
        How the loss reacts to a fixed change of the output of one batch element: the change of its cotangent, over a
        whole window and over a single step. None where the loss could not be evaluated while tracing.
    """

    chunk_size: int
    batch_shape: tuple[int, ...]
    groups: tuple[str, ...]
    additive: bool | None
    window_probe: np.ndarray | None = dataclasses.field(repr=False)
    step_probe: np.ndarray | None = dataclasses.field(repr=False)

    def to_json(self) -> str:
        """Return the signature without its arrays, as JSON."""
        return json.dumps(
            {
                "chunk_size": self.chunk_size,
                "batch_shape": self.batch_shape,
                "groups": self.groups,
                "additive": self.additive,
            }
        )

    @classmethod
    def from_json(cls, text: str, window_probe: np.ndarray | None, step_probe: np.ndarray | None) -> Signature:
        """Return the signature that `to_json` and its arrays describe."""
        data = json.loads(text)
        return cls(
            int(data["chunk_size"]),
            tuple(data["batch_shape"]),
            tuple(data["groups"]),
            data["additive"],
            window_probe,
            step_probe,
        )


@dataclasses.dataclass
class Fitted:
    """A signature, with what no file holds.

    Parameters
    ----------
    signature : Signature
        What the synthesiser was fitted for.
    loss : callable, optional
        The loss of a window as a function of the output alone; None where it depends on more.
    warned_at : ndarray, optional
        Digest of the parameters at the fit after which a warning said that they have moved.
    """

    signature: Signature
    loss: Callable[[Any], jax.Array] | None = None
    warned_at: np.ndarray | None = None


def record_signature(learner: Any, windows: Windows, loss: Callable[[Any], jax.Array] | None = None) -> None:
    """Remember on the learner what its synthesiser has just been fitted for."""
    injection = learner.injection
    injection.fitted = Fitted(signature_of(learner, windows), loss)
    injection.digest.value = current_digest(learner)


def signature_of(learner: Any, windows: Windows) -> Signature:
    """Return the signature that a fit over these windows gives."""
    injection = learner.injection
    steps = windows.steps or 1
    window, step = probes(learner, windows, (steps, 1))
    additive = None
    if window is not None and step is not None:
        additive = bool(np.allclose(window[0], step[0], rtol=1e-4, atol=1e-6 * np.abs(step).max(initial=0)))
    return Signature(
        steps,
        tuple(injection.batch_shape),
        tuple(group.name for group in injection.groups),
        additive,
        window,
        step,
    )


def probes(learner: Any, windows: Windows, lengths: tuple[int, ...]) -> list[np.ndarray | None]:
    """Return how the cotangent of the loss changes between two fixed outputs, for windows of several lengths.

    The slices are constants and both outputs the same for every batch element, so the answer, of shape (steps, units),
    does not depend on data or on the batch size, unless the loss does. The *change* makes targets that enter like
    those of a square or a cross entropy drop out; where nothing changes, as for a linear loss, the cotangent itself is
    returned.
    """

    def cotangents() -> list[tuple[jax.Array, jax.Array]]:
        found = []
        for steps in lengths:
            lead = () if windows.steps is None else (steps,)
            slices = jax.tree.map(lambda a, lead=lead: constant_slice(a, lead, len(lead) + 1), windows.slices)
            low, high = (cotangent(learner, windows, slices, lead, seed) for seed in (1, 2))
            found.append((low, high))
        return found

    if is_traced(jnp.zeros(())):
        # Inside a trace, evaluate now what depends on constants alone; a loss that closes over traced values stays so.
        with jax.ensure_compile_time_eval():
            pairs = cotangents()
    else:
        pairs = jax.jit(cotangents)()
    if is_traced(pairs):
        return [None for _ in lengths]
    arrays = [(np.asarray(low), np.asarray(high)) for low, high in pairs]
    return [high - low if np.any(high != low) else high for low, high in arrays]


def constant_slice(array: Any, lead: tuple[int, ...], skip: int) -> jax.Array:
    """Return a constant shaped like one slice: zeros for integers, ones otherwise."""
    shape = (*lead, *array.shape[skip:])
    integers = jnp.issubdtype(array.dtype, jnp.integer)
    return jnp.zeros(shape, array.dtype) if integers else jnp.ones(shape, array.dtype)


def cotangent(learner: Any, windows: Windows, slices: Any, lead: tuple[int, ...], seed: int) -> jax.Array:
    """Return the gradient of the window's loss by the first batch element's output, shape (steps, units)."""
    batch = len(learner.injection.batch_shape)
    structure = learner.injection.output_structure
    outputs = jax.tree.map(lambda s: fixed_output(s, lead, batch, seed), structure)

    def loss(values: Any) -> jax.Array:
        with learner.injection.answering(values):
            result = windows.step_fn(*slices)
        losses = result[0] if windows.has_aux else result
        return jnp.sum(losses)

    gradient = jax.grad(loss)(outputs)
    steps = lead[0] if lead else 1
    first = [jnp.reshape(leaf_first(leaf, len(lead), batch), (steps, -1)) for leaf in jax.tree.leaves(gradient)]
    return jnp.concatenate(first, axis=1)


def leaf_first(array: jax.Array, lead: int, batch: int) -> jax.Array:
    """Return the first batch element of an output."""
    return array[(slice(None),) * lead + (0,) * batch]


def fixed_output(structure: Any, lead: tuple[int, ...], batch: int, seed: int) -> jax.Array:
    """Return a fixed output, the same for all batch elements, that differs between steps, units, and seeds."""
    own = structure.shape[batch:]
    values = np.random.default_rng(seed).standard_normal((*(lead or (1,)), *own))
    values = values.reshape(*lead, *(1 for _ in range(batch)), *own)
    return jnp.broadcast_to(jnp.asarray(values, structure.dtype), (*lead, *structure.shape))
