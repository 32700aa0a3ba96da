"""Write a configuration as a dict, JSON or TOML, and read it back; the round trip is the identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._config import ETraceConfig, changed_fields
from ._explain import unknown_fields

SCHEMA_VERSION = 1


def to_dict(config: ETraceConfig) -> dict[str, Any]:  # Any: JSON values
    """Return a configuration as a dict of JSON values: the schema version and the non-default fields.

    Parameters
    ----------
    config : ETraceConfig
        The configuration.

    Returns
    -------
    dict
        Strings, numbers, and lists for pairs.

    Examples
    --------
    >>> to_dict(ETraceConfig(trace_filter='kappa', kappa=0.8))
    {'schema_version': 1, 'trace_filter': 'kappa', 'kappa': 0.8}
    """
    fields = changed_fields(config).items()
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in fields},
    }


def from_dict(values: Mapping[str, Any]) -> ETraceConfig:  # Any: checked field by field
    """Return the configuration that a mapping of fields describes.

    Parameters
    ----------
    values : mapping from str
        Fields of an `ETraceConfig`, and optionally ``schema_version``, which is 1 when left out.

    Returns
    -------
    ETraceConfig
        The configuration.

    Raises
    ------
    ValueError
        If a key is unknown, the schema version is not one that this release reads, or the configuration is illegal.
    TypeError
        If `values` is not a mapping, or a coefficient is not a number.

    Examples
    --------
    >>> from_dict({'trace_filter': 'kappa', 'kapa': 0.8})
    Traceback (most recent call last):
    ValueError: `kapa` is not a field of ETraceConfig; did you mean 'kappa'?
    """
    fields = fields_in(values)
    for message in unknown_fields(fields):
        raise ValueError(message)
    return ETraceConfig(**fields)


def to_json(config: ETraceConfig) -> str:
    """Return a configuration as a JSON object on one line.

    Parameters
    ----------
    config : ETraceConfig
        The configuration.

    Returns
    -------
    str
        What `from_json` reads.

    Examples
    --------
    >>> to_json(ETraceConfig(recurrence_scope='sparse_n', sparse_n=2))
    '{"schema_version": 1, "recurrence_scope": "sparse_n", "sparse_n": 2}'
    """
    import json  # keeps the package's own import fast

    return json.dumps(to_dict(config), allow_nan=False)


def from_json(text: str) -> ETraceConfig:
    """Return the configuration that a JSON object describes.

    Parameters
    ----------
    text : str
        A JSON object with the keys that `from_dict` takes.

    Returns
    -------
    ETraceConfig
        The configuration.

    Raises
    ------
    ValueError
        If the text is not JSON, a key occurs twice, or as in `from_dict`.
    TypeError
        As in `from_dict`.

    Examples
    --------
    >>> from_json('{"recurrence_scope": "coupled"}').recurrence_scope
    'coupled'
    """
    return from_dict(parse_json(text))


def from_toml(text: str) -> ETraceConfig:
    """Return the configuration that a TOML document describes.

    Parameters
    ----------
    text : str
        A TOML document with the keys that `from_dict` takes, at its top level.

    Returns
    -------
    ETraceConfig
        The configuration.

    Raises
    ------
    ValueError
        If the text is not TOML, or as in `from_dict`.
    TypeError
        As in `from_dict`.

    Examples
    --------
    >>> from_toml('''
    ... trace_factorization = "io_factorized"
    ... decay = [0.9, 0.8]
    ... ''').decay
    (0.9, 0.8)
    """
    return from_dict(parse_toml(text))


def fields_in(values: object) -> dict[str, Any]:
    """Return the fields of a document, its schema version checked and taken off."""
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise TypeError(
            f"A configuration must be a mapping of field names to values, got {values!r:.80} of type {kind}."
        )
    fields = dict(values)
    version = fields.pop("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"`schema_version` must be {SCHEMA_VERSION}, got {version!r:.80}. "
            "Leave it out, or read the document with the release of etrace-config that wrote it."
        )
    return fields


def parse_json(text: str) -> Any:  # Any: `fields_in` checks it
    """Return the JSON value of a text; a repeated key is an error, where JSON would take its last value."""
    import json

    return json.loads(text, object_pairs_hook=_unique)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML document."""
    import tomllib

    return tomllib.loads(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"`{twice}` is given more than once; keep one of its values.")
    return values
