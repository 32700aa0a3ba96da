"""The report: how each parameter is learned, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from .graph import Graph


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
    """One row per parameter; prints as a table."""

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
