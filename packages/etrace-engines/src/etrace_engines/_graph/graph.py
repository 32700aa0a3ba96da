"""The compiled graph: a step function with its relations, hidden groups, and one target per trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import Literal as JaxprLiteral
from .._compat import is_float
from .evaluate import Inputs, Plan, evaluate_views, make_plan
from .groups import HiddenGroup, find_groups
from .lift import Path, StateLeaf, StepFunction, lift
from .positions import plainly_elementwise, reach
from .relations import Cone, Relation, effective_weights, find_cone

Traced = Sequence[Path] | Callable[[Path, Any], bool] | None


@dataclass(frozen=True)
class Target:
    """What one trace follows: the influence of a traced relation on a hidden group.

    `slots` has shape (slots, *output shape) and holds flat positions in the group, -1 where there is none;
    None stands for the identity.
    """

    relation: int
    group: int
    slots: np.ndarray | None


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
) -> Graph:
    """Lift a model and analyse its step."""
    step = lift(model, args)
    _check_batch(step, batch_size)
    cone = find_cone(step)
    groups = find_groups(step, cone, batch_size, hidden_groups)
    wanted = _traced_params(step.params, traced)
    eqns = step.closed.jaxpr.eqns
    detached = frozenset(
        (r.equation, k) for r in cone.relations if r.operation.mixing for k in range(len(eqns[r.equation].invars)) if k != r.operand
    )
    candidates = tuple(r for r in cone.relations if r.params & wanted)
    found = _find_targets(step, groups, candidates, detached, args, cone)
    kept = sorted({i for i, _, _ in found})
    targets = tuple(Target(kept.index(i), group, slots) for i, group, slots in found)
    return Graph(step, cone, groups, tuple(candidates[i] for i in kept), wanted, targets, detached)


def _check_batch(step: StepFunction, batch_size: int | None) -> None:
    if batch_size is None:
        return
    for leaf in step.hidden:
        shape = jax.tree.leaves(leaf.state.value)[leaf.index].shape
        if shape[:1] != (batch_size,):
            raise ValueError(
                f"`batch_size={batch_size}` does not lead the shape {shape} of hidden state {leaf.name!r}; initialise the model's "
                f"states with this batch size, or pass the size they have."
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
        raise ValueError(f"`traced` names {sorted(map(str, unknown))}, which are not parameters of the model; it has {known}.")
    return frozenset(i for i, leaf in enumerate(params) if leaf.path in wanted)


def _find_targets(
    step: StepFunction,
    groups: Sequence[HiddenGroup],
    relations: Sequence[Relation],
    detached: frozenset[tuple[int, int]],
    args: Sequence[Any],
    cone: Cone,
) -> list[tuple[int, int, np.ndarray | None]]:
    """Find which groups each relation reaches, and at which positions."""
    plan = make_plan(step, groups, [False] * len(step.hidden), {}, with_outputs=False)
    inputs = current_inputs(step, args)
    new = step.closed.jaxpr.outvars[step.num_outputs :]
    weights = effective_weights(step, cone, inputs.params)
    found: list[tuple[int, int, np.ndarray | None]] = []
    for i, relation in enumerate(relations):
        for group in groups:
            if not all(is_float(new[m].aval) for m in group.members):
                continue
            slabs = frozenset(
                new[m] for g in groups if g is not group for m in g.members if not isinstance(new[m], JaxprLiteral)
            )
            if not group.joint and plainly_elementwise(step, relation, group, detached, slabs):
                found.append((i, group.index, None))
                continue
            slots = _probe(plan, inputs, relation, group, detached, weights)
            if slots is not None:
                found.append((i, group.index, slots))
    return found


def _probe(
    plan: Plan,
    inputs: Inputs,
    relation: Relation,
    group: HiddenGroup,
    detached: frozenset[tuple[int, int]],
    weights: Sequence[Array],
) -> np.ndarray | None:
    shape = plan.step.closed.jaxpr.eqns[relation.equation].outvars[0].aval.shape

    def taps_to_states(tap: Array) -> list[Array]:
        computed = evaluate_views(
            plan,
            inputs,
            taps={relation.equation: tap},
            detach=detached,
            slab=lambda member, value: jax.lax.stop_gradient(value),
            with_outputs=False,
        ).computed
        return [computed[m] for m in group.members]

    return reach(taps_to_states, shape, group, weights)


def current_inputs(step: StepFunction, args: Sequence[Any]) -> Inputs:
    """Collect the arrays that the states hold now."""
    read = lambda leaves: [jnp.asarray(jax.tree.leaves(leaf.state.value)[leaf.index]) for leaf in leaves]
    return Inputs(jax.tree.leaves(tuple(args)), read(step.params), read(step.hidden), read(step.other))
