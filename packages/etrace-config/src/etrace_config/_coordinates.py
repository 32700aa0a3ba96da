"""Enumerate the legal combinations of categories, each with representative coefficients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ._axes import AXES, Fields
from ._canonical import canonicalise
from ._config import ETraceConfig
from ._rules import violations

_DECAY, _KAPPA, _SPARSE_N, _WINDOW_SIZE = 0.9, 0.8, 2, 4


def legal_coordinates() -> Iterator[ETraceConfig]:
    """Yield one configuration for every legal combination of categories.

    A category that needs a coefficient gets a representative one: ``decay=0.9`` on every side that is discounted,
    ``kappa=0.8``, ``sparse_n=2``, ``window_size=4``. The order is fixed: the last axis varies fastest.

    Yields
    ------
    ETraceConfig
        A coordinate, each once: 228 of them, of which 120 are ``'per_param'``, 96 ``'io_factorized'`` and 12
        ``'random_projection'``.

    Examples
    --------
    >>> coordinates = list(legal_coordinates())
    >>> len(coordinates), coordinates[0].describe()
    (228, 'default')
    """
    factorization, recursions, *others = AXES.values()
    sides = [*recursions, *itertools.product(recursions, repeat=2)]
    for categories in itertools.product(factorization, sides, *others):
        fields = _with_coefficients(Fields(*categories))  # type: ignore[arg-type]  # six categories, in order
        if canonicalise(fields) == fields and not any(violations(fields)):
            yield ETraceConfig(*fields)  # type: ignore[arg-type]  # strings of the vocabulary


def _with_coefficients(fields: Fields) -> Fields:
    """Add the representative coefficient of every category that needs one."""
    return fields._replace(
        decay=_decay(fields),
        kappa=_KAPPA if fields.trace_filter == "kappa" else None,
        sparse_n=_SPARSE_N if fields.recurrence_scope == "sparse_n" else None,
        window_size=_WINDOW_SIZE if fields.update_schedule == "window" else None,
    )


def _decay(fields: Fields) -> float | tuple[float, float] | None:
    """Return the representative decay, in the form that the factorization wants."""
    recursion = fields.temporal_recursion
    if isinstance(recursion, tuple):
        x, f = (0.0 if side == "none" else _DECAY for side in recursion)
        return x, f
    return {"jacobian": None, "scalar_leak": _DECAY, "none": 0.0}[recursion]
