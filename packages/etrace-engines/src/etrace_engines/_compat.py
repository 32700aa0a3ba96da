"""The one place that knows about versions of JAX and brainstate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "aval",
    "bind",
    "call_body",
    "custom_body",
    "is_float",
    "scan_parts",
    "with_constants",
]

_CALLS = {"jit", "pjit", "closed_call", "core_call", "core_closed_call", "checkpoint", "remat", "remat2"}


def aval(v: Any) -> Any:  # jax types avals as abstract values, without shape and dtype
    """Return the abstract array of a jaxpr variable."""
    return v.aval


def bind(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Apply the equation's primitive to operands; always a list of outputs."""
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def call_body(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the body of an equation that only calls it (jit, checkpoint), else None."""
    if eqn.primitive.name not in _CALLS:
        return None
    return _closed(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")))


def custom_body(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the forward body of a custom_jvp or custom_vjp call, else None."""
    if not eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
        return None
    return _closed(eqn.params.get("call_jaxpr", eqn.params.get("fun_jaxpr")))


def scan_parts(eqn: JaxprEqn) -> tuple[ClosedJaxpr, int, int, int, bool]:
    """Return body, number of constants, number of carries, length and direction of a scan."""
    params = eqn.params
    return params["jaxpr"], params["num_consts"], params["num_carry"], params["length"], params["reverse"]


def _closed(jaxpr: Any) -> ClosedJaxpr:  # an open or a closed jaxpr, depending on the primitive
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def is_float(x: Any) -> bool:  # anything with a dtype
    """Whether an array or aval takes part in differentiation."""
    return bool(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact))


def with_constants(eqn: JaxprEqn, values: Mapping[Any, Any]) -> JaxprEqn:
    """Return the equation with its known operands as literals."""
    invars = [Literal(values[v], aval(v)) if _is_known(v, values) else v for v in eqn.invars]
    replaced: JaxprEqn = eqn.replace(invars=invars)
    return replaced


def _is_known(v: Any, values: Mapping[Any, Any]) -> bool:
    return not isinstance(v, Literal) and v in values
