"""Matrix products: `dot_general` with any dimension numbers (mm, mv, batched, einsum, grouped)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import JaxprEqn, aval
from ._operation import ParameterOperation


def dense(eqn: JaxprEqn, operand: int) -> ParameterOperation:
    """View a `dot_general` as a batched matrix product of carrier and weight."""
    contracted, batch = eqn.params["dimension_numbers"]
    w_axes = _axes(aval(eqn.invars[operand]).ndim, contracted[operand], batch[operand])
    x_axes = _axes(aval(eqn.invars[1 - operand]).ndim, contracted[1 - operand], batch[1 - operand])
    w_shape, x_shape = aval(eqn.invars[operand]).shape, aval(eqn.invars[1 - operand]).shape
    size = lambda shape, axes: math.prod(shape[a] for a in axes)
    b, k = size(w_shape, w_axes[0]), size(w_shape, w_axes[1])
    g, f = size(w_shape, w_axes[2]), size(x_shape, x_axes[2])
    w_order = (*w_axes[0], *w_axes[1], *w_axes[2])
    x_order = (*x_axes[0], *x_axes[2], *x_axes[1])

    def carrier(operands: Sequence[Array]) -> Array:
        return jnp.transpose(operands[1 - operand], x_order).reshape(b, f, k)

    def output(y: Array) -> Array:
        lead = y.shape[: y.ndim - aval(eqn.outvars[0]).ndim]
        if operand == 1:
            return y.reshape(*lead, b, f, g)
        return jnp.swapaxes(y.reshape(*lead, b, g, f), -1, -2)

    def weight(gradient: Array) -> Array:
        shape = tuple(w_shape[a] for a in w_order)
        return jnp.transpose(gradient.reshape(shape), tuple(np.argsort(w_order).tolist()))

    return ParameterOperation(True, (b, f, k, g), carrier, output, weight)


def _axes(ndim: int, contracted: Sequence[int], batch: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split the axes of an operand into batch, contracted and free ones."""
    free = tuple(a for a in range(ndim) if a not in contracted and a not in batch)
    return tuple(batch), tuple(contracted), free
