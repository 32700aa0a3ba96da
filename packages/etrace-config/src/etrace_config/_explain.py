"""Name everything that is wrong with a set of fields, not only the first thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._axes import Fields, suggest
from ._canonical import canonicalise
from ._rules import Violation, violations
from ._values import check_field


def explain(**fields: Any) -> tuple[Violation, ...]:  # Any: the point is to judge values of any type
    """Return every rule that a set of fields violates, in the order in which the constructor checks them.

    Unknown fields and values that are illegal by themselves come first, and alone: the compatibility matrix is
    defined on legal values only.

    Parameters
    ----------
    **fields
        Fields of an `ETraceConfig`; those left out have their default.

    Returns
    -------
    tuple of Violation
        Empty if and only if ``ETraceConfig(**fields)`` can be built.

    Examples
    --------
    >>> found = explain(trace_factorization='random_projection', trace_filter='kappa', decay=0.9)
    >>> [violation.name for violation in found]
    ['filter-needs-per-param', 'kappa-missing', 'projection-scope', 'projection-decay']
    """
    bad_values = tuple(_bad_values(fields))
    return bad_values or tuple(violations(canonicalise(Fields(**_plain(fields)))))


def unknown_fields(names: Iterable[object]) -> Iterator[str]:
    """Yield a message for every name that is not a field."""
    for name in names:
        if name not in Fields._fields:
            yield f"`{name}` is not a field of ETraceConfig{suggest(name, Fields._fields)}"


def _bad_values(fields: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation for every field that is unknown or illegal by itself."""
    for message in unknown_fields(fields):
        yield Violation("-", "unknown-field", message)
    for name in Fields._fields:
        try:
            if name in fields:
                check_field(name, fields[name])
        except (TypeError, ValueError) as error:
            yield Violation("-", "value", str(error))


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: check_field(name, value) for name, value in fields.items()}
