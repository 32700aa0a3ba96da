"""Comparison of a state with the expected one: a load lists every misfit before it changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def compare_states(
    expected: Mapping[str, Any], found: Mapping[str, Any], fixed: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Return what a state lacks, and what in it does not fit, as phrases.

    Parameters
    ----------
    expected, found : mapping of str -> Any
        Two results of `state_dict`.
    fixed : tuple of str
        Settings that must be equal.
    """
    missing = [f"field {field!r} is missing" for field in expected if field not in found]
    misfits = [f"field {field!r} is unexpected" for field in found if field not in expected]
    for field in expected.keys() & found.keys():
        ours, theirs = expected[field], found[field]
        if field in fixed:
            if ours != theirs:
                misfits.append(f"{field!r} is {theirs}, expected {ours}")
        elif isinstance(ours, dict):
            lacking, unfit = _compare_buffers(field, ours, theirs)
            missing += lacking
            misfits += unfit
        elif field == "nonfinite_counts":
            misfits += _compare_tensors(field, ours, theirs)
    return missing, sorted(misfits)


def _compare_buffers(
    kind: str, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> tuple[list[str], list[str]]:
    """Compare one kind of buffer, parameter by parameter."""
    missing = [f"{kind!r} of {name!r} is missing" for name in expected if name not in found]
    misfits = [f"{kind!r} of {name!r} is unexpected" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        misfits += _compare_tensors(f"{kind}/{name}", expected[name], found[name])
    return missing, misfits


def _compare_tensors(name: str, expected: Tensor, found: Tensor) -> list[str]:
    """Compare shape and dtype."""
    misfits = []
    if found.shape != expected.shape:
        misfits.append(f"{name!r} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    if found.dtype != expected.dtype:
        misfits.append(f"{name!r} has dtype {found.dtype}, expected {expected.dtype}")
    return misfits
