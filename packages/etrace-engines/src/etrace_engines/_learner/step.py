"""One step of a learner as a differentiable function: the model's values, the rule's gradient.

The gradient is the exact one of the step, for every parameter, plus what the learning signal says to the trace. Where
the signal is the true dL/dh and the rule's transition acts on hidden states, both come out of one backward pass through
the *rule's step*, in which the past reaches the new states through the transition only. Otherwise the signal is read
off first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._engine.base import AbstractEngine, apply_blocks
from .._graph.evaluate import Inputs, Outputs, Plan, evaluate_step, evaluate_views, make_plan
from .._graph.graph import Graph
from .._jacobian.leak import Leak

# From the true signal, the call's modulator and the cotangents of the outputs to what meets the trace.
Signal = Callable[[Sequence[Array], Any, Sequence[Array]], list[Array]]


class Arrays(NamedTuple):
    """The arrays of a step, split by role."""

    params: list[Array]
    hidden: list[Array]
    other: list[Array]
    args: list[Array]


class Result(NamedTuple):
    """What a step leaves: outputs, states, traces."""

    outputs: list[Array]
    hidden: list[Array]
    other: list[Array]
    traces: Any


@dataclass(frozen=True)
class Rule:
    """A compiled rule: graph, engine, the plan of the rule's step, and the signal (None: the true one)."""

    graph: Graph
    engine: AbstractEngine
    plan: Plan
    signal: Signal | None

    @property
    def recorded(self) -> frozenset[int]:
        """Equations whose operands the engine reads."""
        return frozenset(r.equation for r in self.graph.traced)


def make_rule(graph: Graph, engine: AbstractEngine, signal: Signal | None) -> Rule:
    """Plan the rule's step: the past is frozen for states, live for outputs that read it directly."""
    plan = make_plan(graph.step, graph.groups, [False] * len(graph.step.hidden), {}, with_outputs=True)
    return Rule(graph, engine, plan, signal)


def observe(rule: Rule, arrays: Arrays, traces: Any) -> tuple[Outputs, Any]:
    """Evaluate the step and the local dynamics that the engine needs."""
    weights = rule.graph.weights(arrays.params)
    inputs = Inputs(arrays.args, arrays.params, arrays.hidden, arrays.other)
    outs = evaluate_step(rule.graph.step, inputs, rule.graph.swap(weights), rule.recorded)
    return outs, rule.engine.local(inputs, weights, outs.operands, traces)


def single_step(rule: Rule) -> Callable[[Arrays, Any, Any], Result]:
    """Return the differentiable step ``(arrays, traces, modulator) -> result``."""

    @jax.custom_vjp
    def run(arrays: Arrays, traces: Any, modulator: Any) -> Result:
        return forward(arrays, traces, modulator)[0]

    def forward(arrays: Arrays, traces: Any, modulator: Any) -> tuple[Result, Any]:
        outs, local = observe(rule, arrays, traces)
        result = Result(outs.outputs, outs.hidden, outs.other, rule.engine.advance(traces, local))
        return result, (arrays, traces, local, modulator)

    def backward(residual: Any, cotangent: Result) -> tuple[Arrays, None, None]:
        arrays, traces, local, modulator = residual
        wanted = (list(cotangent.outputs), list(cotangent.hidden), list(cotangent.other))
        hidden, other, args = _entry_cotangents(rule, arrays, wanted)
        params, weights, past = _gradients(rule, arrays, traces, local, modulator, wanted)
        return Arrays(to_params(rule.graph, arrays.params, params, weights, past), hidden, other, args), None, None

    run.defvjp(forward, backward)
    return run


def steps_in_a_row(step: Callable[[Arrays, Any, Any], Result]) -> Callable[[Arrays, Any, Any], Result]:
    """Return a function that runs single steps over a window, with time leading arguments and modulators.

    No cotangent passes from step to step: the traces carry what came before.
    """

    def run(arrays: Arrays, traces: Any, modulators: Any) -> Result:
        def body(carry: Any, x: Any) -> Any:
            hidden, other, traces = carry
            args, modulator = x
            result = step(Arrays(arrays.params, hidden, other, args), traces, modulator)
            return jax.lax.stop_gradient((result.hidden, result.other, result.traces)), result.outputs

        start = (arrays.hidden, arrays.other, traces)
        (hidden, other, traces), outputs = jax.lax.scan(body, start, (arrays.args, modulators))
        return Result(outputs, hidden, other, traces)

    return run


def _entry_cotangents(rule: Rule, arrays: Arrays, wanted: Any) -> tuple[list[Array], list[Array], list[Array]]:
    """Exact cotangents of everything but the parameters; the compiler drops what nobody reads."""

    def step(hidden: list[Array], other: list[Array], args: list[Array]) -> Any:
        outs = evaluate_step(rule.graph.step, Inputs(args, arrays.params, hidden, other))
        return outs.outputs, outs.hidden, outs.other

    _, pull = jax.vjp(step, arrays.hidden, arrays.other, arrays.args)
    hidden, other, args = pull(wanted)
    return hidden, other, args


