"""The one evaluator of the step's jaxpr: with taps, weights passed in, and the hidden past frozen or live.

A *view* of a variable says for whom it is computed: ``(live, group)``. ``group`` is the hidden group whose new states
are being computed (None: outputs, and everything else). Inside its own group, a new state is seen as computed, so that
same-step coupling (LSTM c -> h) stays; everyone else sees the group's *slab*, an independent argument of the rest of
the step. ``live`` says whether the hidden states at entry are differentiated through. All views of a variable have one
value; the compiler merges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import Array

from .._compat import Literal, bind
from .groups import HiddenGroup
from .lift import StepFunction

View = tuple[bool, int | None]


@dataclass(frozen=True)
class Inputs:
    """The arrays that one step reads."""

    args: Sequence[Array]
    params: Sequence[Array]
    hidden: Sequence[Array]
    other: Sequence[Array]

    @property
    def flat(self) -> list[Array]:
        """All arrays, in the order of the jaxpr's inputs."""
        return [*self.args, *self.params, *self.hidden, *self.other]


@dataclass(frozen=True)
class Outputs:
    """The arrays that one step writes; `computed` are the new hidden states as their own group computes them.

    `operands` are what the equations of the relations read.
    """

    outputs: list[Array]
    hidden: list[Array]
    other: list[Array]
    computed: list[Array] = field(default_factory=list)
    operands: dict[int, list[Array]] = field(default_factory=dict)


