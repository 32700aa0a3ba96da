"""Each preset is the coordinate of its paper, and is recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import etrace_config
from etrace_config import PRESETS, ETraceConfig, legal_coordinates, name_of

IO = {"trace_factorization": "io_factorized", "temporal_recursion": ("scalar_leak", "jacobian")}

# preset, arguments, the fields that differ from the default, the name that is reported
COORDINATES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("d_rtrl", {}, {}, "d_rtrl"),
    ("pp_prop", {"decay_or_rank": 0.9}, {**IO, "decay": (0.9, 0.9)}, "pp_prop"),
    ("pp_prop", {"decay_or_rank": 3}, {**IO, "decay": (0.5, 0.5)}, "pp_prop"),
    ("pp_prop", {"decay_or_rank": (0.9, 3)}, {**IO, "decay": (0.9, 0.5)}, "pp_prop"),
    ("pp_prop", {"decay_or_rank": 1}, {**IO, "temporal_recursion": ("none", "none"), "decay": (0.0, 0.0)}, "pp_prop"),
    ("es_d_rtrl", {"decay_or_rank": 0.9}, {**IO, "decay": (0.9, 0.9)}, "pp_prop"),
    ("eprop", {"kappa": 0.8}, {"trace_filter": "kappa", "kappa": 0.8}, "eprop"),
    ("eprop", {"kappa": 0.8, "feedback": "random"},
     {"trace_filter": "kappa", "kappa": 0.8, "learning_signal": "random_feedback"}, "eprop"),
    ("eprop", {"kappa": 0}, {}, "d_rtrl"),
    ("eprop", {"kappa": 0, "feedback": "random"}, {"learning_signal": "random_feedback"}, "eprop"),
    ("ostl_recurrent", {}, {"recurrence_scope": "coupled"}, "ostl_recurrent"),
    ("ostl_feedforward", {}, {**IO, "decay": (1e-6, 1e-6)}, "ostl_feedforward"),
    ("ostl_feedforward", {"decay_or_rank": 0.5}, {**IO, "decay": (0.5, 0.5)}, "pp_prop"),
    ("snap", {"n": 1}, {"recurrence_scope": "coupled"}, "ostl_recurrent"),
    ("snap", {"n": 3}, {"recurrence_scope": "sparse_n", "sparse_n": 3}, "snap"),
    ("uoro", {}, {"trace_factorization": "random_projection", "recurrence_scope": "coupled"}, "uoro"),
    ("three_factor", {}, {"learning_signal": "modulatory"}, "three_factor"),
    ("dni", {}, {"learning_signal": "bootstrapped"}, "dni"),
]  # fmt: skip
TABLE = pytest.mark.parametrize(("preset", "arguments", "fields", "name"), COORDINATES)


@TABLE
def test_preset_is_its_coordinate(preset: str, arguments: dict[str, Any], fields: dict[str, Any], name: str) -> None:
    config = PRESETS[preset](**arguments)

    defaults = {field: getattr(ETraceConfig(), field) for field in ETraceConfig.__match_args__}
    assert {field: getattr(config, field) for field in defaults} == {**defaults, **fields}


@TABLE
def test_coordinate_is_recognised(preset: str, arguments: dict[str, Any], fields: dict[str, Any], name: str) -> None:
    assert name_of(ETraceConfig(**fields)) == name


def test_every_preset_is_in_the_table_and_public() -> None:
    assert set(PRESETS) == {preset for preset, _, _, _ in COORDINATES}
    assert all(getattr(etrace_config, name) is preset for name, preset in PRESETS.items())


def test_another_schedule_is_no_preset() -> None:
    assert name_of(ETraceConfig(update_schedule="sequence_end")) is None


def test_enumeration_holds_every_preset() -> None:
    named = [name for name in map(name_of, legal_coordinates()) if name is not None]

    assert sorted(named) == sorted(
        # pp_prop with a side at 0, too; e-prop with random feedback also without the filter
        ["d_rtrl", "three_factor", "dni", "ostl_recurrent", "snap", "uoro", *["pp_prop"] * 4, *["eprop"] * 3]
    )


@pytest.mark.parametrize("rank", [19, np.int64(19), np.array(19)], ids=lambda rank: type(rank).__name__)
def test_rank_is_an_averaging_length(rank: Any) -> None:
    assert PRESETS["pp_prop"](rank).decay == (0.9, 0.9)


@pytest.mark.parametrize(
    ("preset", "arguments", "error", "message"),
    [
        ("pp_prop", [0], ValueError, "`decay_or_rank` must be an integer >= 1, got 0"),
        ("pp_prop", [1.0], ValueError, r"`decay_or_rank` must lie in \[0, 1\), got 1.0"),
        ("pp_prop", [True], TypeError, "`decay_or_rank` must be a number"),
        ("pp_prop", [(0.9, 0.8, 0.7)], TypeError, "`decay_or_rank` must be a number"),
        ("eprop", [None], TypeError, "`kappa` must be a number"),
        ("eprop", [1], ValueError, r"`kappa` must lie in \[0, 1\)"),
        ("eprop", [0.8, "random_feedback"], ValueError, "`feedback` must be 'symmetric' or 'random', got"),
        ("eprop", [0.8, ["random"]], ValueError, "`feedback` must be 'symmetric' or 'random'"),
        ("snap", [0], ValueError, "`n` must be an integer >= 1, got 0"),
        ("snap", [2.0], TypeError, "`n` must be an integer >= 1"),
        ("snap", [None], TypeError, "`n` must be an integer >= 1"),
    ],
)  # fmt: skip
def test_bad_argument_is_named(preset: str, arguments: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        PRESETS[preset](*arguments)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_docstring_cites_the_literature(preset: Any) -> None:
    assert "https://" in preset.__doc__ or "As in `pp_prop`" in preset.__doc__
