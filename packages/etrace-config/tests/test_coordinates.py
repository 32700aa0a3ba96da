"""The enumeration is complete and has no duplicates."""

from __future__ import annotations

from collections import Counter

import pytest

from etrace_config import ETraceConfig, legal_coordinates

LEAK, NONE, JACOBIAN = "scalar_leak", "none", "jacobian"

# Written by hand: factorization, recursion, scope, decay. Each goes with 4 signals and 3 schedules.
UNFILTERED = {
    ("per_param", JACOBIAN, "diagonal", None),
    ("per_param", JACOBIAN, "coupled", None),
    ("per_param", JACOBIAN, "sparse_n", None),
    ("per_param", LEAK, "diagonal", 0.9),
    ("per_param", NONE, "diagonal", 0.0),
    ("io_factorized", (LEAK, JACOBIAN), "diagonal", (0.9, 0.9)),
    ("io_factorized", (LEAK, JACOBIAN), "coupled", (0.9, 0.9)),
    ("io_factorized", (LEAK, LEAK), "diagonal", (0.9, 0.9)),
    ("io_factorized", (LEAK, NONE), "diagonal", (0.9, 0.0)),
    ("io_factorized", (NONE, JACOBIAN), "diagonal", (0.0, 0.9)),
    ("io_factorized", (NONE, JACOBIAN), "coupled", (0.0, 0.9)),
    ("io_factorized", (NONE, LEAK), "diagonal", (0.0, 0.9)),
    ("io_factorized", (NONE, NONE), "diagonal", (0.0, 0.0)),
    ("random_projection", JACOBIAN, "coupled", None),
}
FILTERED = {
    ("per_param", JACOBIAN, "diagonal", None),
    ("per_param", JACOBIAN, "coupled", None),
    ("per_param", JACOBIAN, "sparse_n", None),
    ("per_param", LEAK, "diagonal", 0.9),
    ("per_param", NONE, "diagonal", 0.0),
}


def core(config: ETraceConfig) -> tuple[object, ...]:
    return config.trace_factorization, config.temporal_recursion, config.recurrence_scope, config.decay


@pytest.mark.parametrize(("trace_filter", "cores"), [("none", UNFILTERED), ("kappa", FILTERED)], ids=["none", "kappa"])
def test_each_core_occurs_with_every_signal_and_schedule(trace_filter: str, cores: set[tuple[object, ...]]) -> None:
    found = Counter(core(config) for config in legal_coordinates() if config.trace_filter == trace_filter)

    assert found == dict.fromkeys(cores, 4 * 3)


def test_no_coordinate_occurs_twice() -> None:
    coordinates = list(legal_coordinates())

    assert len(set(coordinates)) == len(coordinates) == 228


def test_coefficients_are_the_documented_ones() -> None:
    found = {(c.kappa, c.sparse_n, c.window_size) for c in legal_coordinates()}

    assert {kappa for kappa, _, _ in found} == {None, 0.8}
    assert {order for _, order, _ in found} == {None, 2}
    assert {window for _, _, window in found} == {None, 4}
