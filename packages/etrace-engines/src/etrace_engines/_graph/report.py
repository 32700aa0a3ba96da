"""The report: how each parameter is learned, and why."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from .._compat import Literal, aval, is_float
from .graph import Graph
from .positions import ancestors


@dataclass(frozen=True)
class ReportRow:
    """How one parameter is learned.

    Attributes
    ----------
    parameter : str
        Path of the parameter, dotted.
    treatment : {'traced', 'in-step'}
        Whether a trace follows it, or only the gradient of the step (or window) reaches it.
    relations : tuple of str
        Primitives through which it acts, one per use.
    groups : tuple of int
        Hidden groups that its traces follow.
    reason : str
        Why it is treated so.
    """

    parameter: str
    treatment: str
    relations: tuple[str, ...]
    groups: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Report:
    """How each parameter of a compiled model is learned; prints as a table.

    Attributes
    ----------
    rows : tuple of ReportRow
        One per parameter, in the order of the model's states.
    """

    rows: tuple[ReportRow, ...]

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = tuple(field.name for field in fields(ReportRow))
        cells = [head, *(tuple(_cell(value) for value in astuple(row)) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells
        )


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def make_report(graph: Graph) -> Report:
    """Describe a compiled graph."""
    return Report(tuple(_row(graph, i) for i in range(len(graph.step.params))))


def _row(graph: Graph, param: int) -> ReportRow:
    name = graph.step.params[param].name
    uses = tuple(r.primitive for r in graph.cone.relations if param in r.params)
    unsupported = tuple(primitive for primitive, params in graph.cone.unsupported if param in params)
    traced = [i for i, r in enumerate(graph.traced) if param in r.params] if param in graph.traced_params else []
    groups = tuple(sorted({t.group for t in graph.targets if t.relation in traced}))
    if traced:
        partial = len(traced) < len(uses) or unsupported
        reason = "reaches hidden states" + (", in some of its uses" if partial else "")
        return ReportRow(name, "traced", (*uses, *unsupported), groups, reason)
    if param not in graph.traced_params:
        reason = "excluded by `traced`"
    elif unsupported and not uses:
        reason = f"no rule for {', '.join(unsupported)}; `register_rule` adds one"
    elif uses:
        reason = "reaches no hidden state, or only through another mixing parameter operation"
    else:
        reason = "not used with data in the step"
    return ReportRow(name, "in-step", (*uses, *unsupported), (), reason)


def warn_of_gaps(graph: Graph) -> None:
    """Warn once, with names, of parameters that no rule covers and of states whose memory no trace follows."""
    uncovered = [row.parameter for row in make_report(graph).rows if "no rule for" in row.reason]
    if uncovered:
        warnings.warn(
            f"Parameters {', '.join(uncovered)} are learned by the in-step gradient only: no rule covers their "
            "operations. See `learner.report()`; `register_rule` adds a rule.",
            stacklevel=3,
        )
    forgotten = _untracked_states(graph)
    if forgotten:
        warnings.warn(
            f"States {', '.join(forgotten)} carry influence from step to step, but are no `HiddenState`: no trace "
            "follows them. Make them `HiddenState`, or use windows.",
            stacklevel=3,
        )


def _untracked_states(graph: Graph) -> list[str]:
    """Find float states that parameters reach, and that reach hidden states or outputs in the next step."""
    step = graph.step
    jaxpr = step.closed.jaxpr
    old = jaxpr.invars[len(jaxpr.invars) - len(step.other) :]
    new = jaxpr.outvars[len(jaxpr.outvars) - len(step.other) :]
    params = set(jaxpr.invars[step.num_args : step.num_args + len(step.params)])
    kept = {v for v in jaxpr.outvars[: len(jaxpr.outvars) - len(step.other)] if not isinstance(v, Literal)}
    read = ancestors(step, kept, frozenset(), frozenset())
    found = []
    for leaf, before, after in zip(step.other, old, new, strict=True):
        if isinstance(after, Literal) or not is_float(aval(after)) or before is after or before not in read:
            continue
        if params & ancestors(step, {after}, frozenset(), frozenset()):
            found.append(leaf.name)
    return found
