"""Every row of the matrix fires on its example, and its remedy works."""

from __future__ import annotations

from typing import Any

import pytest

from etrace_config import RULES, ETraceConfig, _rules, explain

IO = {"trace_factorization": "io_factorized"}
UORO = {"trace_factorization": "random_projection", "recurrence_scope": "coupled"}

# rule number, rule name, a spelling that breaks this rule alone, the change that the message proposes
EXAMPLES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("A", "recursion-pair", {"temporal_recursion": ("scalar_leak", "jacobian")}, {"temporal_recursion": "jacobian"}),
    ("A", "recursion-pair", {"temporal_recursion": ("none", "none")}, IO),
    ("A", "decay-pair", {"temporal_recursion": "scalar_leak", "decay": (0.9, 0.8)}, {"decay": 0.9}),
    ("A", "decay-pair", {"temporal_recursion": "scalar_leak", "decay": (0.9, 0.8)}, IO),
    ("B", "decay-of-none", {"temporal_recursion": "none", "decay": 0.9}, {"decay": None}),
    ("B", "decay-of-none", {"temporal_recursion": "none", "decay": 0.9}, {"temporal_recursion": "scalar_leak"}),
    ("B", "decay-of-none", {**IO, "temporal_recursion": ("none", "jacobian"), "decay": 0.9}, {"decay": (0, 0.9)}),
    ("1", "filter-needs-per-param", {**IO, "decay": 0.9, "trace_filter": "kappa", "kappa": 0.5}, {
        "trace_filter": "none", "kappa": None}),
    ("2", "scope-needs-jacobian", {"temporal_recursion": "none", "recurrence_scope": "coupled"}, {
        "recurrence_scope": "diagonal"}),
    ("2", "scope-needs-jacobian", {"temporal_recursion": "none", "recurrence_scope": "coupled"}, {
        "temporal_recursion": "jacobian"}),
    ("2", "scope-needs-jacobian", {**IO, "recurrence_scope": "coupled", "decay": (0.9, 0.0)}, {"decay": (0.9, 0.8)}),
    ("3", "x-side-jacobian", {**IO, "temporal_recursion": ("jacobian", "none"), "decay": (0.9, 0.0)}, {
        "temporal_recursion": ("scalar_leak", "none")}),
    ("4", "decay-of-jacobian", {"decay": 0.0}, {"decay": None}),
    ("4", "decay-of-jacobian", {"decay": 0.9}, {"temporal_recursion": "scalar_leak"}),
    ("4", "decay-of-jacobian", {"decay": 0.9}, IO),
    ("5", "leak-needs-decay", {"temporal_recursion": "scalar_leak"}, {"decay": 0.9}),
    ("6", "factors-need-decay", IO, {"decay": 0.9}),
    ("6", "factors-need-decay", {**IO, "temporal_recursion": ("none", "jacobian")}, {"decay": (0.0, 0.9)}),
    ("7", "kappa-without-category", {"kappa": 0.0}, {"kappa": None}),
    ("7", "kappa-without-category", {"kappa": 0.5}, {"trace_filter": "kappa"}),
    ("7", "kappa-missing", {"trace_filter": "kappa"}, {"kappa": 0.5}),
    ("7", "sparse-n-without-category", {"recurrence_scope": "coupled", "sparse_n": 1}, {"sparse_n": None}),
    ("7", "sparse-n-missing", {"recurrence_scope": "sparse_n"}, {"sparse_n": 3}),
    ("7", "window-size-without-category", {"window_size": 4}, {"update_schedule": "window"}),
    ("7", "window-size-missing", {"update_schedule": "window"}, {"window_size": 4}),
    ("11", "projection-scope", {"trace_factorization": "random_projection"}, {"recurrence_scope": "coupled"}),
    ("D", "projection-decay", {**UORO, "decay": 0.9}, {"decay": None}),
    ("9", "neighbourhood-needs-per-param", {**IO, "decay": 0.9, "recurrence_scope": "sparse_n", "sparse_n": 2}, {
        "recurrence_scope": "coupled", "sparse_n": None}),
]  # fmt: skip
IDS = [f"{number}-{name}-{next(iter(fix))}" for number, name, _, fix in EXAMPLES]


@pytest.mark.parametrize(("number", "name", "fields", "fix"), EXAMPLES, ids=IDS)
def test_example_breaks_its_rule_alone(number: str, name: str, fields: dict[str, Any], fix: dict[str, Any]) -> None:
    found = explain(**fields)

    assert [(violation.number, violation.name) for violation in found] == [(number, name)]


@pytest.mark.parametrize(("number", "name", "fields", "fix"), EXAMPLES, ids=IDS)
def test_remedy_makes_the_example_legal(number: str, name: str, fields: dict[str, Any], fix: dict[str, Any]) -> None:
    assert explain(**fields)
    assert not explain(**{**fields, **fix})


def test_every_rule_that_a_constructor_can_break_has_an_example() -> None:
    unreachable = {"not-run", "order-below-two"}  # reserved, and an invariant
    beside_another = {"projection-recursion"}  # rule 2 or 11 always fires too

    assert {rule.name for rule in RULES} == {name for _, name, _, _ in EXAMPLES} | unreachable | beside_another


@pytest.mark.parametrize("recursion", ["scalar_leak", "none"])
def test_projection_takes_the_jacobian_only(recursion: str) -> None:
    found = explain(**UORO, temporal_recursion=recursion)

    assert [violation.number for violation in found] == ["2", "C"]


def test_projection_scope_is_judged_before_the_neighbourhood() -> None:
    found = explain(trace_factorization="random_projection", recurrence_scope="sparse_n", sparse_n=2)

    assert [violation.number for violation in found] == ["11", "9"]


def test_matrix_has_the_eleven_numbers_of_the_specification() -> None:
    numbers = {rule.number for rule in RULES}

    assert {n for n in numbers if n.isdigit()} == {str(n) for n in range(1, 12)}


def test_canonical_order_below_two_is_refused() -> None:
    fields = _rules.Fields(recurrence_scope="sparse_n", sparse_n=1)

    assert [violation.number for violation in _rules.violations(fields)] == ["10"]


def test_value_without_an_engine_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "NOT_RUN", frozenset({("update_schedule", "sequence_end")}))

    with pytest.raises(ValueError, match=r"^`update_schedule='sequence_end'` is set but not available"):
        ETraceConfig(update_schedule="sequence_end")


def test_every_recognised_value_runs() -> None:
    assert not _rules.NOT_RUN
