"""Which equations apply a parameter: the parameter cone and the relations at its frontier.

The *cone* holds every variable computed from parameters and constants only. An equation with one operand in the cone
and another outside it is a *relation*; its operand in the cone is the *effective weight* (`softplus(w)`, `w * mask`,
...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from .._compat import JaxprEqn, Literal, aval, bind, is_float, with_constants
from .._ops import ParameterOperation, operation_of
from .lift import StepFunction


@dataclass(frozen=True)
class Relation:
    """One use of an effective weight: equation, operand, and the view of it as a parameter operation."""

    equation: int
    operand: int
    operation: ParameterOperation
    primitive: str
    params: frozenset[int]


@dataclass(frozen=True)
class Cone:
    """The parameter cone of a step: the equations inside it, its relations, and uses that no rule covers."""

    equations: tuple[int, ...]
    relations: tuple[Relation, ...]
    unsupported: tuple[tuple[str, frozenset[int]], ...]  # primitive name, parameters


def find_cone(step: StepFunction) -> Cone:
    """Analyse the step's jaxpr once, in order."""
    jaxpr = step.closed.jaxpr
    first = step.num_args
    sources: dict[Any, frozenset[int]] = {
        v: frozenset({i}) for i, v in enumerate(jaxpr.invars[first : first + len(step.params)])
    }
    data = set(jaxpr.invars) - set(sources)
    constants = dict(zip(jaxpr.constvars, step.closed.consts, strict=True))
    inside: list[int] = []
    relations: list[Relation] = []
    unsupported: list[tuple[str, frozenset[int]]] = []
    for index, eqn in enumerate(jaxpr.eqns):
        names = [None if isinstance(v, Literal) else v for v in eqn.invars]
        params = frozenset[int]().union(*(sources.get(v, frozenset()) for v in names))
        if not any(v in data for v in names):
            inside.append(index)
            sources.update(dict.fromkeys(eqn.outvars, params))
            continue
        data.update(eqn.outvars)
        for operand, v in enumerate(names):
            if v in data or not sources.get(v) or not is_float(eqn.invars[operand].aval):
                continue
            operation = (
                operation_of(with_constants(eqn, constants), operand) if is_float(aval(eqn.outvars[0])) else None
            )
            if operation is None:
                unsupported.append((eqn.primitive.name, sources[v]))
            else:
                relations.append(Relation(index, operand, operation, eqn.primitive.name, sources[v]))
    return Cone(tuple(inside), tuple(relations), tuple(unsupported))


def effective_weights(step: StepFunction, cone: Cone, params: Sequence[Array]) -> list[Array]:
    """Compute the effective weight of each relation from the parameters."""
    jaxpr = step.closed.jaxpr
    first = step.num_args
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, step.closed.consts, strict=True))
    env.update(zip(jaxpr.invars[first : first + len(step.params)], params, strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else env[v]
    for index in cone.equations:
        eqn: JaxprEqn = jaxpr.eqns[index]
        env.update(zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(jaxpr.eqns[r.equation].invars[r.operand]) for r in cone.relations]


def mixing_weights(step: StepFunction, cone: Cone, params: Sequence[Array]) -> list[Array]:
    """Compute the effective weights of mixing relations only: those whose zeros are absent connections."""
    mixing = Cone(cone.equations, tuple(r for r in cone.relations if r.operation.mixing), ())
    return list(jax.jit(lambda params: effective_weights(step, mixing, params))(list(params)))
