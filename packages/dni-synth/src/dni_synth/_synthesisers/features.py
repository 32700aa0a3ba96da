"""Inputs that the synthesisers compute from hidden values and context."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def spread(context: jax.Array, hidden: jax.Array) -> jax.Array:
    """Repeat a context over the positions of a group: (*batch, context) -> (*batch, *positions, context)."""
    batch = context.shape[:-1]
    positions = hidden.shape[len(batch) : -1]
    wide = context.reshape(*batch, *(1 for _ in positions), context.shape[-1]).astype(hidden.dtype)
    return jnp.broadcast_to(wide, (*batch, *positions, context.shape[-1]))


def concatenated(hidden: jax.Array, context: jax.Array | None) -> jax.Array:
    """Return the hidden values and the context side by side: (*batch, *positions, features + context)."""
    return hidden if context is None else jnp.concatenate([hidden, spread(context, hidden)], axis=-1)


def conditional(hidden: jax.Array, context: jax.Array | None) -> jax.Array:
    """Return h, c and all products of the two, so that a linear map of them is an affine map of h for each c."""
    if context is None:
        return hidden
    wide = spread(context, hidden)
    products = hidden[..., :, None] * wide[..., None, :]
    return jnp.concatenate([hidden, wide, products.reshape(*hidden.shape[:-1], -1)], axis=-1)


def conditional_size(features: int, context_dim: int) -> int:
    """Return the length of the last axis of `conditional`."""
    return (features + 1) * (context_dim + 1) - 1
