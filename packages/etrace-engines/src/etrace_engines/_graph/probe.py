"""The structural Jacobian pattern of any differentiable JAX function, without a table of primitives.

Linearise the function, so that custom rules have become plain linear equations; replace its float residuals by random
positive numbers, so that a derivative that happens to be 0 at this point still counts; let `select_n` pass all its
branches; pull the identity back. What is not zero is the pattern. Residuals that are weights keep their zeros: a masked
connection is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import ClosedJaxpr, Literal, bind, call_body, is_float

BLOCK = 256  # rows pulled back at once: bounds the memory of a probe


def structural_pattern(f: Callable[[Any], Array], x: Any, weights: Sequence[Array] = ()) -> list[np.ndarray]:
    """Return the Boolean pattern of df/dx, shape (outputs, leaf size) per leaf of x, for f to a flat array."""
    linearise = lambda x: jax.vjp(f, x)
    masked = [w for w in map(np.asarray, weights) if (w == 0).any()]
    y, pull = jax.eval_shape(linearise, x)  # shapes are mostly enough, and cost no compilation
    if masked or any(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(pull)):  # indices must be real
        y, pull = jax.jit(linearise)(x)
    leaves, tree = jax.tree.flatten(pull)
    program = jax.make_jaxpr(lambda leaves, ct: jax.tree.leaves(jax.tree.unflatten(tree, leaves)(ct)[0]))(leaves, y)
    keys = {_fingerprint(w) for w in masked}
    residuals = [_residual(i, leaf, keys) for i, leaf in enumerate(leaves)]

    @jax.jit
    def block(rows: Array) -> list[Array]:
        at = lambda ct: _evaluate(program, [*residuals, ct])
        offset = at(jnp.zeros(y.shape, y.dtype))
        return [
            (out - zero).reshape(rows.shape[0], -1) != 0 for out, zero in zip(over_rows(at, rows), offset, strict=True)
        ]

    eye = np.eye(y.size, dtype=y.dtype)
    parts = [block(jnp.asarray(eye[i : i + BLOCK])) for i in range(0, y.size, BLOCK)]
    return [np.concatenate([np.asarray(p) for p in column]) for column in zip(*parts, strict=True)]


def over_rows(f: Callable[[Array], Any], rows: Array) -> Any:
    """Apply `f` to each row: at once, or, where a primitive cannot be batched, in turn."""
    try:
        return jax.vmap(f)(rows)
    except NotImplementedError:
        return jax.lax.map(f, rows)


def _fingerprint(w: Any) -> tuple[int, bytes]:
    """Identify a weight in any layout: a transposed weight has the same sorted values."""
    flat = np.sort(np.asarray(w).ravel())
    return flat.size, flat.tobytes()


def _residual(index: int, leaf: Any, weights: set[tuple[int, bytes]]) -> Any:
    """Return random numbers in [0.5, 1.5) for a float residual; integers stay, and a condition not evaluated holds."""
    if not is_float(leaf):
        return np.ones(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    draw = np.random.default_rng(index).uniform(0.5, 1.5, leaf.shape)
    if weights and _fingerprint(leaf) in weights:
        draw = draw * (np.asarray(leaf) != 0)
    return jnp.asarray(draw, leaf.dtype)


def _evaluate(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True)) | dict(
        zip(jaxpr.invars, args, strict=True)
    )
    read = lambda v: v.val if isinstance(v, Literal) else env[v]
    for eqn in jaxpr.eqns:
        ins = [read(v) for v in eqn.invars]
        body = call_body(eqn)
        if eqn.primitive.name == "select_n":
            outs = [sum(ins[1:])]
        elif body is not None:
            outs = _evaluate(body, ins)
        else:
            outs = bind(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]
