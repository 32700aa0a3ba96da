"""The local dynamics that a rule keeps: Df, and the transition R that its recursion and scope choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jax import Array

from .._graph.evaluate import Inputs
from .._graph.graph import Graph
from .blocks import compile_transition
from .influence import compile_influence
from .leak import Leak
from .neighbourhood import neighbour_slots, row_groups
from .products import find_structure
from .slots import BlockSlots, Slots


class Local(NamedTuple):
    """One step's dynamics: Df and R per target, at its slots; R per group where it acts on hidden states directly."""

    influence: list[Array]
    transition: list[Array | Leak]
    blocks: list[Array | Leak] | None


class Dynamics:
    """Compute the local dynamics of a step.

    Parameters
    ----------
    graph : Graph
        The compiled graph.
    inputs : Inputs
        The arrays at compile time; sparse_n probes its neighbourhoods there.
    scope : {'diagonal', 'coupled', 'sparse_n'}
        What R keeps under the Jacobian recursion.
    order : int
        n of sparse_n.
    leak : float or None
        R = leak * I in place of the Jacobian; 0.0 is the recursion 'none'.
    """

    def __init__(self, graph: Graph, inputs: Inputs, *, scope: str, order: int = 1, leak: float | None = None) -> None:
        self.graph = graph
        self.leak = leak
        self.scope = scope if leak is None else "leak"
        self.structures = [find_structure(graph, g) if self.scope == "coupled" else None for g in graph.groups]
        self._influence = compile_influence(graph, diagonal=self.scope == "diagonal" or any(self.structures))
        self._transition = compile_transition(graph) if self.scope in ("coupled", "sparse_n") else None
        self.slots: list[Slots] = [BlockSlots(graph.groups[t.group].num_states, t.slots) for t in graph.targets]
        if self.scope == "sparse_n" and self._transition is not None:
            self.slots = list(neighbour_slots(self._transition, inputs, order))

    def __call__(self, inputs: Inputs, weights: Sequence[Array]) -> Local:
        """Return the dynamics of the step that `inputs` enter."""
        df, blocks = self._influence(inputs, weights)
        influence = [slots.influence(d) for slots, d in zip(self.slots, df, strict=True)]
        if self.leak is not None:
            leak = Leak(self.leak)
            return Local(influence, [leak] * len(df), [leak] * len(self.graph.groups))
        operators = blocks
        if self._transition is not None and self.scope == "sparse_n":
            operators = self._transition.full(inputs, weights, row_groups(self.graph))
        elif self._transition is not None:
            operators = [
                structure.blocks(inputs, weights, df, direct)
                if structure
                else self._transition.blocks(inputs, weights, group)
                for structure, group, direct in zip(self.structures, self.graph.groups, blocks, strict=True)
            ]
        transition: list[Array | Leak] = [
            slots.transition(operators[t.group]) for slots, t in zip(self.slots, self.graph.targets, strict=True)
        ]
        return Local(influence, transition, None if self.scope == "sparse_n" else list(operators))
