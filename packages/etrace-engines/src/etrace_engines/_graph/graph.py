"""The compiled graph: a step function with its relations, hidden groups, and one target per trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import Literal as JaxprLiteral
from .._compat import is_float
from .chains import merge_chains
from .evaluate import Inputs, evaluate_views, make_plan
from .groups import HiddenGroup, find_groups
from .lift import Path, StateLeaf, StepFunction, lift
from .positions import ancestors, plainly_elementwise, reach
from .relations import Cone, Relation, effective_weights, find_cone, mixing_weights

Follow = Literal["local", "mixing", "reach"]
Traced = Sequence[Path] | Callable[[Path, Any], bool] | None


@dataclass(frozen=True)
class Target:
    """What one trace follows: the influence of a traced relation on a hidden group.

    `slots` has shape (slots, *output shape) and holds flat positions in the group, -1 where there is none;
    None stands for the identity. `leads_with_batch` says that row b of the output belongs to batch element b.
    """

    relation: int
    group: int
    slots: np.ndarray | None
    leads_with_batch: bool = True


@dataclass(frozen=True)
class Graph:
    """Everything that is known about a model before any rule is chosen."""

    step: StepFunction
    cone: Cone
    groups: tuple[HiddenGroup, ...]
    traced: tuple[Relation, ...]
    traced_params: frozenset[int]
    targets: tuple[Target, ...]
    detached: frozenset[tuple[int, int]]

    def weights(self, params: Sequence[Array]) -> list[Array]:
        """Effective weights of the traced relations."""
        cone = Cone(self.cone.equations, self.traced, ())
        return effective_weights(self.step, cone, params)

    def swap(self, weights: Sequence[Array]) -> dict[tuple[int, int], Array]:
        """Operands that read given effective weights."""
        return {(r.equation, r.operand): w for r, w in zip(self.traced, weights, strict=True)}

    def ends_in_group(self, relation: int) -> bool:
        """Whether the output of a traced relation acts on nothing but the states of one group, and on those locally.

        Then what the group's signal says to the relation is all that the step says to it.
        """
        step, eqns = self.step, self.step.closed.jaxpr.eqns
        outs = step.closed.jaxpr.outvars
        followed = {t.group for t in self.targets if t.relation == relation}
        members = [m for g in followed for m in self.groups[g].members]
        own = frozenset(v for m in members if not isinstance(v := outs[step.num_outputs + m], JaxprLiteral))
        read = [*outs, *(eqns[index].invars[k] for index, k in self.detached)]
        elsewhere = {v for v in read if not isinstance(v, JaxprLiteral)} - own
        output = eqns[self.traced[relation].equation].outvars[0]
        return len(followed) == 1 and output not in ancestors(step, elsewhere, own, frozenset())

    def output_shape(self, target: Target) -> tuple[int, ...]:
        """Shape of the output of a target's relation."""
        eqn = self.step.closed.jaxpr.eqns[self.traced[target.relation].equation]
        return tuple(eqn.outvars[0].aval.shape)


def build_graph(
    model: Any,
    args: Sequence[Any],
    *,
    batch_size: int | None,
    hidden_groups: Literal["auto", "joint"],
    traced: Traced,
    follow: Follow = "local",
) -> Graph:
    """Lift a model and analyse its step.

    `follow` says how far influence is followed within a step: 'local', up to the next mixing operation; 'mixing',
    through it; 'reach', through it without asking which positions are reached.
    """
    step = lift(model, args)
    step = merge_chains(step) if follow == "local" else step
    _check_batch(step, batch_size)
    cone = find_cone(step)
    groups = find_groups(step, cone, batch_size, hidden_groups)
    wanted = _traced_params(step.params, traced)
    eqns = step.closed.jaxpr.eqns
    carriers = (
        (r.equation, k)
        for r in cone.relations
        if r.operation.mixing
        for k in range(len(eqns[r.equation].invars))
        if k != r.operand
    )
    detached = frozenset(carriers if follow == "local" else ())
    candidates = tuple(r for r in cone.relations if r.params & wanted)
    draft = Graph(step, cone, groups, candidates, wanted, (), detached)
    targets = _find_targets(draft, current_inputs(step, args), follow)
    kept = sorted({t.relation for t in targets})
    return replace(
        draft,
        traced=tuple(candidates[i] for i in kept),
        targets=tuple(replace(t, relation=kept.index(t.relation)) for t in targets),
    )


