"""The engine with one random rank-one factor pair per group (UORO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.evaluate import Inputs, evaluate_views, make_plan
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .base import AbstractEngine

_TINY = 1e-7  # keeps the balance finite while a factor is zero, as at a sequence's start


class Traces(NamedTuple):
    """Per group: hidden factor (S, *group shape), one weight factor per traced relation; and the key of the signs."""

    hidden: list[Array]
    weights: list[list[Array]]
    key: Array


class Local(NamedTuple):
    """Per group: the hidden factor after the transition, the signs, and the signs pulled back to the weights."""

    pushed: list[Array]
    signs: list[Array]
    pulled: list[list[Array]]
    key: Array


class RandomProjectionEngine(AbstractEngine):
    """s' = rho0 J s + rho1 nu, th' = th / rho0 + (nu^T dF/dw) / rho1; E[s' th'] is the exact influence."""

    def __init__(self, graph: Graph, key: Array, trace_dtype: Any) -> None:
        super().__init__(graph, trace_dtype)
        self.key = key
        self._plan = make_plan(graph.step, graph.groups, [True] * len(graph.step.hidden), {}, with_outputs=False)

    def init(self) -> Traces:
        """Return zero factors."""
        eqns = self.graph.step.closed.jaxpr.eqns
        avals = [eqns[r.equation].invars[r.operand].aval for r in self.graph.traced]
        new = self.graph.step.closed.jaxpr.outvars[self.graph.step.num_outputs :]
        dtype = lambda group: self._trace_dtype or new[group.members[0]].aval.dtype
        return Traces(
            [jnp.zeros((g.num_states, *g.shape), dtype(g)) for g in self.graph.groups],
            [[jnp.zeros(a.shape, self._trace_dtype or a.dtype) for a in avals] for _ in self.graph.groups],
            self.key,
        )

    def local(
        self, inputs: Inputs, weights: Sequence[Array], operands: Mapping[int, Sequence[Array]], traces: Traces
    ) -> Local:
        """Push the hidden factor forward, draw signs, and pull them back to the weights."""
        key, draw = jax.random.split(traces.key)
        keys = jax.random.split(draw, len(self.graph.groups))
        pushed, signs, pulled = [], [], []
        for group, factor, k in zip(self.graph.groups, traces.hidden, keys, strict=True):
            states = lambda hidden, w, group=group: self._states(inputs, hidden, w, group)
            entry = [inputs.hidden[m] for m in group.members]
            tangent = [t.astype(h.dtype) for t, h in zip(group.unstack(factor), entry, strict=True)]
            _, moved = jax.jvp(lambda h, states=states: states(h, list(weights)), (entry,), (tangent,))
            nu = jax.random.rademacher(k, factor.shape, factor.dtype)
            new, pull = jax.vjp(lambda w, states=states, entry=entry: states(entry, w), list(weights))
            pushed.append(group.rows(moved))
            signs.append(nu)
            pulled.append(pull([n.astype(h.dtype) for n, h in zip(group.unstack(nu), new, strict=True)])[0])
        return Local(pushed, signs, pulled, key)

    def _states(
        self, inputs: Inputs, entry: Sequence[Array], weights: Sequence[Array], group: HiddenGroup
    ) -> list[Array]:
        hidden = list(inputs.hidden)
        for member, value in zip(group.members, entry, strict=True):
            hidden[member] = value
        computed = evaluate_views(
            self._plan,
            Inputs(inputs.args, inputs.params, hidden, inputs.other),
            swap=self.graph.swap(weights),
            slab=lambda member, value: jax.lax.stop_gradient(value),
            with_outputs=False,
        ).computed
        return [computed[m] for m in group.members]

    def advance(self, traces: Traces, local: Local) -> Traces:
        """Mix old and new influence with fresh signs, balancing the norms of the factors."""
        hidden, weights = [], []
        for pushed, nu, th, fresh in zip(local.pushed, local.signs, traces.weights, local.pulled, strict=True):
            rho0 = _balance(_norm(th), _norm([pushed]))
            rho1 = _balance(_norm(fresh), _norm([nu]))
            hidden.append((rho0 * pushed + rho1 * nu).astype(nu.dtype))
            weights.append([(a / rho0 + b / rho1).astype(a.dtype) for a, b in zip(th, fresh, strict=True)])
        return Traces(hidden, weights, local.key)

    def entry(self, traces: Traces, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with the rank-one estimate."""
        return self._meet(traces.hidden, traces.weights, signal)

    def past(self, traces: Traces, local: Local, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with J s; the in-step gradient holds the step's own influence, without noise."""
        return self._meet(local.pushed, traces.weights, signal)

    def _meet(self, hidden: Sequence[Array], weights: Sequence[list[Array]], signal: Sequence[Array]) -> list[Array]:
        total: list[Array] | None = None
        for s, th, rows in zip(hidden, weights, signal, strict=True):
            strength = jnp.vdot(s, rows)
            part = [strength * w for w in th]
            total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
        return total or []


def _norm(arrays: Sequence[Array]) -> Array:
    return jnp.sqrt(sum((jnp.sum(jnp.square(a)) for a in arrays), jnp.zeros(())))


def _balance(numerator: Array, denominator: Array) -> Array:
    """Return sqrt(numerator / denominator), the factor that minimises the variance; finite where either is zero."""
    return jnp.sqrt((numerator + _TINY) / (denominator + _TINY)) + _TINY
