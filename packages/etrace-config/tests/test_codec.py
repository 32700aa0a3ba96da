"""Documents: what is written, and what is refused when read."""

from __future__ import annotations

from typing import Any

import pytest

from etrace_config import ETraceConfig, from_dict, from_json, from_toml, pp_prop, to_dict, to_json


def test_default_writes_the_schema_version_only() -> None:
    assert to_dict(ETraceConfig()) == {"schema_version": 1}


# Golden text: what earlier releases wrote must stay readable, and the format stay put.
GOLDEN = (
    '{"schema_version": 1, "trace_factorization": "io_factorized", '
    '"temporal_recursion": ["scalar_leak", "jacobian"], "decay": [0.9, 0.9]}'
)


def test_written_json_is_the_golden_text() -> None:
    assert to_json(pp_prop(0.9)) == GOLDEN


def test_golden_text_is_read() -> None:
    assert from_json(GOLDEN) == pp_prop(0.9)


def test_schema_version_may_be_left_out() -> None:
    assert from_dict({"recurrence_scope": "coupled"}) == ETraceConfig(recurrence_scope="coupled")


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
def test_other_schema_version_is_refused(version: Any) -> None:
    with pytest.raises(ValueError, match=r"^`schema_version` must be 1, got .* Leave it out"):
        from_dict({"schema_version": version})


def test_unknown_key_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"^`trace_factorisation` is not .* did you mean 'trace_factorization'\?$"):
        from_dict({"trace_factorisation": "per_param"})


@pytest.mark.parametrize("key", ["zzz", 3, None])
def test_strange_key_is_refused_by_name(key: Any) -> None:
    with pytest.raises(ValueError, match=f"^`{key}` is not a field of ETraceConfig"):
        from_dict({key: 1})


def test_given_mapping_is_left_as_it_was() -> None:
    values = {"schema_version": 1, "recurrence_scope": "coupled"}

    from_dict(values)

    assert values == {"schema_version": 1, "recurrence_scope": "coupled"}


@pytest.mark.parametrize("document", ["[1]", "null", '"per_param"', "3"])
def test_json_that_is_no_object_is_a_type_error(document: str) -> None:
    with pytest.raises(TypeError, match=r"^A configuration must be a mapping of field names to values, got "):
        from_json(document)


@pytest.mark.parametrize("document", ["", "{", "{'kappa': 1}"])
def test_text_that_is_no_json_is_a_value_error(document: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        from_json(document)


@pytest.mark.parametrize(
    ("document", "message"), [("kappa", "Expected '='"), ("kappa = 0.5\nkappa = 0.5", "Cannot overwrite a value")]
)
def test_text_that_is_no_toml_is_a_value_error(document: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_toml(document)


def test_repeated_json_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^`kappa` is given more than once"):
        from_json('{"trace_filter": "kappa", "kappa": 0.5, "kappa": 0.6}')


def test_illegal_combination_is_refused_like_in_the_constructor() -> None:
    with pytest.raises(ValueError, match=r"^`kappa=0\.5` is set but `trace_filter` is 'none'"):
        from_toml("kappa = 0.5")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_json_number_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"^`kappa` must lie in \[0, 1\)"):
        from_json(f'{{"trace_filter": "kappa", "kappa": {value}}}')
