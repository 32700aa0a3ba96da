"""Elementwise operations: biases, gates, leaks, thresholds, masks; any primitive that maps positions to themselves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import JaxprEqn, aval, bind, call_body, custom_body, is_float
from ._operation import ParameterOperation

_NAMES = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "lgamma",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "not",
        "optimization_barrier",
        "or",
        "pow",
        "real",
        "reduce_precision",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)

_TRIED: dict[Hashable, bool] = {}  # unknown primitives on their shapes: a cache, since the graph asks often


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether output element q depends on nothing but element q of each operand (scalars and size-1 axes broadcast)."""
    if eqn.primitive.name in _NAMES:
        return True
    body = custom_body(eqn) or call_body(eqn)
    if body is not None:
        return all(map(is_elementwise, body.jaxpr.eqns))
    key = (eqn.primitive.name, str(eqn.params), *((aval(v).shape, aval(v).dtype) for v in (*eqn.invars, *eqn.outvars)))
    if key not in _TRIED:
        _TRIED[key] = _keeps_positions(eqn)
    return _TRIED[key]


def _keeps_positions(eqn: JaxprEqn) -> bool:
    """Try an unknown primitive (say, a surrogate gradient): does a cotangent at one position stay there?"""
    shape = aval(eqn.outvars[0]).shape
    operands = [aval(v) for v in eqn.invars]
    same = all(a.shape in ((), shape) and is_float(a) for a in operands) and is_float(aval(eqn.outvars[0]))
    if not same or len(eqn.outvars) != 1 or not shape or any("jaxpr" in name for name in eqn.params):
        return False
    size = aval(eqn.outvars[0]).size
    draw = np.random.default_rng(0)
    values = [jnp.asarray(draw.uniform(0.1, 0.9, a.shape), a.dtype) for a in operands]
    positions = sorted({0, size // 2, size - 1})

    @jax.jit  # one compilation, where the primitives of a custom derivative would each have their own
    def cotangents(values: list[Array]) -> list[tuple[Array, ...]]:
        y, pull = jax.vjp(lambda *xs: bind(eqn, xs)[0], *values)
        return [pull(jnp.zeros(size, y.dtype).at[p].set(1).reshape(shape)) for p in positions]

    try:
        pulled = cotangents(values)
    except NotImplementedError:  # a primitive without a derivative
        return False
    own = zip(positions, pulled, strict=True)
    return not any(
        np.delete(np.asarray(ct).ravel(), position).any() for position, cts in own for ct in cts if ct.shape == shape
    )


def elementwise(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """View an elementwise equation as a product with one weight per element: the carrier is dy/dw."""
    if len(eqn.outvars) != 1:
        return None
    shape, w_shape = aval(eqn.outvars[0]).shape, aval(eqn.invars[operand]).shape
    size = aval(eqn.outvars[0]).size

    def carrier(operands: Sequence[Array]) -> Array:
        def apply(w: Array) -> Array:
            full = [jnp.broadcast_to(v, shape) if v.ndim == len(shape) else v for v in operands]
            (y,) = bind(eqn, [*full[:operand], w, *full[operand + 1 :]])
            return jnp.asarray(y)

        y, pull = jax.vjp(apply, jnp.broadcast_to(operands[operand], shape))
        (slope,) = pull(jnp.ones_like(y))
        return jnp.reshape(slope, (size, 1, 1))

    def output(y: Array) -> Array:
        return y.reshape(*y.shape[: y.ndim - len(shape)], size, 1, 1)

    def weight(gradient: Array) -> Array:
        return _sum_to(gradient.reshape(shape), w_shape)

    return ParameterOperation(False, (size, 1, 1, 1), carrier, output, weight)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Undo a broadcast: sum over the axes that `shape` lacks or has at size 1."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    kept = tuple(a for a, size in enumerate(shape) if size == 1 and x.shape[a] != 1)
    return x.sum(kept, keepdims=True)
