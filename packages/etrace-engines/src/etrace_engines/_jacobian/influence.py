"""Df and the diagonal D: one batch of vector-Jacobian products with ones gives both.

The step is evaluated with a tap at every traced relation's output, with the carriers of mixing relations detached: what
a tap then moves is dh/dy on the position map. Hidden positions are colored so that one product serves all of a color;
where every output element reaches one position, as in elementwise tails, there is one color.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import is_float
from .._graph.evaluate import Inputs, Plan, evaluate_views, make_plan
from .._graph.graph import Graph
from .._graph.groups import HiddenGroup
from .._graph.positions import color_positions, same_position


@dataclass(frozen=True)
class Influence:
    """The compiled computation of Df per target and, if `diagonal`, D per group."""

    graph: Graph
    plan: Plan
    colors: tuple[np.ndarray, ...]  # per group: color of each flat position

    def __call__(self, inputs: Inputs, weights: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return Df per target, (K, S, *output shape), and D per group, (S, S, *group shape)."""
        graph = self.graph
        taps = zero_taps(graph)

        def states(hidden: list[Array], taps: dict[int, Array]) -> list[Array]:
            return evaluate_views(
                self.plan,
                Inputs(inputs.args, inputs.params, hidden, inputs.other),
                swap=graph.swap(weights),
                taps=taps,
                detach=graph.detached,
                slab=lambda member, computed: jax.lax.stop_gradient(computed),
                with_outputs=False,
            ).computed

        new, pull = jax.vjp(states, list(inputs.hidden), taps)
        df: dict[int, Array] = {}
        blocks: list[Array] = []
        for group, colors in zip(graph.groups, self.colors, strict=True):
            masks = [jnp.asarray((colors == c).reshape(group.shape)) for c in range(colors.max() + 1)]
            pulled = [pull(group_cotangent(new, group, s, mask)) for mask in masks for s in range(group.num_states)]
            entries = [group.rows([h[m] for m in group.members]) for h, _ in pulled]
            blocks.append(
                jnp.stack(
                    [
                        sum(entries[s + group.num_states :: group.num_states], entries[s])
                        for s in range(group.num_states)
                    ]
                )
            )
            for i, target in enumerate(graph.targets):
                if target.group == group.index:
                    moved = [taps[graph.traced[target.relation].equation] for _, taps in pulled]
                    df[i] = _df_at_slots(moved, group.num_states, colors, target.slots)
        return [df[i] for i in range(len(graph.targets))], blocks


def zero_taps(graph: Graph) -> dict[int, Array]:
    """Return a zero tap for each equation that a target follows."""
    eqns = graph.step.closed.jaxpr.eqns
    equations = sorted({graph.traced[t.relation].equation for t in graph.targets})
    return {e: jnp.zeros(eqns[e].outvars[0].aval.shape, eqns[e].outvars[0].aval.dtype) for e in equations}


def group_cotangent(new: Sequence[Array], group: HiddenGroup, state: int | Array, mask: Array) -> list[Array]:
    """Return cotangents of all new states that equal `mask` at one state of one group, and zero elsewhere."""
    cotangent = [jnp.zeros_like(h) if is_float(h) else _no_cotangent(h) for h in new]
    dtype = new[group.members[0]].dtype
    rows = jnp.zeros((group.num_states, *group.shape), dtype).at[state].set(mask.astype(dtype))
    for member, row in zip(group.members, group.unstack(rows), strict=True):
        cotangent[member] = row
    return cotangent


def _no_cotangent(h: Array) -> Array:
    return np.zeros(h.shape, jax.dtypes.float0)  # type: ignore[return-value]  # what JAX takes for an integer's cotangent


def _df_at_slots(moved: list[Array], num_states: int, colors: np.ndarray, slots: np.ndarray | None) -> Array:
    by_color = jnp.stack(moved).reshape(-1, num_states, *moved[0].shape)  # colors, states, output
    if slots is None or (by_color.shape[0] == 1 and slots.shape[0] == 1):
        return by_color.sum(0)[None]
    color = np.where(slots >= 0, colors[np.maximum(slots, 0)], 0)
    picked = jnp.take_along_axis(by_color, jnp.asarray(color)[:, None], axis=0)
    return jnp.where(jnp.asarray(slots >= 0)[:, None], picked, 0)


def compile_influence(graph: Graph, *, diagonal: bool) -> Influence:
    """Plan the computation; `diagonal` keeps what the diagonal scope keeps of the past, else the past is frozen."""
    live: list[bool] = [False] * len(graph.step.hidden)
    freeze: dict[int, frozenset[int]] = {}
    if diagonal:
        live, freeze = same_position(graph.step, graph.groups, graph.detached)
    plan = make_plan(graph.step, graph.groups, live, freeze, with_outputs=False)
    colors = tuple(
        color_positions([t.slots for t in graph.targets if t.group == g.index and t.slots is not None], g.num_positions)
        for g in graph.groups
    )
    return Influence(graph, plan, colors)
