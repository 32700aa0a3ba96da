"""The engine with an input-side and an output-side factor (pp-prop, ES-D-RTRL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.evaluate import Inputs
from .._graph.graph import Graph
from .._jacobian.dynamics import Dynamics
from .._jacobian.leak import Leak
from .._trace.blocks import apply, dot
from .base import AbstractEngine, apply_blocks, from_next_step


class Traces(NamedTuple):
    """Input factors per relation, (b, f, k); output factors per target, (K, S, *output shape); trace steps so far."""

    inputs: list[Array]
    outputs: list[Array]
    steps: Array


class Local(NamedTuple):
    """Carriers per relation; Df and transition per target, at its slots."""

    carriers: list[Array]
    influence: list[Array]
    transition: list[Array | Leak]


class FactorisedEngine(AbstractEngine):
    """Two leaky factors: ex' = a_x ex + x and ef' = a_f R ef + (1 - a_f) Df, bias-corrected by 1 - a_f^t."""

    def __init__(self, graph: Graph, dynamics: Dynamics, decay_x: float, decay_f: float, trace_dtype: Any) -> None:
        super().__init__(graph, trace_dtype)
        self.dynamics = dynamics
        self.decay_x = decay_x
        self.decay_f = decay_f
        # Without a remainder: the in-step cotangent of these outputs is L . Df.
        self._contained = frozenset(i for i in range(len(graph.traced)) if graph.ends_in_group(i))

    def init(self) -> Traces:
        """Return zero factors, at trace step 0."""
        shape = lambda i: (*self.dynamics.slots[i].counts, *self.graph.output_shape(self.graph.targets[i]))
        eqns = self.graph.step.closed.jaxpr.eqns
        dtype = lambda r: self._trace_dtype or eqns[r.equation].outvars[0].aval.dtype
        return Traces(
            [jnp.zeros(r.operation.sizes[:3], dtype(r)) for r in self.graph.traced],
            [jnp.zeros(shape(i), self.dtype(i)) for i in range(len(self.graph.targets))],
            jnp.zeros((), jnp.int32),
        )

    def local(
        self, inputs: Inputs, weights: Sequence[Array], operands: Mapping[int, Sequence[Array]], traces: Any
    ) -> Local:
        """Return carriers, Df and transitions of the step."""
        local = self.dynamics(inputs, weights)
        return Local(self.carriers(operands), local.influence, local.transition)

    def advance(self, traces: Traces, local: Local) -> Traces:
        """Return the factors after a step."""
        inputs = [(self.decay_x * ex + x).astype(ex.dtype) for ex, x in zip(traces.inputs, local.carriers, strict=True)]
        outputs = [
            (self.decay_f * _apply(r, ef) + (1 - self.decay_f) * df).astype(ef.dtype)
            for r, ef, df in zip(local.transition, traces.outputs, local.influence, strict=True)
        ]
        return Traces(inputs, outputs, traces.steps + 1)

    def entry(self, traces: Traces, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with the product of the factors, corrected for the steps so far."""
        scale = self._correction(traces)
        return self._contract(traces.inputs, [scale.astype(ef.dtype) * ef for ef in traces.outputs], signal)

    def past(self, traces: Traces, local: Local, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with the new factors, less the step's own product, which the in-step gradient holds."""
        after = self.entry(self.advance(traces, local), signal)
        own = self._contract(local.carriers, local.influence, signal)
        return [a - b for a, b in zip(after, own, strict=True)]

    @property
    def chunks(self) -> bool:
        """Whether the factors of all steps of a chunk fit beside each other: they are small."""
        return True

    def chunk(
        self,
        traces: Traces,
        local: Local,
        signal: Sequence[Array],
        read: Sequence[Array],
        outputs: Sequence[Array],
    ) -> tuple[list[Array], Traces]:
        """Form each weight's gradient as one product over the chunk."""

        def body(carry: Traces, x: Local) -> tuple[Traces, tuple[list[Array], list[Array]]]:
            after = self.advance(carry, x)
            scale = self._correction(after)
            return after, (after.inputs, [scale.astype(ef.dtype) * ef for ef in after.outputs])

        after, (factors, corrected) = jax.lax.scan(body, traces, local)
        own: list[Array | None] = [None if i in self._contained else dy for i, dy in enumerate(outputs)]
        past = [jnp.zeros_like(dy) for dy in outputs]
        for i, (target, slots) in enumerate(zip(self.graph.targets, self.dynamics.slots, strict=True)):
            met, at_entry = jax.vmap(slots.signal)(signal[target.group]), jax.vmap(slots.signal)(read[target.group])
            extra = from_next_step(at_entry)
            on_axes = jax.vmap(self.operation(i).output)
            remainder = own[target.relation]
            if remainder is not None:
                own[target.relation] = remainder - on_axes(jax.vmap(dot)(met, local.influence[i]))
            past[target.relation] += on_axes(jax.vmap(dot)(met + extra, corrected[i]))
        over_time: Callable[[Array, Array], Array] = lambda x, dy: jnp.einsum("tbfk,tbfg->bkg", x, dy)
        gradients = [
            over_time(ex, met) + (0 if dy is None else over_time(x, dy))
            for x, dy, ex, met in zip(local.carriers, own, factors, past, strict=True)
        ]
        entry = self.entry(traces, [rows[0] for rows in read])
        return [a + b for a, b in zip(self.to_weights(gradients), entry, strict=True)], after

    def _correction(self, traces: Traces) -> Array:
        """Return 1 / (1 - a_f^t), or 0 before the first step."""
        correction = 1 - jnp.asarray(self.decay_f, jnp.result_type(float)) ** traces.steps
        return jnp.where(traces.steps > 0, 1 / jnp.where(traces.steps > 0, correction, 1), 0)

    def _contract(self, inputs: Sequence[Array], outputs: Sequence[Array], signal: Sequence[Array]) -> list[Array]:
        parts: list[Array] = []
        for i, (target, slots) in enumerate(zip(self.graph.targets, self.dynamics.slots, strict=True)):
            met = dot(slots.signal(signal[target.group]), outputs[i])
            parts.append(jnp.einsum("bfk,bfg->bkg", inputs[target.relation], self.operation(i).output(met)))
        return self.gather(parts)


def _apply(transition: Array | Leak, factor: Array) -> Array:
    if isinstance(transition, Leak):
        return apply_blocks(transition, factor)
    return apply(transition, factor)
