"""Check one field at a time: its vocabulary, its type, its range."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from ._axes import AXES, Fields, suggest


def check_category(name: str, value: object) -> str:
    """Return the vocabulary's own spelling of a categorical value."""
    legal = tuple(AXES[name])
    if isinstance(value, str) and value in legal:
        return legal[legal.index(value)]
    choices = ", ".join(map(repr, legal))
    raise ValueError(f"`{name}` must be one of {choices}, got {value!r:.80}{suggest(value, legal)}")


def check_fraction(name: str, value: object) -> float:
    """Return a coefficient in [0, 1) as a plain float; -0.0 becomes 0.0."""
    number = python_number(name, value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise TypeError(f"`{name}` must be a number in [0, 1), got {value!r:.80} of type {type(value).__name__}.")
    try:
        fraction = float(number) + 0.0
    except OverflowError:
        fraction = float("inf")
    if not 0.0 <= fraction < 1.0:
        raise ValueError(f"`{name}` must lie in [0, 1), got {value!r:.80}.")
    return fraction


def check_count(name: str, value: object) -> int:
    """Return a coefficient >= 1 as a plain int."""
    number = python_number(name, value)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise TypeError(f"`{name}` must be an integer >= 1, got {value!r:.80} of type {type(value).__name__}.")
    if number < 1:
        raise ValueError(f"`{name}` must be an integer >= 1, got {value!r:.80}.")
    return int(number)


def python_number(name: str, value: object) -> object:
    """Unwrap a NumPy or JAX scalar, that is, whatever has shape () and an `item`."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except TypeError as error:  # a traced JAX value has no number yet
        raise TypeError(
            f"`{name}` must be a number known when the configuration is built, got {value!r:.80}."
        ) from error


def _or_pair(check: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    """Let a check take an (x, f) pair as well; a list counts as a pair, since JSON and TOML have no tuples."""

    def check_either(name: str, value: object) -> object:
        if not isinstance(value, tuple | list):
            return check(name, value)
        if len(value) != 2:
            raise ValueError(f"`{name}` must be one value or an (x, f) pair, got {len(value)} values: {value!r:.80}.")
        return tuple(check(name, side) for side in value)

    return check_either


def _or_none(check: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    **dict.fromkeys(AXES, check_category),
    "temporal_recursion": _or_pair(check_category),
    "decay": _or_none(_or_pair(check_fraction)),
    "kappa": _or_none(check_fraction),
    "sparse_n": _or_none(check_count),
    "window_size": _or_none(check_count),
}


def check_field(name: str, value: object) -> Any:  # Any: one of the types that `Fields` declares for this name
    """Return the plain, legal value of one field, or raise what is wrong with it."""
    return _CHECKS[name](name, value)


def check_fields(raw: Fields) -> Fields:
    """Return the fields with every value plain and legal by itself."""
    return Fields(*map(check_field, Fields._fields, raw))
