"""The full product of the axes against a list of what is legal, written by hand from the compatibility matrix."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from etrace_config import ETraceConfig, explain

RECURSIONS = ("jacobian", "scalar_leak", "none")
SIGNALS = ("symmetric", "random_feedback", "modulatory", "bootstrapped")
SCHEDULES = (("per_step", None), ("window", 4), ("sequence_end", None))
PRODUCT: dict[str, tuple[Any, ...]] = {
    "trace_factorization": ("per_param", "io_factorized", "random_projection"),
    "temporal_recursion": (*RECURSIONS, *itertools.product(RECURSIONS, repeat=2)),
    "recurrence_scope": ("diagonal", "coupled", "sparse_n"),
    "learning_signal": SIGNALS,
    "trace_filter": ("none", "kappa"),
    "update_schedule": ("per_step", "window", "sequence_end"),
    "decay": (None, 0.0, 0.9, (0.9, 0.8)),
    "kappa": (None, 0.8),
    "sparse_n": (None, 2),
    "window_size": (None, 4),
}

# Written by hand, row by row, from the matrix. Never generate it.
# factorization, recursion, scope, filter, decay, kappa, sparse_n
ACCEPTED = [
    # per_param: D, with any scope, with or without the filter
    ("per_param", "jacobian", "diagonal", "none", None, None, None),
    ("per_param", "jacobian", "diagonal", "kappa", None, 0.8, None),
    ("per_param", "jacobian", "coupled", "none", None, None, None),
    ("per_param", "jacobian", "coupled", "kappa", None, 0.8, None),
    ("per_param", "jacobian", "sparse_n", "none", None, None, 2),
    ("per_param", "jacobian", "sparse_n", "kappa", None, 0.8, 2),
    # per_param: a leak needs its decay and uses no D
    ("per_param", "scalar_leak", "diagonal", "none", 0.9, None, None),
    ("per_param", "scalar_leak", "diagonal", "kappa", 0.9, 0.8, None),
    ("per_param", "scalar_leak", "diagonal", "none", 0.0, None, None),
    ("per_param", "scalar_leak", "diagonal", "kappa", 0.0, 0.8, None),
    # per_param: nothing of the past
    ("per_param", "none", "diagonal", "none", None, None, None),
    ("per_param", "none", "diagonal", "kappa", None, 0.8, None),
    ("per_param", "none", "diagonal", "none", 0.0, None, None),
    ("per_param", "none", "diagonal", "kappa", 0.0, 0.8, None),
    # io_factorized: D on the f-side, diagonal or coupled
    ("io_factorized", "jacobian", "diagonal", "none", 0.9, None, None),
    ("io_factorized", "jacobian", "diagonal", "none", (0.9, 0.8), None, None),
    ("io_factorized", "jacobian", "coupled", "none", 0.9, None, None),
    ("io_factorized", "jacobian", "coupled", "none", (0.9, 0.8), None, None),
    ("io_factorized", ("scalar_leak", "jacobian"), "diagonal", "none", 0.9, None, None),
    ("io_factorized", ("scalar_leak", "jacobian"), "diagonal", "none", (0.9, 0.8), None, None),
    ("io_factorized", ("scalar_leak", "jacobian"), "coupled", "none", 0.9, None, None),
    ("io_factorized", ("scalar_leak", "jacobian"), "coupled", "none", (0.9, 0.8), None, None),
    # io_factorized: a leak on both sides
    ("io_factorized", "scalar_leak", "diagonal", "none", 0.9, None, None),
    ("io_factorized", "scalar_leak", "diagonal", "none", (0.9, 0.8), None, None),
    ("io_factorized", ("scalar_leak", "scalar_leak"), "diagonal", "none", 0.9, None, None),
    ("io_factorized", ("scalar_leak", "scalar_leak"), "diagonal", "none", (0.9, 0.8), None, None),
    # io_factorized: nothing of the past, by name
    ("io_factorized", "none", "diagonal", "none", None, None, None),
    ("io_factorized", ("none", "none"), "diagonal", "none", None, None, None),
    # io_factorized: nothing of the past, since a decay of 0 forgets it whatever the recursion
    ("io_factorized", "jacobian", "diagonal", "none", 0.0, None, None),
    ("io_factorized", "scalar_leak", "diagonal", "none", 0.0, None, None),
    ("io_factorized", "none", "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("jacobian", "jacobian"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("jacobian", "scalar_leak"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("jacobian", "none"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("scalar_leak", "jacobian"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("scalar_leak", "scalar_leak"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("scalar_leak", "none"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("none", "jacobian"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("none", "scalar_leak"), "diagonal", "none", 0.0, None, None),
    ("io_factorized", ("none", "none"), "diagonal", "none", 0.0, None, None),
    # random_projection: one form
    ("random_projection", "jacobian", "coupled", "none", None, None, None),
]


def accepted_spellings() -> Iterator[tuple[Any, ...]]:
    """Yield every accepted row with every signal and every schedule, in the order of the fields."""
    for row, signal, (schedule, window) in itertools.product(ACCEPTED, SIGNALS, SCHEDULES):
        factorization, recursion, scope, trace_filter, decay, kappa, sparse_n = row
        yield factorization, recursion, scope, signal, trace_filter, schedule, decay, kappa, sparse_n, window


def behaviour(spelling: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a legal spelling computes: the operator on each past trace as (what, times), and the rest."""
    factorization, recursion, scope, signal, trace_filter, schedule, decay, kappa, sparse_n, window = spelling
    if factorization == "io_factorized":
        recursions = recursion if isinstance(recursion, tuple) else (recursion, recursion)
        decays = decay if isinstance(decay, tuple) else (decay, decay)
        x = ("identity", decays[0]) if decays[0] and recursions[0] != "none" else ("zero", 0.0)
        f = (recursions[1], decays[1]) if decays[1] and recursions[1] != "none" else ("zero", 0.0)
        operators = (x, f)
    elif recursion == "jacobian":
        operators = (("jacobian", 1.0),)
    else:
        operators = (("identity", decay),) if decay and recursion != "none" else (("zero", 0.0),)
    return factorization, operators, scope, signal, trace_filter, schedule, kappa, sparse_n, window


