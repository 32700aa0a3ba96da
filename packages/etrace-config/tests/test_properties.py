"""Laws that hold for every spelling, legal or not."""

from __future__ import annotations

import json
import math
import os
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from etrace_config import (
    AXES,
    ETraceConfig,
    _axes,
    _canonical,
    _config,
    _values,
    explain,
    from_dict,
    from_json,
    from_toml,
    legal_coordinates,
    name_of,
    to_dict,
    to_json,
)

EXAMPLES = settings(max_examples=int(os.environ.get("MAX_EXAMPLES", "300")), deadline=None)
GARBAGE = [
    True,
    False,
    math.nan,
    math.inf,
    -0.0,
    -1,
    1.0,
    2.5,
    10**400,
    "0.5",
    "",
    [],
    (0.5,),
    {},
    b"",
    1j,
    Decimal(0),
    object(),
]

COORDINATES = list(legal_coordinates())

fractions = st.floats(0.0, 1.0, exclude_max=True)
counts = st.integers(1, 2**70)
recursions = st.sampled_from(list(AXES["temporal_recursion"]))


def either(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return one value or a pair of them, as tuple or list."""
    return strategy | st.tuples(strategy, strategy) | st.lists(strategy, min_size=2, max_size=2)


LEGAL_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{axis: st.sampled_from(list(values)) for axis, values in AXES.items()},
    "temporal_recursion": either(recursions),
    "decay": st.none() | either(fractions | st.just(0)),
    "kappa": st.none() | fractions | st.just(0),
    "sparse_n": st.none() | counts,
    "window_size": st.none() | counts,
}
spellings = st.fixed_dictionaries({}, optional=LEGAL_VALUES)
anything = st.fixed_dictionaries(
    {}, optional={name: values | st.sampled_from(GARBAGE) for name, values in LEGAL_VALUES.items()}
)


@st.composite
def configs(draw: st.DrawFn) -> ETraceConfig:
    """Draw a legal coordinate, each of its coefficients anywhere in its range."""
    config = draw(st.sampled_from(COORDINATES))
    if config.kappa is not None:
        config = config.replace(kappa=draw(fractions))
    if config.sparse_n is not None:
        config = config.replace(sparse_n=draw(counts))
    if config.window_size is not None:
        config = config.replace(window_size=draw(counts))
    if isinstance(config.decay, tuple) and config.recurrence_scope == "diagonal":
        return config.replace(decay=tuple(draw(fractions) if side else 0.0 for side in config.decay))
    if config.decay and not isinstance(config.decay, tuple):
        return config.replace(decay=draw(fractions))
    return config


@EXAMPLES
@given(spellings)
def test_canonical_form_is_idempotent(fields: dict[str, Any]) -> None:
    once = _canonical.canonicalise(_values.check_fields(_axes.Fields(**fields)))

    assert _canonical.canonicalise(_values.check_fields(once)) == once


@EXAMPLES
@given(configs())
def test_canonical_fields_rebuild_an_equal_object(config: ETraceConfig) -> None:
    again = ETraceConfig(*_config.fields_of(config))  # type: ignore[arg-type]  # strings of the vocabulary

    assert (again, hash(again), repr(again)) == (config, hash(config), repr(config))


@EXAMPLES
@given(anything)
def test_construction_and_explanation_agree(fields: dict[str, Any]) -> None:
    found = explain(**fields)

    try:
        ETraceConfig(**fields)
    except (TypeError, ValueError) as error:
        raised = [str(error)]
    else:
        raised = []
    assert [violation.message for violation in found[:1]] == raised


@EXAMPLES
@given(configs())
def test_dict_round_trip_is_the_identity(config: ETraceConfig) -> None:
    assert from_dict(to_dict(config)) == config


@EXAMPLES
@given(configs())
def test_json_round_trip_is_the_identity(config: ETraceConfig) -> None:
    assert from_json(to_json(config)) == config


@EXAMPLES
@given(configs())
def test_toml_round_trip_is_the_identity(config: ETraceConfig) -> None:
    # JSON's strings, numbers and lists are TOML's
    document = "\n".join(f"{name} = {json.dumps(value)}" for name, value in to_dict(config).items())

    assert from_toml(document) == config


@EXAMPLES
@given(configs(), anything)
def test_replace_yields_only_what_the_constructor_accepts(config: ETraceConfig, changes: dict[str, Any]) -> None:
    try:
        changed = config.replace(**changes)
    except (TypeError, ValueError):
        return

    assert not explain(**_config.fields_of(changed)._asdict())
    assert changed == ETraceConfig(**{**_config.fields_of(config)._asdict(), **changes})


@EXAMPLES
@given(configs())
def test_description_is_the_argument_list(config: ETraceConfig) -> None:
    described = config.describe()

    assert eval(f"ETraceConfig({'' if described == 'default' else described})") == config


@EXAMPLES
@given(configs())
def test_name_never_fails(config: ETraceConfig) -> None:
    assert name_of(config) is None or config.update_schedule == "per_step"
