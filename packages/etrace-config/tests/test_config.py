"""The members of a configuration."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from etrace_config import ETraceConfig

FACTORS = ETraceConfig(trace_factorization="io_factorized", decay=(0.9, 0.8))
CLONES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda config: pickle.loads(pickle.dumps(config)),
    "repr": lambda config: eval(repr(config)),
}


def test_default_is_the_origin() -> None:
    assert ETraceConfig().describe() == "default"


def test_description_names_the_fields_that_differ() -> None:
    assert FACTORS.describe() == (
        "trace_factorization='io_factorized', temporal_recursion=('scalar_leak', 'jacobian'), decay=(0.9, 0.8)"
    )


def test_specified_message_for_a_lone_coefficient() -> None:
    with pytest.raises(ValueError, match=r"^`kappa=0\.5` is set but `trace_filter` is 'none'"):
        ETraceConfig(kappa=0.5)


def test_sides_are_read_by_name() -> None:
    assert (FACTORS.recursion_x, FACTORS.recursion_f) == ("scalar_leak", "jacobian")
    assert (FACTORS.decay_x, FACTORS.decay_f) == (0.9, 0.8)
    assert FACTORS.is_factorized


@pytest.mark.parametrize(
    ("member", "instead"),
    [
        ("recursion_x", "temporal_recursion"),
        ("recursion_f", "temporal_recursion"),
        ("decay_x", "decay"),
        ("decay_f", "decay"),
    ],
)
def test_other_traces_have_no_sides(member: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"^`{member}` exists under .*; read `{instead}` instead\.$"):
        getattr(ETraceConfig(), member)


@pytest.mark.parametrize(
    ("fields", "mixes"),
    [({}, False), ({"recurrence_scope": "coupled"}, True), ({"recurrence_scope": "sparse_n", "sparse_n": 2}, True)],
    ids=["diagonal", "coupled", "sparse_n"],
)
def test_scopes_beyond_the_diagonal_include_mixing(fields: dict[str, Any], mixes: bool) -> None:
    assert ETraceConfig(**fields).include_recurrent_mixing is mixes


def test_replace_keeps_what_it_does_not_change() -> None:
    assert (
        FACTORS.replace(update_schedule="window", window_size=4).replace(update_schedule="per_step", window_size=None)
        == FACTORS
    )


def test_replace_makes_the_change_canonical() -> None:
    assert FACTORS.replace(decay=0).temporal_recursion == ("none", "none")


def test_replace_refuses_an_illegal_combination() -> None:
    with pytest.raises(ValueError, match="is a pair but `trace_factorization` is 'per_param'"):
        FACTORS.replace(trace_factorization="per_param")


def test_replace_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="kapa"):
        FACTORS.replace(kapa=0.5)


def test_instance_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FACTORS.decay = 0.5  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_copies_are_equal(clone: Any) -> None:
    assert clone(FACTORS) == FACTORS
