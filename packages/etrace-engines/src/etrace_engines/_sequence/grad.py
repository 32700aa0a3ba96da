"""The gradient of a loss summed over a sequence, accumulated while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from .._learner.learner import StepLearner
from .chunkwise import chunkwise_sum, runs_chunkwise
from .drive import Task, check_chunk, scale_tree, sequence_length
from .stepwise import stepwise_sum


def etrace_grad(
    learner: StepLearner,
    sequences: Sequence[Any],
    *,
    step_fn: Callable[..., Any] | None,
    mask: Any,
    chunk_size: int | None,
    weights: Any,
    reduction: str,
    loss_output: str,
    has_aux: bool,
    return_value: bool,
    trace_update: str,
) -> Any:
    """See `ETraceLearner.etrace_grad`."""
    step_fn = _check_step_fn(step_fn)
    length = sequence_length(sequences)
    size = check_chunk(chunk_size, length, learner.vjp_method)
    _check_choice("reduction", reduction, ("mean", "sum"))
    _check_choice("loss_output", loss_output, ("per_step", "masked", "scalar"))
    mask = check_mask(mask, length)
    states = learner.param_states if weights is None else weights

    _check_choice("trace_update", trace_update, ("chunkwise", "per_step"))
    task = Task(step_fn, tuple(sequences), mask, states, size, has_aux)
    chunked = trace_update == "chunkwise" and size == 1 and runs_chunkwise(learner, states)
    total, losses, aux = chunkwise_sum(learner, task) if chunked else stepwise_sum(task)
    divisor = jnp.maximum(mask.sum(), 1)
    gradients = scale_tree(total, 1 / divisor) if reduction == "mean" else total
    divisor = divisor if reduction == "mean" else jnp.ones(())
    return _result(gradients, _losses(losses, mask, divisor, loss_output), aux, has_aux, return_value)


def _losses(losses: Array, mask: Array, divisor: Array, loss_output: str) -> Array:
    if loss_output == "per_step":
        return losses
    masked = losses * mask
    return masked if loss_output == "masked" else masked.sum() / divisor


def _result(gradients: Any, losses: Array, aux: Any, has_aux: bool, return_value: bool) -> Any:
    """Arrange like `brainstate.transform.grad`."""
    parts = [gradients, *([losses] if return_value else []), *([aux] if has_aux else [])]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _check_step_fn(step_fn: Any) -> Callable[..., Any]:
    if step_fn is None:
        raise TypeError(
            "`step_fn` is needed: a function of one slice of each sequence that calls the learner and returns the loss."
        )
    if not callable(step_fn):
        raise TypeError(f"`step_fn` must be callable, got {type(step_fn).__name__}.")
    return step_fn  # type: ignore[no-any-return]  # checked above


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"`{name}={value!r}` is not one of {', '.join(map(repr, allowed))}.")


def check_mask(mask: Any, length: int) -> Array:
    """Return the weights of the losses, one per step."""
    if mask is None:
        return jnp.ones(length)
    value = jnp.asarray(mask)
    if value.shape != (length,):
        raise ValueError(f"`mask` needs shape ({length},), one weight per step, got {value.shape}.")
    return value.astype(jnp.result_type(value, jnp.float32) if value.dtype == bool else value.dtype)
