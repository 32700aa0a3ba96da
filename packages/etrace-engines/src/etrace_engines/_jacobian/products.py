"""Find the dense products through which a group's states reach themselves in one step, for `structure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._compat import Literal, aval, is_float
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .._graph.positions import ancestors, entry_labels, follow_labels, is_identity, slabs_of
from .._graph.relations import Relation
from .structure import Chain, Gain, Structure

Labels = Mapping[Any, np.ndarray]


def find_structure(graph: Graph, group: HiddenGroup) -> Structure | None:
    """Return the structure of one group's transition, or None where it is not of that form."""
    try:
        return _Search(graph, group).structure()
    except _OtherForm:
        return None


class _OtherForm(Exception):
    """The step joins positions by more than two dense products in a row, or by something else."""


class _Search:
    """One pass over a step, by the labels of its hidden states and of its products' outputs."""

    def __init__(self, graph: Graph, group: HiddenGroup) -> None:
        self.graph, self.group, self.step = graph, group, graph.step
        self.rows = group.batch_size or 1
        self.width = group.width
        self.slabs = slabs_of(graph.step, graph.groups, group)
        jaxpr = graph.step.closed.jaxpr
        new = [jaxpr.outvars[graph.step.num_outputs + m] for m in group.members]
        self.states = {v for v in new if not isinstance(v, Literal)}
        every = ancestors(self.step, self.states, self.slabs, frozenset())
        self.mixing = [r for r in graph.cone.relations if r.operation.mixing and self.output(r) in every]
        carriers = {self.carrier(r) for r in self.mixing}
        self.before_carriers = ancestors(self.step, carriers, self.slabs, graph.detached)
        self.before_states = ancestors(self.step, self.states, self.slabs, graph.detached)

    def output(self, relation: Relation) -> Any:
        """Return the variable of a relation's output."""
        return self.step.closed.jaxpr.eqns[relation.equation].outvars[0]

    def carrier(self, relation: Relation) -> Any:
        """Return the variable that a product multiplies with its weight."""
        invars = self.step.closed.jaxpr.eqns[relation.equation].invars
        return next(v for k, v in enumerate(invars) if k != relation.operand)

    def structure(self) -> Structure:
        """Return the structure; raises where there is none."""
        if not all(is_float(v.aval) for v in self.states):
            raise _OtherForm
        entry = [self.entry(s) for s in range(len(self.group.members))]
        gains: list[Gain] = []
        chains: list[Chain] = []
        for relation in self.mixing:
            if not any(self.carrier(relation) in labels for labels in entry):
                continue
            carriers = np.stack([self.carriers_of_states(relation, labels) for labels in entry])
            if self.output(relation) in self.before_states:
                target, positions = self.leads_to(relation)
                gains.append(Gain(target, relation, positions, carriers))
            read = self.labels({self.output(relation): _enumerate(self.output(relation))}, self.before_carriers)
            for outer in (r for r in self.mixing if self.carrier(r) in read):
                self.ends(outer)
                target, positions = self.leads_to(outer)
                between = self.elements_read(outer, relation, read)
                chains.append(Chain(target, outer, relation, positions, between, carriers))
        return Structure(self.graph, self.group, tuple(gains), tuple(chains))

    def labels(self, start: dict[Any, np.ndarray], region: set[Any]) -> Labels:
        """Follow labels; nothing in `region` may join them."""
        size = max(label.size for label in start.values())
        found, joins = follow_labels(self.step, start, self.slabs, self.graph.detached, size)
        eqns = self.step.closed.jaxpr.eqns
        if any(v in region for index in joins for v in eqns[index].outvars):
            raise _OtherForm
        return found

    def entry(self, state: int) -> Labels:
        """Label one entry state by its positions; the new states must keep them in place."""
        found = self.labels(entry_labels(self.step, self.group, [state]), self.before_states | self.before_carriers)
        if not all(is_identity(found[v], self.group.num_positions) for v in self.states if v in found):
            raise _OtherForm
        return found

    def ends(self, outer: Relation) -> None:
        """Check that a product leads to states only, and to no third product."""
        found = self.labels({self.output(outer): _enumerate(self.output(outer))}, self.before_carriers)
        if any(self.carrier(r) in found for r in self.mixing):
            raise _OtherForm

    def on_axes(self, relation: Relation, label: np.ndarray) -> np.ndarray:
        """Read a carrier's labels as (rows, k)."""
        b, f, _, _ = relation.operation.sizes
        if relation.primitive != "dot_general" or (b, f) != (1, self.rows):
            raise _OtherForm
        return np.asarray(relation.operation.carrier([label, label])[0])  # type: ignore[list-item]  # only moved

    def carriers_of_states(self, relation: Relation, labels: Labels) -> np.ndarray:
        """Return which carrier element each position of a state feeds: shape (n,), -1 for none."""
        feeds = np.full(self.width, -1)
        if self.carrier(relation) not in labels:
            return feeds
        position = self.same_in_rows(self.on_axes(relation, labels[self.carrier(relation)]), self.width)
        fed = np.nonzero(position >= 0)[0]
        if len(set(position[fed].tolist())) != len(fed):
            raise _OtherForm
        feeds[position[fed]] = fed
        return feeds

    def elements_read(self, outer: Relation, inner: Relation, labels: Labels) -> np.ndarray:
        """Return which output element of `inner` each carrier element of `outer` reads: shape (k,), -1 for none."""
        label = self.on_axes(outer, labels[self.carrier(outer)])
        order = np.asarray(inner.operation.output(_enumerate(self.output(inner))))[0]  # type: ignore[arg-type]
        rank = np.empty(order.size, int)
        rank[order.ravel()] = np.arange(order.size)
        return self.same_in_rows(np.where(label >= 0, rank[np.maximum(label, 0)], -1), order.shape[1])

    def leads_to(self, relation: Relation) -> tuple[int, np.ndarray]:
        """Return the target that follows a product, and the position that each output element reaches: shape (g,)."""
        for i, target in enumerate(self.graph.targets):
            is_its = self.graph.traced[target.relation].equation == relation.equation
            if is_its and target.group == self.group.index and (target.slots is None or target.slots.shape[0] == 1):
                slots = _enumerate(self.output(relation)) if target.slots is None else target.slots[0]
                by_row = np.asarray(relation.operation.output(slots))  # type: ignore[arg-type]  # it is only moved
                return i, self.same_in_rows(by_row[0], self.width)
        raise _OtherForm

    def same_in_rows(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """Return numbers of one batch row, shape (rows, m) -> (m,); every row must refer to itself, in the same way."""
        own = np.where(numbers >= 0, numbers - width * np.arange(len(numbers))[:, None], -1)
        if (own != own[0]).any() or own.max(initial=-1) >= width or own.min(initial=0) < -1:
            raise _OtherForm
        first: np.ndarray = own[0]
        return first


def _enumerate(v: Any) -> np.ndarray:
    shape = aval(v).shape
    return np.arange(int(np.prod(shape))).reshape(shape)
