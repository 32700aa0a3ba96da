"""Each spelling has the canonical form that the specification gives it."""

from __future__ import annotations

from typing import Any

import pytest

from etrace_config import ETraceConfig

IO = "io_factorized"
NOTHING = {"temporal_recursion": ("none", "none"), "decay": (0.0, 0.0)}

SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temporal_recursion": "scalar_leak", "decay": 0}, {"temporal_recursion": "none", "decay": 0.0}),
    ({"temporal_recursion": "none"}, {"temporal_recursion": "none", "decay": 0.0}),
    ({"trace_factorization": IO, "decay": 0.9},
     {"temporal_recursion": ("scalar_leak", "jacobian"), "decay": (0.9, 0.9)}),
    ({"trace_factorization": IO, "temporal_recursion": "scalar_leak", "decay": (0.9, 0.8)},
     {"temporal_recursion": ("scalar_leak", "scalar_leak"), "decay": (0.9, 0.8)}),
    ({"trace_factorization": IO, "temporal_recursion": "none"}, NOTHING),
    ({"trace_factorization": IO, "temporal_recursion": ("none", "none")}, NOTHING),
    ({"trace_factorization": IO, "decay": 0.0}, NOTHING),
    ({"trace_factorization": IO, "temporal_recursion": ("jacobian", "jacobian"), "decay": (0.0, 0.9)},
     {"temporal_recursion": ("none", "jacobian"), "decay": (0.0, 0.9)}),
    ({"trace_factorization": IO, "decay": (0.0, 0.9)},
     {"temporal_recursion": ("none", "jacobian"), "decay": (0.0, 0.9)}),
    ({"trace_factorization": IO, "decay": (0.9, 0.0)},
     {"temporal_recursion": ("scalar_leak", "none"), "decay": (0.9, 0.0)}),
    ({"trace_filter": "kappa", "kappa": 0}, {"trace_filter": "none", "kappa": None}),
    ({"trace_factorization": IO, "decay": 0.9, "trace_filter": "kappa", "kappa": 0},
     {"trace_filter": "none", "kappa": None}),
    ({"recurrence_scope": "sparse_n", "sparse_n": 1}, {"recurrence_scope": "coupled", "sparse_n": None}),
    ({"trace_factorization": "random_projection", "recurrence_scope": "sparse_n", "sparse_n": 1},
     {"recurrence_scope": "coupled", "sparse_n": None}),
    ({"update_schedule": "window", "window_size": 1}, {"update_schedule": "window", "window_size": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("spelling", "canonical"), SPELLINGS)
def test_spelling_has_its_canonical_form(spelling: dict[str, Any], canonical: dict[str, Any]) -> None:
    config = ETraceConfig(**spelling)

    assert {name: getattr(config, name) for name in canonical} == canonical


@pytest.mark.parametrize(("spelling", "canonical"), SPELLINGS)
def test_canonical_spelling_is_the_same_rule(spelling: dict[str, Any], canonical: dict[str, Any]) -> None:
    by_hand = ETraceConfig(**{**spelling, **canonical})

    assert by_hand == ETraceConfig(**spelling)
    assert hash(by_hand) == hash(ETraceConfig(**spelling))


def test_explicit_jacobian_on_a_living_x_side_is_not_demoted() -> None:
    with pytest.raises(ValueError, match="Use 'scalar_leak' on that side"):
        ETraceConfig(trace_factorization=IO, temporal_recursion=("jacobian", "jacobian"), decay=0.9)  # type: ignore[arg-type]