def _check_batch(step: StepFunction, batch_size: int | None) -> None:
    if batch_size is None:
        return
    for leaf in step.hidden:
        shape = jax.tree.leaves(leaf.state.value)[leaf.index].shape
        if shape[:1] != (batch_size,):
            raise ValueError(
                f"`batch_size={batch_size}` does not lead the shape {shape} of hidden state {leaf.name!r}; "
                "initialise the model's states with this batch size, or pass the size they have."
            )


def _traced_params(params: Sequence[StateLeaf], traced: Traced) -> frozenset[int]:
    """Select the parameters that may be traced."""
    if traced is None:
        return frozenset(range(len(params)))
    if callable(traced):
        return frozenset(i for i, leaf in enumerate(params) if traced(leaf.path, leaf.state))
    wanted = {tuple(path) if isinstance(path, (tuple, list)) else (path,) for path in traced}
    unknown = wanted - {leaf.path for leaf in params}
    if unknown:
        known = sorted(str(leaf.path) for leaf in params)
        raise ValueError(
            f"`traced` names {sorted(map(str, unknown))}, which are not parameters of the model; it has {known}."
        )
    return frozenset(i for i, leaf in enumerate(params) if leaf.path in wanted)


def _find_targets(graph: Graph, inputs: Inputs, follow: Follow) -> list[Target]:
    """Find which groups each relation reaches, and at which positions."""
    step, eqns = graph.step, graph.step.closed.jaxpr.eqns
    new = step.closed.jaxpr.outvars[step.num_outputs :]
    weights = mixing_weights(step, graph.cone, inputs.params) if follow == "mixing" else []
    found: list[Target] = []
    for group in graph.groups:
        if not all(is_float(new[m].aval) for m in group.members):
            continue
        states = {new[m] for m in group.members if not isinstance(new[m], JaxprLiteral)}
        slabs = frozenset(v for v in new if not isinstance(v, JaxprLiteral)) - states
        needed = ancestors(step, states, slabs, graph.detached)
        equations = {r.equation for r in graph.traced if eqns[r.equation].outvars[0] in needed - slabs}
        is_plain = lambda e, g=group, n=needed, s=slabs: plainly_elementwise(step, e, g, n, s, graph.detached)
        identity = equations if follow == "reach" else set() if group.joint else set(filter(is_plain, equations))
        slots = _probe(graph, inputs, group, equations - identity, weights) if equations - identity else {}
        for i, relation in enumerate(graph.traced):
            if relation.equation in identity:
                found.append(Target(i, group.index, None))
            elif relation.equation in slots:
                found.append(Target(i, group.index, *slots[relation.equation]))
    return found


def _probe(
    graph: Graph, inputs: Inputs, group: HiddenGroup, equations: set[int], weights: Sequence[Array]
) -> dict[int, tuple[np.ndarray, bool]]:
    """Probe position maps, and whether they were found by batch row or over the whole batch."""
    plan = make_plan(graph.step, graph.groups, [False] * len(graph.step.hidden), {}, with_outputs=False)
    eqns = graph.step.closed.jaxpr.eqns
    shapes = {e: eqns[e].outvars[0].aval for e in equations}
    taps = {e: np.zeros(aval.shape, aval.dtype) for e, aval in shapes.items()}

    def taps_to_states(taps: dict[int, Array]) -> list[Array]:
        computed = evaluate_views(
            plan,
            inputs,
            taps=taps,
            detach=graph.detached,
            slab=lambda member, value: jax.lax.stop_gradient(value),
            with_outputs=False,
        ).computed
        return [computed[m] for m in group.members]

    found = reach(taps_to_states, taps, group, weights)
    rest = {e: taps[e] for e, slots in found.items() if slots is None}
    over_all = reach(taps_to_states, rest, replace(group, batch_size=None), weights) if rest else {}
    positions = {e: (slots, True) for e, slots in found.items() if slots is not None}
    return positions | {e: (slots, False) for e, slots in over_all.items() if slots is not None}


def current_inputs(step: StepFunction, args: Sequence[Any]) -> Inputs:
    """Collect the arrays that the states hold now."""
    read = lambda leaves: [jnp.asarray(jax.tree.leaves(leaf.state.value)[leaf.index]) for leaf in leaves]
    return Inputs(jax.tree.leaves(tuple(args)), read(step.params), read(step.hidden), read(step.other))
