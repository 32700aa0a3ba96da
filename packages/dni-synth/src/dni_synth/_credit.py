"""Where the credit of a parameter across window boundaries comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ._groups import Path, name_of_path

Credit = Literal["trace", "synthetic"]


def traced_by(credit: Credit | Mapping[Path, Credit] | None, traced: Any) -> Any:
    """Return the filter of traced parameters: those whose credit comes from their trace."""
    if credit is None:
        return traced
    if traced is not None:
        raise ValueError("`credit` and `traced` both say which parameters are traced; give one of them.")
    kinds = set(credit.values()) if isinstance(credit, Mapping) else {credit}
    if not kinds <= {"trace", "synthetic"}:
        raise ValueError(f"`credit` must be 'trace' or 'synthetic', got {credit!r}.")
    if isinstance(credit, Mapping):
        return lambda path, state: credit.get(path, "trace") == "trace"
    return None if credit == "trace" else ()


def check_names(credit: Credit | Mapping[Path, Credit] | None, known: Mapping[Path, Any]) -> None:
    """Refuse paths that are not parameters of the model."""
    if isinstance(credit, Mapping):
        unknown = sorted(name_of_path(path) for path in set(credit) - set(known))
        if unknown:
            names = sorted(map(name_of_path, known))
            raise ValueError(f"`credit` names parameters that the model does not have: {unknown}. It has {names}.")
