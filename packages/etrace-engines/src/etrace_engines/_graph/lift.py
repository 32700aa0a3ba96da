"""From a stateful model to a pure step function: one flat jaxpr, and the role of each of its inputs and outputs.

Calls (`jit`, `checkpoint`) are inlined, short scans and conditionals that hold parameters are unrolled, so that the
analysis sees every parameter operation. `custom_jvp` and `custom_vjp` calls stay opaque: surrogate gradients live
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from .._compat import ClosedJaxpr, JaxprEqn, Literal, bind, call_body, scan_parts
from .._ops import WRITTEN_OUT, write_out

Path = tuple[Any, ...]
_MARKERS = ("etp_",)  # primitives of libraries that mark trainable operations for their own compiler: braintrace
UNROLL_LIMIT = 16  # scan steps; longer ones keep their parameters to the in-step gradient


@dataclass(frozen=True)
class StateLeaf:
    """One array of one state, with the path of the state in the model."""

    path: Path
    state: Any  # brainstate.State, which is not typed
    index: int

    @property
    def name(self) -> str:
        """Dotted path, with the leaf's number where the state holds several arrays."""
        dotted = ".".join(map(str, self.path))
        return dotted if len(jax.tree.leaves(self.state.value)) == 1 else f"{dotted}[{self.index}]"


@dataclass(frozen=True)
class StepFunction:
    """The model's step as a flat jaxpr: (arguments, parameters, hidden, other) -> (outputs, new hidden, new other)."""

    closed: ClosedJaxpr
    params: tuple[StateLeaf, ...]
    hidden: tuple[StateLeaf, ...]
    other: tuple[StateLeaf, ...]
    args_tree: Any  # jax PyTreeDef
    out_tree: Any  # jax PyTreeDef

    @property
    def num_args(self) -> int:
        """Number of argument arrays."""
        return int(self.args_tree.num_leaves)

    @property
    def num_outputs(self) -> int:
        """Number of output arrays."""
        return int(self.out_tree.num_leaves)


def lift(model: Any, args: Sequence[Any]) -> StepFunction:
    """Trace ``model(*args)`` once and return its step function."""
    lifted = brainstate.transform.StatefulFunction(model, return_only_write=False)
    lifted.make_jaxpr(*args)
    states = list(lifted.get_states(*args))
    paths = {id(state): path for path, state in model.states().items()}
    leaves = [
        StateLeaf(paths.get(id(state), (state.name or type(state).__name__,)), state, i)
        for state in states
        for i, _ in enumerate(jax.tree.leaves(state.value))
    ]
    roles = [_role(leaf.state) for leaf in leaves]
    args_tree: Any = jax.tree.structure(tuple(args))
    out_tree: Any = jax.tree.structure(lifted.get_out_shapes(*args)[0])
    traced = lifted.get_jaxpr(*args)
    order = [i for role in ("params", "hidden", "other") for i, r in enumerate(roles) if r == role]
    closed = _reorder_and_inline(traced, order, roles, args_tree.num_leaves, out_tree.num_leaves)
    pick = lambda role: tuple(leaf for leaf, r in zip(leaves, roles, strict=True) if r == role)
    return StepFunction(closed, pick("params"), pick("hidden"), pick("other"), args_tree, out_tree)


def _role(state: Any) -> str:
    if isinstance(state, brainstate.ParamState):
        return "params"
    return "hidden" if isinstance(state, brainstate.HiddenState) else "other"


