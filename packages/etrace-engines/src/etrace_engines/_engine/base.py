"""What an engine is: how traces start, advance, and meet a learning signal. Arrays in, arrays out; no state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from .._compat import aval
from .._graph.evaluate import Inputs
from .._graph.graph import Graph
from .._jacobian.leak import Leak
from .._ops import ParameterOperation
from .._trace.blocks import apply


class AbstractEngine(ABC):
    """Traces of one factorisation on one graph.

    A *gradient* here is a list with one array per traced relation, of the shape of its effective weight; a *signal* is
    a list with one array per hidden group, of shape (states, *group shape). Traces and local dynamics are pytrees of
    arrays.
    """

    def __init__(self, graph: Graph, trace_dtype: Any) -> None:
        self.graph = graph
        self._trace_dtype = trace_dtype

    def operation(self, target: int) -> ParameterOperation:
        """Return the parameter operation that a target's trace belongs to."""
        return self.graph.traced[self.graph.targets[target].relation].operation

    def dtype(self, target: int) -> Any:
        """Return the dtype of a target's trace: `trace_dtype`, or that of the operation's output."""
        eqn = self.graph.step.closed.jaxpr.eqns[self.graph.traced[self.graph.targets[target].relation].equation]
        return self._trace_dtype or eqn.outvars[0].aval.dtype

    def carriers(self, operands: Mapping[int, Sequence[Array]]) -> list[Array]:
        """Return the carrier of each traced relation, shape (b, f, k)."""
        return [r.operation.carrier(operands[r.equation]) for r in self.graph.traced]

    def gather(self, per_target: Sequence[Array]) -> list[Array]:
        """Sum gradients of shape (b, k, g) over the targets of each relation, in the shape and dtype of the weight."""
        totals: list[Array] = []
        for i in range(len(self.graph.traced)):
            parts = [g for g, t in zip(per_target, self.graph.targets, strict=True) if t.relation == i]
            totals.append(sum(parts[1:], parts[0]))
        return self.to_weights(totals)

    def to_weights(self, per_relation: Sequence[Array]) -> list[Array]:
        """Bring gradients of shape (b, k, g), one per traced relation, to the shapes and dtypes of the weights."""
        eqns = self.graph.step.closed.jaxpr.eqns
        avals = [aval(eqns[r.equation].invars[r.operand]) for r in self.graph.traced]
        return [
            r.operation.weight(g).astype(a.dtype)
            for r, g, a in zip(self.graph.traced, per_relation, avals, strict=True)
        ]

    @abstractmethod
    def init(self) -> Any:
        """Return the traces of a sequence's start: nothing has been seen."""

    @abstractmethod
    def local(
        self, inputs: Inputs, weights: Sequence[Array], operands: Mapping[int, Sequence[Array]], traces: Any
    ) -> Any:
        """Return what the step contributes: carriers, Df, and the transition."""

    @abstractmethod
    def advance(self, traces: Any, local: Any) -> Any:
        """Return the traces after a step."""

    @abstractmethod
    def entry(self, traces: Any, signal: Sequence[Array]) -> list[Array]:
        """Return the gradient that a cotangent of the hidden states at entry carries to the weights."""

    @abstractmethod
    def past(self, traces: Any, local: Any, signal: Sequence[Array]) -> list[Array]:
        """Return the gradient that a signal at the new hidden states carries, beyond the step's own gradient."""

    def chunk(
        self,
        traces: Any,
        local: Any,
        signal: Sequence[Array],
        read: Sequence[Array],
        outputs: Sequence[Array],
    ) -> tuple[list[Array], Any]:
        """Return the summed gradient of a chunk of steps, and the traces after it; only where `chunks` says so.

        All arguments but the traces lead with time. `signal` is what each step says to its own new states, `read` what
        its outputs say to the states at its entry; `outputs` are the in-step cotangents of the relations' outputs,
        shape (time, b, f, g). The gradient includes the in-step one of the traced weights.
        """
        raise TypeError(f"{type(self).__name__} has no chunkwise form.")

    @property
    def chunks(self) -> bool:
        """Whether `chunk` is there and worth its while."""
        return False

    def blocks(self, local: Any) -> list[Array | Leak] | None:
        """Return the transition per group where ``past(L) = entry(L R)``, which saves a backward pass; else None."""
        return None


def from_next_step(read: Array) -> Array:
    """Move what steps say to their entry states to the steps that made those: the last step gets nothing."""
    return jnp.concatenate([read[1:], jnp.zeros_like(read[:1])])


def apply_blocks(transition: Array | Leak, rows: Array) -> Array:
    """Return R h for blocks of shape (S, S, *shape) and rows of shape (S, *shape)."""
    if isinstance(transition, Leak):
        return transition.value * rows
    return apply(transition[None], rows[None])[0]
