"""The vocabulary: six categorical axes, four coefficients, and the ten fields that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

TraceFactorization = Literal["per_param", "io_factorized", "random_projection"]
TemporalRecursion = Literal["jacobian", "scalar_leak", "none"]
RecurrenceScope = Literal["diagonal", "coupled", "sparse_n"]
LearningSignal = Literal["symmetric", "random_feedback", "modulatory", "bootstrapped"]
TraceFilter = Literal["none", "kappa"]
UpdateSchedule = Literal["per_step", "window", "sequence_end"]

#: Every axis with its legal values, the default first, and what each value means.
AXES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "trace_factorization": {
            "per_param": "one trace per parameter element and hidden state",
            "io_factorized": "an input-side and an output-side factor",
            "random_projection": "a random rank-one factor pair, unbiased (UORO)",
        },
        "temporal_recursion": {
            "jacobian": "the hidden-to-hidden Jacobian D carries the previous trace",
            "scalar_leak": "`decay` times the identity carries it",
            "none": "the previous trace is forgotten",
        },
        "recurrence_scope": {
            "diagonal": "D keeps each state's own recurrence",
            "coupled": "D keeps the recurrent mixing between the states of a position (SnAp-1)",
            "sparse_n": "D keeps an n-step neighbourhood of the model's transition (SnAp-n)",
        },
        "learning_signal": {
            "symmetric": "the true dL/dh",
            "random_feedback": "dL/dh through a fixed random matrix",
            "modulatory": "a neuromodulator that the user supplies",
            "bootstrapped": "the true dL/dh, plus a learned estimate of the future's at the window's exit",
        },
        "trace_filter": {
            "none": "the trace itself meets the signal",
            "kappa": "a low-pass of the trace meets the signal",
        },
        "update_schedule": {
            "per_step": "a weight gradient at every step",
            "window": "one for every `window_size` steps",
            "sequence_end": "one for the whole sequence",
        },
    }
)


class Coefficient(NamedTuple):
    """A numeric field.

    Parameters
    ----------
    axis : str
        The axis to which it belongs.
    value : str
        The value of that axis that needs it.
    legal : str
        Its legal range in words.
    """

    axis: str
    value: str
    legal: str


#: Every coefficient; `decay` belongs to two axes at once and is told apart by the rules.
COEFFICIENTS: Mapping[str, Coefficient] = MappingProxyType(
    {
        "decay": Coefficient("temporal_recursion", "scalar_leak", "a number in [0, 1)"),
        "kappa": Coefficient("trace_filter", "kappa", "a number in [0, 1)"),
        "sparse_n": Coefficient("recurrence_scope", "sparse_n", "an integer >= 1"),
        "window_size": Coefficient("update_schedule", "window", "an integer >= 1"),
    }
)


class Fields(NamedTuple):
    """The ten fields of a configuration: one that nobody has validated yet."""

    trace_factorization: str = "per_param"
    temporal_recursion: str | tuple[str, str] = "jacobian"
    recurrence_scope: str = "diagonal"
    learning_signal: str = "symmetric"
    trace_filter: str = "none"
    update_schedule: str = "per_step"
    decay: float | tuple[float, float] | None = None
    kappa: float | None = None
    sparse_n: int | None = None
    window_size: int | None = None


DEFAULTS = Fields()


def suggest(word: object, legal: tuple[str, ...]) -> str:
    """Return the end of a message about `word`: the nearest legal one, where one is near."""
    import difflib  # only an error needs it

    near = difflib.get_close_matches(str(word), legal, n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
