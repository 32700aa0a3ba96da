"""The coupled D: the S x S block of dh/dh_entry at each position, recurrent mixing included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.evaluate import Inputs, Plan, evaluate_views, make_plan
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .._graph.probe import over_rows
from .influence import group_cotangent

Pull = Callable[[list[Array]], list[Array]]


@dataclass(frozen=True)
class Transition:
    """The true transition of each group, seen as a linear map from hidden states at entry to new ones."""

    graph: Graph
    plan: Plan

    def states(self, inputs: Inputs, swap: dict[tuple[int, int], Array]) -> list[Array]:
        """Return the new hidden states."""
        return evaluate_views(
            self.plan,
            inputs,
            swap=swap,
            slab=lambda member, computed: jax.lax.stop_gradient(computed),
            with_outputs=False,
        ).computed

    def pullback(self, inputs: Inputs, weights: Sequence[Array]) -> tuple[list[Array], Pull]:
        """Return the new states, and the map from their cotangents to those of the entry states."""
        swap = self.graph.swap(weights)
        at = lambda hidden: self.states(Inputs(inputs.args, inputs.params, hidden, inputs.other), swap)
        new, pull = jax.vjp(at, list(inputs.hidden))
        return new, lambda cotangents: pull(cotangents)[0]

    def blocks(self, inputs: Inputs, weights: Sequence[Array], group: HiddenGroup) -> Array:
        """Return D of one group: shape (S, S, *group shape)."""
        new, pull = self.pullback(inputs, weights)
        return _block_diagonal(new, pull, group)

    def full(self, inputs: Inputs, weights: Sequence[Array], groups: Sequence[HiddenGroup]) -> list[Array]:
        """Return the full Jacobian per group: shape (batch or 1, S n, S n), states before positions."""
        new, pull = self.pullback(inputs, weights)
        return [_full_jacobian(new, pull, group) for group in groups]


def compile_transition(graph: Graph) -> Transition:
    """Plan the evaluation in which a group's new states depend on its own entry states, uncut."""
    return Transition(
        graph, make_plan(graph.step, graph.groups, [True] * len(graph.step.hidden), {}, with_outputs=False)
    )


def _rows_of_jacobian(new: Sequence[Array], pull: Pull, group: HiddenGroup) -> Array:
    """Pull a one at every position and state, in all batch rows at once: shape (n, S, S', batch or 1, n)."""
    width = group.width

    def one(where: Array) -> Array:
        position, state = where
        mask = jnp.zeros((group.batch_size or 1, width)).at[:, position].set(1.0).reshape(group.shape)
        entry = pull(group_cotangent(new, group, state, mask))
        rows = group.rows([entry[m] for m in group.members])
        return jnp.reshape(rows, (group.num_states, group.batch_size or 1, width))

    each = jnp.stack(jnp.divmod(jnp.arange(width * group.num_states), group.num_states), axis=1)
    rows = over_rows(one, each)
    return jnp.reshape(rows, (width, group.num_states, *rows.shape[1:]))


def _block_diagonal(new: Sequence[Array], pull: Pull, group: HiddenGroup) -> Array:
    rows = _rows_of_jacobian(new, pull, group)
    blocks = jnp.diagonal(rows, axis1=0, axis2=4)  # S, S', batch, n
    return jnp.reshape(blocks, (group.num_states, group.num_states, *group.shape))


def _full_jacobian(new: Sequence[Array], pull: Pull, group: HiddenGroup) -> Array:
    rows = _rows_of_jacobian(new, pull, group)  # n, S, S', batch, n'
    size = rows.shape[0] * rows.shape[1]
    return jnp.transpose(rows, (3, 1, 0, 2, 4)).reshape(rows.shape[3], size, size)