def _reorder_and_inline(
    traced: ClosedJaxpr, order: list[int], roles: list[str], num_args: int, num_out: int
) -> ClosedJaxpr:
    """Flatten the jaxpr, with the states in the order of their roles and the parameters left out of the outputs."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in traced.jaxpr.invars]
    flat_avals = [*avals[:num_args], *(avals[num_args + i] for i in order)]

    def run(*inputs: Array) -> list[Array]:
        values: list[Any] = [*inputs[:num_args], *[None] * len(order)]
        flags = [False] * len(values)
        for i, value in zip(order, inputs[num_args:], strict=True):
            values[num_args + i] = value
            flags[num_args + i] = roles[i] == "params"
        outs, _ = _inline(traced, values, flags)
        return [*outs[:num_out], *(outs[num_out + i] for i in order if roles[i] != "params")]

    return jax.make_jaxpr(run)(*flat_avals)


def _inline(closed: ClosedJaxpr, args: Sequence[Any], flags: Sequence[bool]) -> tuple[list[Any], list[bool]]:
    """Evaluate a jaxpr with its calls inlined; `flags` say which values depend on parameters."""
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True)) | dict(
        zip(jaxpr.invars, args, strict=True)
    )
    flag: dict[Any, bool] = dict.fromkeys(jaxpr.constvars, False) | dict(zip(jaxpr.invars, flags, strict=True))
    for eqn in jaxpr.eqns:
        ins = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
        marks = [not isinstance(v, Literal) and flag[v] for v in eqn.invars]
        outs, out_marks = _inline_equation(eqn, ins, marks)
        env.update(zip(eqn.outvars, outs, strict=True))
        flag.update(zip(eqn.outvars, out_marks, strict=True))
    read = lambda table, v, literal: literal if isinstance(v, Literal) else table[v]
    return (
        [read(env, v, getattr(v, "val", None)) for v in jaxpr.outvars],
        [read(flag, v, False) for v in jaxpr.outvars],
    )


def _inline_equation(eqn: JaxprEqn, ins: list[Any], marks: list[bool]) -> tuple[list[Any], list[bool]]:
    body = call_body(eqn)
    if body is not None:
        return _inline(body, ins, marks)
    if eqn.primitive.name in WRITTEN_OUT:
        return _inline(jax.make_jaxpr(lambda *operands: [write_out(eqn, operands)])(*ins), ins, marks)
    if any(marks) and eqn.primitive.name.startswith(_MARKERS):
        return _plain_operations(eqn, ins, marks)
    if any(marks) and eqn.primitive.name == "scan" and eqn.params["length"] <= UNROLL_LIMIT:
        return _unroll_scan(eqn, ins, marks)
    if any(marks) and eqn.primitive.name == "cond":
        return _merge_branches(eqn, ins, marks)
    return bind(eqn, ins), [any(marks)] * len(eqn.outvars)


def _plain_operations(eqn: JaxprEqn, ins: list[Any], marks: list[bool]) -> tuple[list[Any], list[bool]]:
    """Trace the implementation of a marker primitive: it is written in plain operations, which the rules know."""

    def run(*operands: Array) -> list[Any]:
        out = eqn.primitive.impl(*operands, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]

    return _inline(jax.make_jaxpr(run)(*ins), ins, marks)


def _unroll_scan(eqn: JaxprEqn, ins: list[Any], marks: list[bool]) -> tuple[list[Any], list[bool]]:
    body, num_consts, num_carry, length, reverse = scan_parts(eqn)
    consts, carry, xs = ins[:num_consts], ins[num_consts : num_consts + num_carry], ins[num_consts + num_carry :]
    c_marks, carry_marks, x_marks = (
        marks[:num_consts],
        marks[num_consts : num_consts + num_carry],
        marks[num_consts + num_carry :],
    )
    stacked: dict[int, list[Any]] = {}
    y_marks: list[bool] = []
    for t in reversed(range(length)) if reverse else range(length):
        outs, out_marks = _inline(body, [*consts, *carry, *(x[t] for x in xs)], [*c_marks, *carry_marks, *x_marks])
        carry, carry_marks = outs[:num_carry], out_marks[:num_carry]
        stacked[t], y_marks = outs[num_carry:], out_marks[num_carry:]
    ys = [jnp.stack([stacked[t][j] for t in range(length)]) for j in range(len(y_marks))]
    return [*carry, *ys], [*carry_marks, *y_marks]


def _merge_branches(eqn: JaxprEqn, ins: list[Any], marks: list[bool]) -> tuple[list[Any], list[bool]]:
    """Evaluate every branch and select, as `vmap` does."""
    results = [_inline(branch, ins[1:], marks[1:]) for branch in eqn.params["branches"]]
    index = jnp.clip(ins[0].astype(jnp.int32), 0, len(results) - 1)
    outs = [jax.lax.select_n(index, *values) for values in zip(*(outs for outs, _ in results), strict=True)]
    return outs, [any(flags) or marks[0] for flags in zip(*(flags for _, flags in results), strict=True)]
