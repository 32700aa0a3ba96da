"""The per-parameter trace over a chunk of K steps at once.

With e_t = R_t e_{t-1} + x_t (x) Df_t and signals L_t, the sum over the chunk is

    sum_t L_t . e_t = sum_t x_t (x) (Df_t A_t) + (A_1 R_1) . e_0,        A_t = L_t + A_{t+1} R_{t+1},
    e_K = P_0 e_0 + sum_t x_t (x) (P_t Df_t),                            P_t = R_K ... R_{t+1},

so each weight's gradient is one matrix product, and the large trace is touched once. A low-pass ebar_t = kappa
ebar_{t-1} + e_t is a filter of the signal, backward in time: L_t becomes M_t = L_t + kappa M_{t+1}.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._jacobian.leak import Leak
from .blocks import apply, apply_transposed, compose, dot
from .per_parameter import propagate


class Back(NamedTuple):
    """What the backward pass over a chunk finds.

    `outputs` (t, b, f, g) is what the past adds to the cotangent of each step's output; `entry` (K, S, b, f, g) meets
    the trace at entry; `carried` (t, K, S, b, f, g) is P_t Df_t and `total` P_0. `low_entry`, `low_carried` and
    `low_total` are the same for the low-passed trace.
    """

    outputs: Array
    entry: Array
    carried: Array
    total: Array
    low_entry: Array | None = None
    low_carried: Array | None = None
    low_total: Array | None = None


def backward_in_time(
    transition: Array | Leak, influence: Array, signal: Array, later: Array, kappa: float | None
) -> Back:
    """Run the recursions A, M, P (and the filtered P) from the last step to the first.

    Parameters
    ----------
    transition : array, shape (t, K, S, S, b, f, g), or float
        R_t; a number stands for that multiple of the identity.
    influence, signal, later : array, shape (t, K, S, b, f, g)
        Df_t; L_t as the step itself says it, which its own gradient holds already; and what the next step's outputs
        add.
    kappa : float or None
        Decay of the low-pass.
    """
    states = influence.shape[2]
    eye = jnp.eye(states, dtype=influence.dtype)[:, :, None, None, None]
    eye = jnp.broadcast_to(eye, (influence.shape[1], states, states, *influence.shape[3:]))
    if isinstance(transition, Leak):
        transition = jnp.broadcast_to(transition.value * eye, (influence.shape[0], *eye.shape))
    whole = signal + later
    if kappa is None:
        back = _backward(transition, influence, whole, eye)
        return back._replace(outputs=back.outputs + jax.vmap(dot)(later, influence))

    def low_pass(later: Array, s: Array) -> tuple[Array, Array]:
        return s + kappa * later, s + kappa * later

    first, filtered = jax.lax.scan(low_pass, jnp.zeros_like(whole[0]), whole, reverse=True)
    back = _backward(transition, influence, filtered, eye)
    outputs = back.outputs + jax.vmap(dot)(filtered - signal, influence)
    low_carried, low_total = _low_products(transition, influence, eye, kappa)
    return Back(outputs, back.entry, back.carried, back.total, kappa * first, low_carried, low_total)


def _backward(transition: Array, influence: Array, signal: Array, eye: Array) -> Back:
    def body(
        carry: tuple[Array, Array], x: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        future, product = carry
        r, df, s = x
        outputs = dot(future, df)
        return (apply_transposed(r, s + future), compose(product, r)), (outputs, apply(product, df))

    start = (jnp.zeros_like(signal[0]), eye)
    (entry, total), (outputs, carried) = jax.lax.scan(body, start, (transition, influence, signal), reverse=True)
    return Back(outputs, entry, carried, total)


def _low_products(transition: Array, influence: Array, eye: Array, kappa: float) -> tuple[Array, Array]:
    """Return Q_t Df_t with Q_t = kappa^(K - t) + Q_{t+1} R_{t+1}, and Q_1 R_1."""

    def body(carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        product, weight = carry
        r, df = x
        product = product + weight * eye
        return (compose(product, r), kappa * weight), apply(product, df)

    start = (jnp.zeros_like(eye), jnp.ones((), influence.dtype))
    (total, _), carried = jax.lax.scan(body, start, (transition, influence), reverse=True)
    return carried, total


def advance_chunk(
    trace: Array, low: Array | None, carrier: Array, back: Back, kappa: float | None
) -> tuple[Array, Array | None]:
    """Return the trace and its low-pass after the chunk; `carrier` has shape (t, b, f, k)."""
    after = propagate(back.total, trace) + _outer_sum(carrier, back.carried)
    if low is None or kappa is None or back.low_carried is None or back.low_total is None:
        return after.astype(trace.dtype), None
    low_after = kappa ** carrier.shape[0] * low + propagate(back.low_total, trace)
    return after.astype(trace.dtype), (low_after + _outer_sum(carrier, back.low_carried)).astype(low.dtype)


def _outer_sum(carrier: Array, carried: Array) -> Array:
    slots, states = carried.shape[1:3]
    planes = [[jnp.einsum("tbfk,tbfg->bfkg", carrier, carried[:, i, s]) for s in range(states)] for i in range(slots)]
    return jnp.stack([jnp.stack(row) for row in planes])
