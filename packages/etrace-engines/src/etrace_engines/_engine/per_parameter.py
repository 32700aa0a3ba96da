"""The engine with a trace per parameter element (D-RTRL, e-prop, SnAp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.evaluate import Inputs
from .._graph.graph import Graph
from .._jacobian.dynamics import Dynamics
from .._jacobian.leak import Leak
from .._trace.chunkwise import advance_chunk, backward_in_time
from .._trace.per_parameter import contract, outer, propagate
from .base import AbstractEngine, from_next_step


class Traces(NamedTuple):
    """Per target, on axes (K, S, b, f, k, g): the trace, and its low-pass where the rule filters."""

    plain: list[Array]
    filtered: list[Array] | None


class Local(NamedTuple):
    """Carriers per relation; Df and transition per target, on the axes of the matrix product; transition per group."""

    carriers: list[Array]
    influence: list[Array]
    transition: list[Array | Leak]
    blocks: list[Array | Leak] | None


class PerParameterEngine(AbstractEngine):
    """Full traces; `kappa` filters what meets the signal."""

    def __init__(self, graph: Graph, dynamics: Dynamics, kappa: float | None, trace_dtype: Any) -> None:
        super().__init__(graph, trace_dtype)
        self.dynamics = dynamics
        self.kappa = kappa

    def init(self) -> Traces:
        """Return zero traces."""
        shape = lambda i: (*self.dynamics.slots[i].counts, *self.operation(i).sizes)
        zeros = lambda: [jnp.zeros(shape(i), self.dtype(i)) for i in range(len(self.graph.targets))]
        return Traces(zeros(), zeros() if self.kappa is not None else None)

    def local(
        self, inputs: Inputs, weights: Sequence[Array], operands: Mapping[int, Sequence[Array]], traces: Any
    ) -> Local:
        """Return carriers, Df and transitions of the step."""
        local = self.dynamics(inputs, weights)
        return Local(
            self.carriers(operands),
            [self.operation(i).output(x) for i, x in enumerate(local.influence)],
            [x if isinstance(x, Leak) else self.operation(i).output(x) for i, x in enumerate(local.transition)],
            local.blocks,
        )

    def _propagated(self, traces: Traces, local: Local) -> list[Array]:
        return [propagate(r, e) for r, e in zip(local.transition, traces.plain, strict=True)]

    def advance(self, traces: Traces, local: Local) -> Traces:
        """Return R e + x (x) Df, and its low-pass."""
        fresh = [
            outer(local.carriers[t.relation], df) for t, df in zip(self.graph.targets, local.influence, strict=True)
        ]
        kept = self._propagated(traces, local)
        plain = [(r + f).astype(e.dtype) for r, f, e in zip(kept, fresh, traces.plain, strict=True)]
        if traces.filtered is None or self.kappa is None:
            return Traces(plain, None)
        return Traces(plain, [self.kappa * low + e for low, e in zip(traces.filtered, plain, strict=True)])

    def entry(self, traces: Traces, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with the (filtered) trace."""
        return self._contract(traces.plain if traces.filtered is None else traces.filtered, signal)

    def past(self, traces: Traces, local: Local, signal: Sequence[Array]) -> list[Array]:
        """Contract a signal with what the step makes of the old trace: R e + kappa ebar."""
        met = self._propagated(traces, local)
        if traces.filtered is not None and self.kappa is not None:
            met = [e + self.kappa * low for e, low in zip(met, traces.filtered, strict=True)]
        return self._contract(met, signal)

    def blocks(self, local: Local) -> list[Array | Leak] | None:
        """Return the transition per group; a filter needs the signal itself."""
        return local.blocks if self.kappa is None else None

    @property
    def chunks(self) -> bool:
        """Whether the transition is a small block per position: its products over a chunk are then cheap."""
        return self.dynamics.scope != "sparse_n"

    def chunk(
        self,
        traces: Traces,
        local: Local,
        signal: Sequence[Array],
        read: Sequence[Array],
        outputs: Sequence[Array],
    ) -> tuple[list[Array], Traces]:
        """Form each weight's gradient as one product over the chunk, and touch each trace once."""
        totals = list(outputs)
        entries: list[Array] = []
        plain: list[Array] = []
        filtered: list[Array] = []
        for i, (target, slots) in enumerate(zip(self.graph.targets, self.dynamics.slots, strict=True)):
            at_slots = jax.vmap(lambda s, i=i, slots=slots: self.operation(i).output(slots.signal(s)))
            own, at_entry = at_slots(signal[target.group]), at_slots(read[target.group])
            later = from_next_step(at_entry)
            back = backward_in_time(local.transition[i], local.influence[i], own, later, self.kappa)
            totals[target.relation] = totals[target.relation] + back.outputs
            low = None if traces.filtered is None else traces.filtered[i]
            if low is None or back.low_entry is None:
                entries.append(contract(back.entry + at_entry[0], traces.plain[i]))
            else:
                entries.append(contract(back.entry, traces.plain[i]) + contract(back.low_entry + at_entry[0], low))
            after, low = advance_chunk(traces.plain[i], low, local.carriers[target.relation], back, self.kappa)
            plain.append(after)
            filtered.extend([] if low is None else [low])
        inside = [jnp.einsum("tbfk,tbfg->bkg", x, dy) for x, dy in zip(local.carriers, totals, strict=True)]
        gradients = [a + b for a, b in zip(self.to_weights(inside), self.gather(entries), strict=True)]
        return gradients, Traces(plain, None if traces.filtered is None else filtered)

    def _contract(self, traces: Sequence[Array], signal: Sequence[Array]) -> list[Array]:
        parts = [
            contract(self.operation(i).output(slots.signal(signal[target.group])), trace)
            for i, (target, slots, trace) in enumerate(
                zip(self.graph.targets, self.dynamics.slots, traces, strict=True)
            )
        ]
        return self.gather(parts)
