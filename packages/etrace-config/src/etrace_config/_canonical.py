"""Give equal rules equal fields: every coordinate has one spelling."""

from __future__ import annotations

from ._axes import Fields


def canonicalise(fields: Fields) -> Fields:
    """Return the one spelling of the fields' coordinate, legal or not; applying it twice changes nothing."""
    recursion, decay = _canonical_recursion(fields)
    fields = fields._replace(temporal_recursion=recursion, decay=decay)
    if fields.trace_filter == "kappa" and fields.kappa == 0.0:
        fields = fields._replace(trace_filter="none", kappa=None)
    if fields.recurrence_scope == "sparse_n" and fields.sparse_n == 1:
        fields = fields._replace(recurrence_scope="coupled", sparse_n=None)
    return fields


def _canonical_recursion(fields: Fields) -> tuple[str | tuple[str, str], float | tuple[float, float] | None]:
    """Return `temporal_recursion` and `decay` in canonical form."""
    recursion, decay = fields.temporal_recursion, fields.decay
    if fields.trace_factorization == "io_factorized":
        recursion_x, recursion_f = recursion if isinstance(recursion, tuple) else _both_sides(recursion)
        decay_x, decay_f = decay if isinstance(decay, tuple) else (decay, decay)
        recursion_x, decay_x = _canonical_side(recursion_x, decay_x)
        recursion_f, decay_f = _canonical_side(recursion_f, decay_f)
        pair = None if decay_x is None or decay_f is None else (decay_x, decay_f)
        return (recursion_x, recursion_f), pair
    if isinstance(recursion, tuple) or isinstance(decay, tuple) or recursion == "jacobian":
        return recursion, decay
    return _canonical_side(recursion, decay)


def _both_sides(recursion: str) -> tuple[str, str]:
    """Expand the scalar shorthand; the input-side trace never involves a Jacobian."""
    return ("scalar_leak" if recursion == "jacobian" else recursion), recursion


def _canonical_side(recursion: str, decay: float | None) -> tuple[str, float | None]:
    """Collapse one side: a previous trace that is multiplied by 0 is forgotten, whatever multiplies it."""
    if decay == 0.0 or (recursion == "none" and decay is None):
        return "none", 0.0
    return recursion, decay
