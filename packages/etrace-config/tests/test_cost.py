"""Trace memory against arrays that are really built, and against the documented formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etrace_config import ETraceConfig, _cost, cost, eprop, legal_coordinates, pp_prop, snap, uoro

SIZES = {"inputs": 3, "outputs": 5, "states": 2, "batch": 7}
B, I, O, S = 7, 3, 5, 2  # noqa: E741  # the letters of the formulas


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (ETraceConfig(), [(B, I, O, S)]),
        (eprop(0.8), [(B, I, O, S), (B, I, O, S)]),
        (pp_prop(0.9), [(B, I), (B, O, S)]),
        (uoro(), [(B, I, O), (B, O, S)]),
        (snap(2), [(B, I, O, S, O)]),
    ],
    ids=["per_param", "filtered", "factorised", "projected", "saturated"],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cost_is_the_size_of_the_arrays(config: ETraceConfig, shapes: list[tuple[int, ...]], dtype: str) -> None:
    arrays = [np.zeros(shape, dtype) for shape in shapes]

    assert cost(config, **SIZES, itemsize=np.dtype(dtype).itemsize) == sum(array.nbytes for array in arrays)


def test_neighbours_bound_the_cost_of_a_sparse_scope() -> None:
    assert cost(snap(2), **SIZES, neighbours=3) == 4 * B * I * O * S * 3


def test_other_scopes_keep_one_position() -> None:
    assert cost(ETraceConfig(), **SIZES, neighbours=3) == cost(ETraceConfig(), **SIZES)


@pytest.mark.parametrize("config", list(legal_coordinates()), ids=ETraceConfig.describe)
def test_cost_follows_the_documented_formula(config: ETraceConfig) -> None:
    letters = {"B": B, "I": I, "O": O, "S": S, "K": O if config.recurrence_scope == "sparse_n" else 1}
    letters["F"] = 2 if config.trace_filter == "kappa" else 1

    numbers = eval(_cost.TRACE_ELEMENTS[config.trace_factorization], letters)

    assert cost(config, **SIZES) == 4 * numbers


@pytest.mark.parametrize("name", ["inputs", "outputs", "states", "batch", "neighbours", "itemsize"])
@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_bad_size_is_named(name: str, size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^`{name}` must be an integer >= 1"):
        cost(ETraceConfig(), **{**SIZES, name: size})
