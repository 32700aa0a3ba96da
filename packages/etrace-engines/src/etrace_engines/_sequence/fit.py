"""Training over sequences: gradients are applied when the schedule says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from .._learner.learner import StepLearner
from .drive import sequence_length
from .grad import check_mask


def etrace_fit(
    learner: StepLearner,
    sequences: Sequence[Any],
    *,
    step_fn: Callable[..., Any] | None,
    optimizer: Any,
    mask: Any,
    chunk_size: int | None,
    epochs: int,
    reset: bool,
    progress: bool,
) -> Array:
    """See `ETraceLearner.etrace_fit`."""
    length = sequence_length(sequences)
    period = _period(learner, length)
    weights = check_mask(mask, length)
    apply = _updater(learner, optimizer)

    def segment(slices: tuple[Any, ...], mask: Array) -> Array:
        gradients, losses = learner.etrace_grad(
            *slices, step_fn=step_fn, mask=mask, chunk_size=chunk_size, return_value=True
        )
        apply(gradients)
        return jnp.asarray(losses)

    def epoch(slices: tuple[Any, ...], mask: Array) -> Array:
        if reset:
            learner.reset_state()
        return jnp.reshape(brainstate.transform.for_loop(segment, slices, mask), (length,))

    parts = tuple(jax.tree.map(lambda x: jnp.reshape(x, (-1, period, *jnp.shape(x)[1:])), list(sequences)))
    run = brainstate.transform.jit(epoch)
    return jnp.stack([run(parts, weights.reshape(-1, period)) for _ in _passes(epochs, progress)])


def _period(learner: StepLearner, length: int) -> int:
    """Return the steps between updates."""
    schedule = learner.config.update_schedule
    period = {"per_step": 1, "window": learner.config.window_size or 1, "sequence_end": length}[schedule]
    if length % period:
        raise ValueError(
            f"`window_size={period}` of the update schedule does not divide the sequence length {length}; trim "
            f"the sequences to {length - length % period} steps."
        )
    return period


def _updater(learner: StepLearner, optimizer: Any) -> Callable[[Any], None]:
    """Return the function that applies gradients, for either family of optimizers."""
    if not hasattr(optimizer, "init"):
        return lambda gradients: optimizer.update(gradients)
    states = learner.param_states
    values = lambda: {path: state.value for path, state in states.items()}
    memory = brainstate.ShortTermState(optimizer.init(values()))

    def apply(gradients: Any) -> None:
        updates, memory.value = optimizer.update(gradients, memory.value, values())
        for path, state in states.items():
            state.value = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), state.value, updates[path])

    return apply


def _passes(epochs: int, progress: bool) -> Iterable[int]:
    if epochs < 1:
        raise ValueError(f"`epochs={epochs}` must be at least 1.")
    if not progress:
        return range(epochs)
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm; install it with `pip install tqdm`.") from error
    bar: Iterable[int] = tqdm(range(epochs), unit="pass")
    return bar
