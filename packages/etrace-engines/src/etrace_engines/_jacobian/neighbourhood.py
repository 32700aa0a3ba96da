"""sparse_n: which hidden elements lie within n steps of an output element, from the model's own transition pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._graph.evaluate import Inputs
from .._graph.graph import Graph, Target
from .._graph.groups import HiddenGroup
from .._graph.positions import to_slots
from .._graph.probe import structural_pattern
from .._graph.relations import mixing_weights
from .blocks import Transition
from .slots import NeighbourSlots


def row_groups(graph: Graph) -> list[HiddenGroup]:
    """Return the groups, without their batch axis where a relation's output does not lead with it."""
    return [_row_group(graph, group) for group in graph.groups]


def neighbour_slots(transition: Transition, inputs: Inputs, order: int) -> list[NeighbourSlots]:
    """Return the slots of every target of the transition's graph."""
    graph = transition.graph
    groups = row_groups(graph)
    patterns = [_transition_pattern(transition, inputs, group) for group in groups]
    return [
        _widen(
            graph,
            target,
            groups[target.group],
            np.linalg.matrix_power(patterns[target.group].astype(float), order - 1) > 0,
        )
        for target in graph.targets
    ]


def _row_group(graph: Graph, group: HiddenGroup) -> HiddenGroup:
    by_row = all(t.leads_with_batch for t in graph.targets if t.group == group.index)
    return group if by_row else replace(group, batch_size=None)


def _transition_pattern(transition: Transition, inputs: Inputs, group: HiddenGroup) -> np.ndarray:
    """Probe which hidden elements of a batch row reach which in one step, themselves included: shape (S n, S n)."""
    graph, batch = transition.graph, group.batch_size or 1
    weights = mixing_weights(graph.step, graph.cone, inputs.params)

    def row(v: Array) -> Array:
        first = v.reshape(group.num_states, 1, -1)
        rest = jnp.zeros((group.num_states, batch - 1, first.shape[2]), v.dtype)
        rows = jnp.concatenate([first, rest], axis=1).reshape(group.num_states, *group.shape)
        hidden = list(inputs.hidden)
        for member, value in zip(group.members, group.unstack(rows), strict=True):
            hidden[member] = hidden[member] + value
        new = transition.states(Inputs(inputs.args, inputs.params, hidden, inputs.other), {})
        return group.rows([new[m] for m in group.members]).reshape(group.num_states, batch, -1)[:, 0].ravel()

    size = group.num_states * group.width
    pattern = structural_pattern(row, jnp.zeros(size, inputs.hidden[group.members[0]].dtype), weights)[0]
    return pattern | np.eye(size, dtype=bool)


def _widen(graph: Graph, target: Target, group: HiddenGroup, steps: np.ndarray) -> NeighbourSlots:
    """Take the position map of one target, all states of its positions, and what they reach in the remaining steps."""
    width = group.width
    shape = graph.output_shape(target)
    row_shape = shape if group.batch_size is None else shape[1:]
    positions = _positions_in_row(target, group, row_shape)  # K, outputs
    num_blocks, outputs = positions.shape
    place = np.full((group.num_states * width, outputs), -1)
    for k in range(num_blocks):
        columns = np.nonzero(positions[k] >= 0)[0]
        for s in range(group.num_states):
            place[s * width + positions[k][columns], columns] = k * group.num_states + s
    near = steps.astype(float) @ (place >= 0) > 0
    elements = to_slots(near)
    places = np.where(elements >= 0, np.take_along_axis(place, np.maximum(elements, 0), axis=0), -1)
    return NeighbourSlots(group, elements.reshape(-1, *row_shape), places.reshape(-1, *row_shape))


def _positions_in_row(target: Target, group: HiddenGroup, row_shape: Sequence[int]) -> np.ndarray:
    if target.slots is None:
        return np.arange(int(np.prod(row_shape)))[None]
    slots: Any = target.slots if group.batch_size is None else target.slots[:, 0]
    return np.asarray(slots).reshape(slots.shape[0], -1)
