"""The gradient of a loss summed over a sequence, accumulated while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from .drive import add_trees, check_chunk, first_slices, purify, scale_tree, sequence_length, to_chunks

if TYPE_CHECKING:
    from .._learner.learner import ETraceLearner


def etrace_grad(
    learner: ETraceLearner,
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
) -> Any:
    """See `ETraceLearner.etrace_grad`."""
    step_fn = _check_step_fn(step_fn)
    length = sequence_length(sequences)
    size = check_chunk(chunk_size, length, learner.vjp_method)
    _check_choice("reduction", reduction, ("mean", "sum"))
    _check_choice("loss_output", loss_output, ("per_step", "masked", "scalar"))
    mask = _check_mask(mask, length)
    states = learner.param_states if weights is None else weights

    chunks, mask_chunks = to_chunks(sequences, size), to_chunks((mask,), size)[0]
    pure = purify(step_fn, first_slices(chunks), list(states.values()))
    where = [pure.states.index(state) for state in states.values()]
    values = pure.values()
    start = {path: jax.tree.map(jnp.zeros_like, state.value) for path, state in states.items()}

    def body(carry: Any, x: Any) -> Any:
        values, total = carry
        slices, m = x

        def objective(chosen: list[Any]) -> Any:
            inner = list(values)
            for i, value in zip(where, chosen, strict=True):
                inner[i] = value
            after, out = pure.call(inner, slices)
            loss, aux = out if has_aux else (out, None)
            _check_loss(loss, size)
            return jnp.sum(loss * m), (after, loss, aux)

        chosen = [values[i] for i in where]
        (_, (after, loss, aux)), gradient = jax.value_and_grad(objective, has_aux=True)(chosen)
        for i, value in zip(where, chosen, strict=True):
            after[i] = value
        total = add_trees(total, dict(zip(states, gradient, strict=True)))
        return (after, total), (loss, aux)

    (values, total), (losses, aux) = jax.lax.scan(body, (values, start), (chunks, mask_chunks))
    pure.write(values)
    losses = losses.reshape(length)
    divisor = jnp.maximum(mask.sum(), 1) if reduction == "mean" else jnp.ones(())
    gradients = scale_tree(total, 1 / divisor) if reduction == "mean" else total
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


def _check_mask(mask: Any, length: int) -> Array:
    if mask is None:
        return jnp.ones(length)
    value = jnp.asarray(mask)
    if value.shape != (length,):
        raise ValueError(f"`mask` needs shape ({length},), one weight per step, got {value.shape}.")
    return value.astype(jnp.result_type(value, jnp.float32) if value.dtype == bool else value.dtype)


def _check_loss(loss: Any, size: int) -> None:
    expected = () if size == 1 else (size,)
    if jnp.shape(loss) != expected:
        what = "a scalar" if size == 1 else f"one loss per step of the window, shape ({size},)"
        raise ValueError(f"`step_fn` must return {what}, got shape {jnp.shape(loss)}.")