def evaluate_step(
    step: StepFunction,
    inputs: Inputs,
    swap: Mapping[tuple[int, int], Array] | None = None,
    record: frozenset[int] = frozenset(),
    *,
    taps: Mapping[int, Array] | None = None,
    detach: frozenset[tuple[int, int]] = frozenset(),
    slabs: frozenset[Any] = frozenset(),
) -> Outputs:
    """Evaluate the true step.

    `swap` replaces operands, and the operands of the equations in `record` are returned. `taps` are added to the first
    output of equations; operands in `detach` and the variables `slabs` pass no derivative on.
    """
    jaxpr = step.closed.jaxpr
    swap, taps = swap or {}, taps or {}
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, step.closed.consts, strict=True))
    env.update(zip(jaxpr.invars, inputs.flat, strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else jax.lax.stop_gradient(env[v]) if v in slabs else env[v]
    recorded: dict[int, list[Array]] = {}
    for index, eqn in enumerate(jaxpr.eqns):
        operands = [swap[index, k] if (index, k) in swap else read(v) for k, v in enumerate(eqn.invars)]
        if index in record:
            recorded[index] = operands
        operands = [jax.lax.stop_gradient(x) if (index, k) in detach else x for k, x in enumerate(operands)]
        produced = bind(eqn, operands)
        if index in taps:
            produced[0] = produced[0] + taps[index]
        env.update(zip(eqn.outvars, produced, strict=True))
    outs = [read(v) for v in jaxpr.outvars]
    a, b = step.num_outputs, step.num_outputs + len(step.hidden)
    return Outputs(outs[:a], outs[a:b], outs[b:], operands=recorded)


@dataclass(frozen=True)
class Plan:
    """Which views of which equations are evaluated, in order: worked out once per compiled learner.

    Parameters
    ----------
    live : tuple of bool
        Per hidden array: whether its new value is computed from live hidden states.
    freeze : mapping
        Equation number -> operands that read the frozen past even in a live view.
    steps : tuple of (int, View)
        Equation numbers and views, in order of evaluation.
    """

    step: StepFunction
    live: tuple[bool, ...]
    freeze: Mapping[int, frozenset[int]]
    group_of: tuple[int, ...]
    owner: Mapping[Any, int]
    depends_on_past: frozenset[Any]
    depends_on_slab: Mapping[Any, frozenset[int]]
    steps: tuple[tuple[int, View], ...]

    def normal(self, v: Any, view: View) -> View:
        """Merge views that cannot differ for this variable."""
        live, group = view
        live = live and v in self.depends_on_past
        return live, group if live or group in self.depends_on_slab.get(v, ()) else None

    def operand_view(self, index: int, operand: int, view: View) -> View:
        """Return the view in which an equation, itself seen in `view`, reads an operand."""
        live, group = view
        return live and operand not in self.freeze.get(index, ()), group


def make_plan(
    step: StepFunction,
    groups: Sequence[HiddenGroup],
    live: Sequence[bool],
    freeze: Mapping[int, frozenset[int]],
    *,
    with_outputs: bool,
) -> Plan:
    """Find the views that the new hidden states (and the outputs, if asked for) need."""
    jaxpr = step.closed.jaxpr
    count = len(step.hidden)
    group_of = [0] * count
    for group in groups:
        for member in group.members:
            group_of[member] = group.index
    invars = set(jaxpr.invars)
    new = jaxpr.outvars[step.num_outputs :][:count]
    owner: dict[Any, int] = {}
    for i, v in enumerate(new):
        if not isinstance(v, Literal) and v not in invars:
            owner.setdefault(v, i)
    past, slab = _dependencies(step, owner, group_of)
    plan = Plan(step, tuple(live), dict(freeze), tuple(group_of), owner, past, slab, ())
    needed: dict[Any, set[View]] = {}

    def request(v: Any, view: View) -> None:
        if isinstance(v, Literal) or v in invars:
            return
        if v in owner and group_of[owner[v]] != view[1]:
            member = owner[v]
            view = (plan.live[member], group_of[member])
        needed.setdefault(v, set()).add(plan.normal(v, view))

    for i, v in enumerate(new):
        request(v, (plan.live[i], group_of[i]))
    if with_outputs:
        for v in [*jaxpr.outvars[: step.num_outputs], *jaxpr.outvars[step.num_outputs + count :]]:
            request(v, (True, None))
    steps: list[tuple[int, View]] = []
    for index in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[index]
        for view in sorted({w for v in eqn.outvars for w in needed.get(v, ())}, key=str):
            steps.append((index, view))
            for k, v in enumerate(eqn.invars):
                request(v, plan.operand_view(index, k, view))
    return Plan(step, tuple(live), dict(freeze), tuple(group_of), owner, past, slab, tuple(reversed(steps)))


def _dependencies(
    step: StepFunction, owner: Mapping[Any, int], group_of: Sequence[int]
) -> tuple[frozenset[Any], dict[Any, frozenset[int]]]:
    """Which variables depend on hidden states at entry, and on the slabs of which groups."""
    jaxpr = step.closed.jaxpr
    hidden = jaxpr.invars[step.num_args + len(step.params) :][: len(step.hidden)]
    past: set[Any] = set(hidden)
    slab: dict[Any, frozenset[int]] = {}
    for eqn in jaxpr.eqns:
        ins = [v for v in eqn.invars if not isinstance(v, Literal)]
        marks = frozenset[int]().union(
            *(slab.get(v, frozenset()) | ({group_of[owner[v]]} if v in owner else frozenset()) for v in ins)
        )
        if any(v in past for v in ins):
            past.update(eqn.outvars)
        slab.update(dict.fromkeys(eqn.outvars, marks))
    return frozenset(past), slab


def evaluate_views(
    plan: Plan,
    inputs: Inputs,
    *,
    swap: Mapping[tuple[int, int], Array] | None = None,
    taps: Mapping[int, Array] | None = None,
    detach: frozenset[tuple[int, int]] = frozenset(),
    slab: Callable[[int, Array], Array] = lambda member, computed: computed,
    with_outputs: bool = True,
) -> Outputs:
    """Evaluate a plan.

    `swap` replaces operands, `taps` are added to the first output of equations, operands in `detach` pass no gradient,
    and `slab` maps a computed new state to what the rest of the step sees.
    """
    step, jaxpr = plan.step, plan.step.closed.jaxpr
    swap, taps = swap or {}, taps or {}
    base: dict[Any, Any] = dict(zip(jaxpr.constvars, step.closed.consts, strict=True))
    base.update(zip(jaxpr.invars, inputs.flat, strict=True))
    first = step.num_args + len(step.params)
    member_of = {v: i for i, v in enumerate(jaxpr.invars[first : first + len(step.hidden)])}
    env: dict[tuple[Any, View], Any] = {}
    slabs: dict[int, Any] = {}

    def read(v: Any, view: View) -> Any:
        if isinstance(v, Literal):
            return v.val
        if v in member_of:
            live, group = view
            is_live = live and (group is None or group == plan.group_of[member_of[v]])
            return base[v] if is_live else jax.lax.stop_gradient(base[v])
        if v in base:
            return base[v]
        if v in plan.owner and plan.group_of[plan.owner[v]] != view[1]:
            return slab_of(plan.owner[v], v)
        return env[v, plan.normal(v, view)]

    def computed(member: int, v: Any) -> Any:
        return read(v, (plan.live[member], plan.group_of[member]))

    def slab_of(member: int, v: Any) -> Any:
        if member not in slabs:
            slabs[member] = slab(member, computed(member, v))
        return slabs[member]

    for index, view in plan.steps:
        eqn = jaxpr.eqns[index]
        operands = [
            swap[index, k] if (index, k) in swap else read(v, plan.operand_view(index, k, view))
            for k, v in enumerate(eqn.invars)
        ]
        operands = [jax.lax.stop_gradient(x) if (index, k) in detach else x for k, x in enumerate(operands)]
        outs = bind(eqn, operands)
        if index in taps:
            outs[0] = outs[0] + taps[index]
        env.update({(v, plan.normal(v, view)): out for v, out in zip(eqn.outvars, outs, strict=True)})
    new = jaxpr.outvars[step.num_outputs :][: len(step.hidden)]
    result = Outputs([], [slab_of(i, v) for i, v in enumerate(new)], [], [computed(i, v) for i, v in enumerate(new)])
    if not with_outputs:
        return result
    rest = [*jaxpr.outvars[: step.num_outputs], *jaxpr.outvars[step.num_outputs + len(new) :]]
    outs = [read(v, (True, None)) for v in rest]
    return Outputs(outs[: step.num_outputs], result.hidden, outs[step.num_outputs :], result.computed)
