"""Embedding lookups: a gather of rows is a product with one-hot vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import JaxprEqn, aval
from ._operation import ParameterOperation


def lookup(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View a gather of whole rows of a table as a matrix product; other gathers are not supported."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    table, indices, y = aval(eqn.invars[0]), aval(eqn.invars[1]), aval(eqn.outvars[0])
    lead = indices.ndim - 1
    whole_rows = sizes == (1, *table.shape[1:]) and numbers.offset_dims == tuple(range(lead, y.ndim))
    by_row = (
        numbers.start_index_map == (0,) and numbers.collapsed_slice_dims == (0,) and not numbers.operand_batching_dims
    )
    if operand != 0 or not (whole_rows and by_row):
        return None
    rows, width, f = table.shape[0], math.prod(table.shape[1:]), math.prod(indices.shape[:-1])
    clip = "clip" in str(eqn.params["mode"]).lower()

    def carrier(operands: Sequence[Array]) -> Array:
        index = operands[1].reshape(f)
        index = jnp.clip(index, 0, rows - 1) if clip else index
        return jax.nn.one_hot(index, rows, dtype=table.dtype)[None]

    def output(v: Array) -> Array:
        return v.reshape(*v.shape[: v.ndim - y.ndim], 1, f, width)

    def weight(gradient: Array) -> Array:
        return gradient.reshape(table.shape)

    return ParameterOperation(True, (1, f, rows, width), carrier, output, weight)