def _gradients(
    rule: Rule, arrays: Arrays, traces: Any, local: Any, modulator: Any, wanted: Any
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return the in-step gradients of plain uses and of effective weights, and the gradient through the traces."""
    blocks = rule.engine.blocks(local)
    if rule.signal is None and blocks is not None:
        params, weights, entry, _ = _pull_rule_step(rule, arrays, wanted, blocks)
        return params, weights, rule.engine.entry(traces, _to_groups(rule.graph, entry))
    params, weights, direct, taps = _pull_rule_step(rule, arrays, wanted, None)
    signal = _to_groups(rule.graph, taps)
    if rule.signal is not None:
        signal = rule.signal(signal, modulator, wanted[0])
        params, weights, direct = _pull_with_signal(rule, arrays, wanted, signal)
    past = rule.engine.past(traces, local, signal)
    through_entry = rule.engine.entry(traces, _to_groups(rule.graph, direct))
    return params, weights, [a + b for a, b in zip(past, through_entry, strict=True)]


def rule_step(
    rule: Rule,
    arrays: Arrays,
    weights: Sequence[Array],
    blocks: Sequence[Array | Leak] | None,
    taps: Sequence[Array | None] | None = None,
    equation_taps: dict[int, Array] | None = None,
) -> Outputs:
    """Evaluate the rule's step: the model's values, with the past reaching new states through `blocks` only."""
    passed: dict[int, Array] = {}
    if blocks is not None:
        for group, transition in zip(rule.graph.groups, blocks, strict=True):
            rows = group.rows([arrays.hidden[m] for m in group.members])
            passed.update(zip(group.members, group.unstack(_only_tangent(transition, rows)), strict=True))

    def slab(member: int, computed: Array) -> Array:
        value = computed + passed[member].astype(computed.dtype) if member in passed else computed
        tap = None if taps is None else taps[member]
        return value if tap is None else value + tap

    inputs = Inputs(arrays.args, arrays.params, arrays.hidden, arrays.other)
    return evaluate_views(rule.plan, inputs, swap=rule.graph.swap(weights), slab=slab, taps=equation_taps)


@jax.custom_jvp
def _only_tangent(transition: Any, rows: Array) -> Array:
    """Zero, with the derivative R: the past enters the rule's step without changing a value."""
    return jnp.zeros_like(rows)


@_only_tangent.defjvp
def _only_tangent_jvp(primals: tuple[Any, Array], tangents: tuple[Any, Array]) -> tuple[Array, Array]:
    transition, rows = primals
    return jnp.zeros_like(rows), apply_blocks(transition, tangents[1]).astype(rows.dtype)


def _pull_rule_step(
    rule: Rule, arrays: Arrays, wanted: Any, blocks: Sequence[Array | Leak] | None
) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
    """Pull the step's cotangents back to parameters, effective weights, entry states, and new states."""

    def step(params: list[Array], weights: list[Array], hidden: list[Array], taps: list[Array]) -> Any:
        outs = rule_step(rule, arrays._replace(params=params, hidden=hidden), weights, blocks, taps)
        return outs.outputs, outs.hidden, outs.other

    taps = [jnp.zeros_like(h) if jnp.issubdtype(h.dtype, jnp.inexact) else None for h in arrays.hidden]
    _, pull = jax.vjp(step, arrays.params, rule.graph.weights(arrays.params), arrays.hidden, taps)
    params, weights, hidden, signal = pull(wanted)
    return params, weights, hidden, signal


def _pull_with_signal(
    rule: Rule, arrays: Arrays, wanted: Any, signal: Sequence[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Pull the outputs' cotangents back as far as the new states, and the given signal from there on."""

    def step(params: list[Array], weights: list[Array], hidden: list[Array]) -> Any:
        inputs = Inputs(arrays.args, params, hidden, arrays.other)
        outs = evaluate_views(
            rule.plan,
            inputs,
            swap=rule.graph.swap(weights),
            slab=lambda member, computed: jax.lax.stop_gradient(computed),
        )
        return outs.outputs, outs.other, outs.computed

    _, pull = jax.vjp(step, arrays.params, rule.graph.weights(arrays.params), arrays.hidden)
    computed = list(wanted[1])
    for group, rows in zip(rule.graph.groups, signal, strict=True):
        for member, row in zip(group.members, group.unstack(rows), strict=True):
            computed[member] = row.astype(arrays.hidden[member].dtype)
    params, weights, hidden = pull((wanted[0], wanted[2], computed))
    return params, weights, hidden


def _to_groups(graph: Graph, per_member: Sequence[Array]) -> list[Array]:
    return [group.rows([per_member[m] for m in group.members]) for group in graph.groups]


def to_params(
    graph: Graph, params: list[Array], plain: list[Array], weights: list[Array], past: list[Array]
) -> list[Array]:
    """Carry gradients of effective weights back to the parameters; the past reaches the traced ones only."""
    _, pull = jax.vjp(graph.weights, params)
    if all(r.params <= graph.traced_params for r in graph.traced):
        (through,) = pull([a + b for a, b in zip(weights, past, strict=True)])
        return [_add(a, b) for a, b in zip(plain, through, strict=True)]
    (now,) = pull(weights)
    (before,) = pull(past)
    return [
        _add(_add(a, b), c) if i in graph.traced_params else _add(a, b)
        for i, (a, b, c) in enumerate(zip(plain, now, before, strict=True))
    ]


def _add(a: Array, b: Array) -> Array:
    return a if a.dtype == jax.dtypes.float0 else a + b
