"""All violations at once."""

from __future__ import annotations

import pytest

from etrace_config import ETraceConfig, explain


def test_legal_fields_have_no_violation() -> None:
    assert explain(trace_filter="kappa", kappa=0.5) == ()


def test_every_broken_rule_is_found() -> None:
    found = explain(
        trace_factorization="io_factorized",
        temporal_recursion=("jacobian", "none"),
        recurrence_scope="sparse_n",
        trace_filter="kappa",
        update_schedule="window",
        decay=0.9,
    )

    assert [violation.name for violation in found] == [
        "decay-of-none",
        "filter-needs-per-param",
        "scope-needs-jacobian",
        "x-side-jacobian",
        "kappa-missing",
        "sparse-n-missing",
        "window-size-missing",
        "neighbourhood-needs-per-param",
    ]


def test_every_bad_value_is_found_before_the_matrix() -> None:
    found = explain(kapa=0.5, learning_signal="none", decay=2, window_size=True, sparse_n=2)

    assert [violation.message.split("`")[1] for violation in found] == [
        "kapa",
        "learning_signal",
        "decay",
        "window_size",
    ]
    assert {violation.number for violation in found} == {"-"}


def test_unknown_field_gets_the_nearest_name() -> None:
    (violation,) = explain(trace_factorisation="per_param")

    assert violation.message.endswith("did you mean 'trace_factorization'?")


def test_first_violation_is_what_the_constructor_raises() -> None:
    with pytest.raises(ValueError, match=r"^`") as caught:
        ETraceConfig(trace_filter="kappa", window_size=4)

    assert str(caught.value) == explain(trace_filter="kappa", window_size=4)[0].message
