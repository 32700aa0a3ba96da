"""The structural Jacobian pattern of any differentiable JAX function, without a table of primitives.

Linearise the function, so that custom rules have become plain linear equations; replace its float residuals by random positive
numbers, so that a derivative that happens to be 0 at this point still counts; let `select_n` pass all its branches; push the
identity through. What is not zero is the pattern. Residuals that are weights keep their zeros: a masked connection is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import ClosedJaxpr, Literal, bind, call_body, is_float

BLOCK = 256  # columns pushed through at once: bounds the memory of a probe


def structural_pattern(f: Callable[[Array], Array], x: Array, weights: Sequence[Array] = ()) -> np.ndarray:
    """Return the Boolean pattern of df/dx, shape (outputs, inputs), for f from a flat array to a flat array."""
    closed = jax.make_jaxpr(jax.linearize(f, x)[1])(x)
    keys = {_fingerprint(w) for w in weights}
    consts = [_residual(i, jnp.asarray(c), keys) for i, c in enumerate(closed.consts)]
    linear = lambda v: _evaluate(closed, consts, [v])[0]

    @jax.jit
    def block(columns: Array) -> Array:
        offset = linear(jnp.zeros_like(x))
        return jax.vmap(lambda v: linear(v) - offset)(columns) != 0

    eye = np.eye(x.size, dtype=x.dtype)
    parts = [np.asarray(block(jnp.asarray(eye[i : i + BLOCK]))) for i in range(0, x.size, BLOCK)]
    return np.concatenate(parts).T if parts else np.zeros((0, 0), bool)


def _fingerprint(w: Any) -> tuple[int, bytes]:
    """Identify a weight in any layout: a transposed weight has the same sorted values."""
    flat = np.sort(np.asarray(w).ravel())
    return flat.size, flat.tobytes()


def _residual(index: int, c: Array, weights: set[tuple[int, bytes]]) -> Array:
    if not is_float(c):
        return c
    draw = jax.random.uniform(jax.random.fold_in(jax.random.key(0), index), c.shape, c.dtype, 0.5, 1.5)
    return draw * (c != 0) if _fingerprint(c) in weights else draw


def _evaluate(closed: ClosedJaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else env[v]
    for eqn in jaxpr.eqns:
        ins = [read(v) for v in eqn.invars]
        body = call_body(eqn)
        if eqn.primitive.name == "select_n":
            outs = [sum(ins[1:])]
        elif body is not None:
            outs = _evaluate(body, body.consts, ins)
        else:
            outs = bind(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]
