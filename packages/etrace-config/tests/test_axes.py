"""The vocabulary is one: its table, its types and the defaults agree."""

from __future__ import annotations

import inspect
import typing

import pytest

from etrace_config import AXES, COEFFICIENTS, ETraceConfig, _axes

ALIASES = {
    "trace_factorization": _axes.TraceFactorization,
    "temporal_recursion": _axes.TemporalRecursion,
    "recurrence_scope": _axes.RecurrenceScope,
    "learning_signal": _axes.LearningSignal,
    "trace_filter": _axes.TraceFilter,
    "update_schedule": _axes.UpdateSchedule,
}


@pytest.mark.parametrize("axis", AXES)
def test_type_lists_the_values_of_the_table(axis: str) -> None:
    assert typing.get_args(ALIASES[axis]) == tuple(AXES[axis])


@pytest.mark.parametrize("axis", AXES)
def test_first_value_is_the_default(axis: str) -> None:
    assert getattr(ETraceConfig(), axis) == next(iter(AXES[axis]))


def test_signature_is_the_specified_one() -> None:
    parameters = inspect.signature(ETraceConfig).parameters.values()

    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        ("trace_factorization", "per_param"),
        ("temporal_recursion", "jacobian"),
        ("recurrence_scope", "diagonal"),
        ("learning_signal", "symmetric"),
        ("trace_filter", "none"),
        ("update_schedule", "per_step"),
        ("decay", None),
        ("kappa", None),
        ("sparse_n", None),
        ("window_size", None),
    ]
    assert _axes.Fields._fields == tuple(parameter.name for parameter in parameters)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficient_belongs_to_a_category(name: str) -> None:
    assert COEFFICIENTS[name].value in AXES[COEFFICIENTS[name].axis]
