"""The per-parameter trace: e'[q] = R[q] e[q] + x (x) Df[q], on axes (K, S, b, f, k, g)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

UNROLLED = 4  # states: below, sums over coupled states are written out, which vectorises; above, they are products


def propagate(transition: Array | float, trace: Array) -> Array:
    """Return R e; a number stands for that multiple of the identity."""
    if isinstance(transition, float):
        return transition * trace
    states = trace.shape[1]
    if states > UNROLLED:
        return jnp.einsum("Kijbfg,Kjbfkg->Kibfkg", transition, trace)
    wide = transition[:, :, :, :, :, None, :]
    terms = [wide[:, :, j] * trace[:, None, j] for j in range(states)]
    return sum(terms[1:], terms[0])


def outer(carrier: Array, influence: Array) -> Array:
    """Return x (x) Df from shapes (b, f, k) and (K, S, b, f, g)."""
    return carrier[:, :, :, None] * influence[:, :, :, :, None, :]


def contract(signal: Array, trace: Array) -> Array:
    """Return the gradient of the weight, sum over slots and f of signal and trace: shape (b, k, g)."""
    return jnp.einsum("KSbfg,KSbfkg->bkg", signal, trace)
