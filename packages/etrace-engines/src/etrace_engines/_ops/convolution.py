"""Convolutions: a product of the weight with patches of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import JaxprEqn, aval
from ._operation import ParameterOperation


def convolution(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View a `conv_general_dilated` by a parameter as a product over patches, a block per feature group."""
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    if operand != 1 or params["batch_group_count"] != 1:
        return None
    w_shape, y_shape = aval(eqn.invars[1]).shape, aval(eqn.outvars[0]).shape
    groups = params["feature_group_count"]
    kernel = tuple(w_shape[a] for a in numbers.rhs_spec[2:])
    channels, features = w_shape[numbers.rhs_spec[1]], w_shape[numbers.rhs_spec[0]] // groups
    spatial = tuple(y_shape[a] for a in numbers.out_spec[2:])
    f = y_shape[numbers.out_spec[0]] * math.prod(spatial)
    k = channels * math.prod(kernel)
    to_channel_last = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])

    def carrier(operands: Sequence[Array]) -> Array:
        lhs = jnp.transpose(operands[0], numbers.lhs_spec)
        patches = jax.lax.conv_general_dilated_patches(
            lhs, kernel, params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"]
        )
        patches = jnp.moveaxis(patches, 1, -1).reshape(f, groups, k)
        return jnp.moveaxis(patches, 1, 0)

    def output(y: Array) -> Array:
        lead = y.ndim - len(y_shape)
        y = jnp.transpose(y, (*range(lead), *(a + lead for a in to_channel_last)))
        return jnp.moveaxis(y.reshape(*y.shape[:lead], f, groups, features), -2, lead)

    def weight(gradient: Array) -> Array:
        blocks = jnp.moveaxis(gradient.reshape(groups, channels, *kernel, features), -1, 1)
        blocks = blocks.reshape(groups * features, channels, *kernel)
        return jnp.transpose(blocks, tuple(np.argsort(numbers.rhs_spec).tolist()))

    return ParameterOperation(True, (groups, f, k, features), carrier, output, weight)
