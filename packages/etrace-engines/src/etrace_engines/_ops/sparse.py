"""Sparse products: a product with a weight per connection, between a source and a target position.

Known by the names of their primitives: the compressed rows, fixed-number connections and event-driven products of
`brainevent`, whose event-driven (binary) kinds read any positive value as one. The sparse products of JAX have no
batching rule; they are written out in operations that have.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import JaxprEqn, Literal, aval
from ._operation import ParameterOperation

_EVENTS = "binary_"
WRITTEN_OUT = ("coo_matvec", "coo_matmat", "csr_matvec", "csr_matmat")
COMPRESSED_ROWS = ("csrmv", "csrmm", "binary_csrmv", "binary_csrmm")
FIXED_NUMBER = ("ell_binary_matvec", "binary_fcnmm")
EVENT_PRODUCTS = ("binary_densemv", "binary_densemm")


def compressed_rows(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View a product of (data, indices, row pointers) and x; the connections must be constants of the step."""
    indices, pointers = eqn.invars[1:3]
    if operand != 0 or not (isinstance(indices, Literal) and isinstance(pointers, Literal)):
        return None
    columns = np.asarray(indices.val)
    rows = np.repeat(np.arange(eqn.params["shape"][0]), np.diff(np.asarray(pointers.val)))
    return _connections(eqn, rows, columns, x=3)


def fixed_number(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View a product of (weights, indices), a row of connections per position, and x."""
    indices = eqn.invars[1]
    if operand != 0 or not isinstance(indices, Literal):
        return None
    columns = np.asarray(indices.val)
    rows = np.repeat(np.arange(columns.shape[0]), columns.shape[1])
    return _connections(eqn, rows, columns.ravel(), x=2)


def _connections(eqn: JaxprEqn, rows: np.ndarray, columns: np.ndarray, x: int) -> ParameterOperation:
    source, target = (rows, columns) if eqn.params["transpose"] else (columns, rows)
    shape, w_shape = aval(eqn.outvars[0]).shape, aval(eqn.invars[0]).shape
    count, f = len(source), 1 if len(shape) == 1 else shape[1]

    def carrier(operands: Sequence[Array]) -> Array:
        return _values(eqn, operands[x])[source].reshape(count, f, 1)

    def output(y: Array) -> Array:
        lead = y.shape[: y.ndim - len(shape)]
        return y.reshape(*lead, shape[0], f)[..., target, :][..., None]

    def weight(gradient: Array) -> Array:
        if w_shape == () or w_shape == (1,):
            return gradient.sum().reshape(w_shape)
        return gradient.reshape(w_shape)

    return ParameterOperation(True, (count, f, 1, 1), carrier, output, weight)


def event_product(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View a product of a dense weight and events, one column of events per sample."""
    if operand != 0 or aval(eqn.invars[0]).ndim != 2:
        return None
    is_transposed = eqn.params["transpose"]
    shape, w_shape = aval(eqn.outvars[0]).shape, aval(eqn.invars[0]).shape
    k, g = w_shape if is_transposed else w_shape[::-1]
    f = 1 if len(shape) == 1 else shape[1]

    def carrier(operands: Sequence[Array]) -> Array:
        return _values(eqn, operands[1]).reshape(k, f).T[None]

    def output(y: Array) -> Array:
        return jnp.swapaxes(y.reshape(*y.shape[: y.ndim - len(shape)], 1, g, f), -1, -2)

    def weight(gradient: Array) -> Array:
        return gradient[0] if is_transposed else gradient[0].T

    return ParameterOperation(True, (1, f, k, g), carrier, output, weight)


def _values(eqn: JaxprEqn, x: Array) -> Array:
    """Return what multiplies the weights: x, or one per event."""
    dtype = aval(eqn.outvars[0]).dtype
    return (x > 0).astype(dtype) if _EVENTS in eqn.primitive.name else x.astype(dtype)


def write_out(eqn: JaxprEqn, operands: Sequence[Array]) -> Array:
    """Compute one of JAX's sparse products by gather, product and scatter."""
    data, rows, columns, x = operands
    if eqn.primitive.name.startswith("csr"):
        pointers, columns = columns, rows
        count = jnp.arange(eqn.params["shape"][0])
        rows = jnp.repeat(count, jnp.diff(pointers), total_repeat_length=data.size)
    source, target = (rows, columns) if eqn.params["transpose"] else (columns, rows)
    terms = data.reshape(-1, *(1,) * (x.ndim - 1)) * x[source]
    y = aval(eqn.outvars[0])
    return jnp.zeros(y.shape, y.dtype).at[target].add(terms)