def is_accepted(spelling: tuple[Any, ...]) -> bool:
    try:
        ETraceConfig(*spelling)
    except ValueError:
        return False
    return True


def test_accepted_set_is_the_handwritten_one() -> None:
    product = list(itertools.product(*PRODUCT.values()))

    accepted = {spelling for spelling in product if is_accepted(spelling)}

    assert len(product) == 82_944
    assert accepted == set(accepted_spellings())
    assert len(accepted) == 41 * 12


def test_equal_rules_and_only_they_are_equal_objects() -> None:
    spellings = list(accepted_spellings())

    pairs = {(ETraceConfig(*spelling), behaviour(spelling)) for spelling in spellings}

    configs, behaviours = map(set, zip(*pairs, strict=True))
    assert len(pairs) == len(configs) == len(behaviours) == 18 * 12


# The signal is independent of every rule, so one signal covers the messages.
MESSAGES = {**PRODUCT, "learning_signal": ("symmetric",)}


def test_every_refusal_names_a_field_that_was_set_and_a_remedy() -> None:
    defaults = ("per_param", "jacobian", "diagonal", "symmetric", "none", "per_step", None, None, None, None)
    poor = []

    for spelling in itertools.product(*MESSAGES.values()):
        for violation in explain(**dict(zip(PRODUCT, spelling, strict=True))):
            blamed, _, remedy = violation.message.partition(". ")
            named = set(re.findall(r"`(\w+)", blamed))
            changed = {
                name for name, value, default in zip(PRODUCT, spelling, defaults, strict=True) if value != default
            }
            if not named & changed or not re.match(r"(Use|Pass|Drop|Set) .*`\w+.*\.$", remedy):
                poor.append(violation)

    assert not poor


@pytest.mark.parametrize("name", ["decay", "kappa", "sparse_n", "window_size"])
def test_a_lone_coefficient_is_refused_by_name(name: str) -> None:
    value = PRODUCT[name][-2 if name == "decay" else -1]

    with pytest.raises(ValueError, match=rf"^`{name}={value}` is set but `\w+` is '\w+'"):
        ETraceConfig(**{name: value})
