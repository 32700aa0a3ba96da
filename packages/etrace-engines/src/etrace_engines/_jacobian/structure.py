"""The coupled D by structure: the diagonal of a product of dense weights, without the products.

Where the step only moves and scales positions between its dense products, hidden state p reaches new state p through a
product y = x W as Df[q] W[k, q] dx[k]/dh[p], q and k the elements of y and x that belong to p; and through two products
in a row, as by a reset gate, as Df[q] (sum_k W[k, q] dx[k]/dz[j] V[i, j]) du[i]/dh[p] for z = u V. This costs a matrix
product per step, where pulling back a one at every position costs as many steps as there are units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import aval
from .._graph.evaluate import Inputs, evaluate_step
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .._graph.positions import is_identity, slabs_of
from .._graph.relations import Relation


@dataclass(frozen=True)
class Gain:
    """One product on the way from a hidden state: where its output leads, and which carrier each position feeds."""

    target: int
    relation: Relation
    positions: np.ndarray  # (g,): position that each output element reaches, -1 for none
    carriers: np.ndarray  # (S, n): carrier element that each entry state feeds, -1 for none


@dataclass(frozen=True)
class Chain:
    """Two products in a row: `inner` leads to carriers of `outer`."""

    target: int
    outer: Relation
    inner: Relation
    positions: np.ndarray  # (g,), of the outer product
    between: np.ndarray  # (k,): output element of the inner product that each carrier of the outer one reads, or -1
    carriers: np.ndarray  # (S, n), of the inner product


class Slopes(NamedTuple):
    """By equation, each product's weight, (k, g), and the slopes of its carriers, (rows, k)."""

    weights: dict[int, Array]
    by_state: list[dict[int, Array]]  # by entry state, at its positions
    by_inner: dict[int, dict[int, Array]]  # by the outputs of inner products, at their elements


@dataclass(frozen=True)
class Structure:
    """The products through which a group's states reach themselves in one step."""

    graph: Graph
    group: HiddenGroup
    gains: tuple[Gain, ...]
    chains: tuple[Chain, ...]

    def blocks(self, inputs: Inputs, weights: Sequence[Array], influence: Sequence[Array], direct: Array) -> Array:
        """Return D, (S, S, *group shape), given Df per target and what of D passes through no product."""
        rows, n = self.group.batch_size or 1, self.group.width
        total = direct.reshape(*direct.shape[:2], rows, n)
        matrices, by_state, by_inner = self._derivatives(inputs, weights)
        for gain in self.gains:
            matrix = matrices[gain.relation.equation]
            columns = np.arange(len(gain.positions))
            for s, slopes in enumerate(by_state):
                at = _read(gain.carriers[s], gain.positions)
                weight = jnp.where(at >= 0, matrix[np.maximum(at, 0), columns], 0)
                through = slopes[gain.relation.equation][:, np.maximum(at, 0)] * weight
                total = total.at[:, s].add(self._onto(influence[gain.target], gain, through))
        for chain in self.chains:
            outer, inner = matrices[chain.outer.equation], matrices[chain.inner.equation]
            slope = by_inner[chain.inner.equation][chain.outer.equation]
            for s, slopes in enumerate(by_state):
                at = _read(chain.carriers[s], chain.positions)
                pairs = inner[np.maximum(at, 0)[None], np.maximum(chain.between, 0)[:, None]]
                kept = (at >= 0)[None] & (chain.between >= 0)[:, None]
                through = slope @ jnp.where(kept, outer * pairs, 0)
                through = through * slopes[chain.inner.equation][:, np.maximum(at, 0)]
                total = total.at[:, s].add(self._onto(influence[chain.target], chain, through))
        return total.reshape(direct.shape)

    def _onto(self, influence: Array, through_to: Gain | Chain, through: Array) -> Array:
        """Multiply by Df and sum over the output elements of each position: shape (S, rows, n)."""
        relation = through_to.relation if isinstance(through_to, Gain) else through_to.outer
        moved = relation.operation.output(influence[0])[:, 0] * through
        n, positions = self.group.width, through_to.positions
        if len(positions) == n and is_identity(positions, n):
            return moved
        return jnp.zeros((*moved.shape[:2], n), moved.dtype).at[..., np.maximum(positions, 0)].add(moved)

    def _derivatives(self, inputs: Inputs, weights: Sequence[Array]) -> Slopes:
        step, swap = self.graph.step, self.graph.swap(weights)
        products = {r.equation: r for r in self._products}
        slabs = slabs_of(step, self.graph.groups, self.group)

        def operands(states: list[Array], taps: dict[int, Array]) -> dict[int, list[Array]]:
            hidden = list(inputs.hidden)
            for member, value in zip(self.group.members, states, strict=True):
                hidden[member] = value
            at, record = Inputs(inputs.args, inputs.params, hidden, inputs.other), frozenset(products)
            return evaluate_step(step, at, swap, record, taps=taps, detach=self.graph.detached, slabs=slabs).operands

        def carriers(states: list[Array], taps: dict[int, Array]) -> dict[int, Array]:
            found = operands(states, taps)
            return {e: r.operation.carrier(found[e])[0] for e, r in products.items()}

        entry = [inputs.hidden[m] for m in self.group.members]
        shape = lambda e: aval(step.closed.jaxpr.eqns[e].outvars[0]).shape
        taps = {c.inner.equation: jnp.zeros(shape(c.inner.equation), entry[0].dtype) for c in self.chains}
        found = operands(entry, taps)
        _, push = jax.linearize(carriers, entry, taps)
        still = [jnp.zeros_like(h) for h in entry]
        moved = lambda s: [
            jnp.ones_like(h) if i == s else zero for i, (h, zero) in enumerate(zip(entry, still, strict=True))
        ]
        return Slopes(
            {e: _as_matrix(r, found[e][r.operand]) for e, r in products.items()},
            [push(moved(s), taps) for s in range(len(entry))],
            {e: push(still, {**taps, e: jnp.ones_like(tap)}) for e, tap in taps.items()},
        )

    @property
    def _products(self) -> list[Relation]:
        chained = [r for c in self.chains for r in (c.outer, c.inner)]
        return list({r.equation: r for r in [*(g.relation for g in self.gains), *chained]}.values())


def _as_matrix(relation: Relation, weight: Array) -> Array:
    """Return a weight as (k, g): the transpose of how gradients of that shape become the weight's."""
    _, _, k, g = relation.operation.sizes
    back = jax.linear_transpose(relation.operation.weight, jax.ShapeDtypeStruct((1, k, g), weight.dtype))
    return jnp.asarray(back(weight)[0][0])


def _read(table: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.where(index >= 0, table[np.maximum(index, 0)], -1)
