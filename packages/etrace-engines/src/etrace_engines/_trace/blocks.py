"""Products with the small state blocks of a transition, written out.

Arrays lead with (blocks K, states ...); the states are few, so sums over them are unrolled: compilers vectorise that
over the long axes behind, and do not do so for a reduction over a short axis (measured: 50 times slower).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

UNROLLED = 4  # states; above, the products are left to einsum


def apply(matrix: Array, vector: Array) -> Array:
    """Return M v: (K, i, j, ...) and (K, j, ...) to (K, i, ...)."""
    states = vector.shape[1]
    if states > UNROLLED:
        return jnp.einsum("Kij...,Kj...->Ki...", matrix, vector)
    rows = [_sum([matrix[:, i, j] * vector[:, j] for j in range(states)]) for i in range(states)]
    return jnp.stack(rows, axis=1)


def apply_transposed(matrix: Array, vector: Array) -> Array:
    """Return M^T v: (K, i, j, ...) and (K, i, ...) to (K, j, ...)."""
    return apply(jnp.swapaxes(matrix, 1, 2), vector)


def compose(left: Array, right: Array) -> Array:
    """Return the product of two matrices: (K, i, j, ...) and (K, j, l, ...) to (K, i, l, ...)."""
    columns = [apply(left, right[:, :, column]) for column in range(right.shape[2])]
    return jnp.stack(columns, axis=2)


def dot(a: Array, b: Array) -> Array:
    """Return the sum of products over blocks and states: twice (K, S, ...) to (...)."""
    blocks, states = a.shape[:2]
    if blocks * states > UNROLLED * UNROLLED:
        return jnp.einsum("KS...,KS...->...", a, b)
    return _sum([a[i, s] * b[i, s] for i in range(blocks) for s in range(states)])


def _sum(terms: list[Array]) -> Array:
    return sum(terms[1:], terms[0])
