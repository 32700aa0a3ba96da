"""The table of cases: models and rules; a row added here is tested everywhere."""

from typing import NamedTuple

from engine_models import BUILDERS
from engine_oracles import CELLS

from etrace_config import ETraceConfig, legal_coordinates

NOT_YET: dict[str, str] = {}  # coordinate that no engine runs yet -> why


class Model(NamedTuple):
    """A recurrent cell: how it is built, and its equations as a pure function."""

    build: object
    cell: object


MODELS = {name: Model(BUILDERS[name], CELLS[name]) for name in ("leaky", "lstm")}


def rule_of(coordinate: ETraceConfig) -> ETraceConfig:
    """Return what a coordinate's gradients depend on: all axes but the schedule."""
    return coordinate.replace(update_schedule="per_step", window_size=None)


COORDINATES = list(legal_coordinates())
RULES = list(dict.fromkeys(map(rule_of, COORDINATES)))


def methods(rule: ETraceConfig) -> list[str]:
    """Return the methods that fit a rule's learning signal."""
    only = {"modulatory": ["single-step"], "bootstrapped": ["multi-step"]}
    return only.get(rule.learning_signal, ["single-step", "multi-step"])


def representative(rules: list[ETraceConfig]) -> list[ETraceConfig]:
    """Return few rules that show every value of every axis: again and again the one that shows most new values."""
    axes = ("trace_factorization", "temporal_recursion", "recurrence_scope", "learning_signal", "trace_filter")
    values = {rule: {(axis, getattr(rule, axis)) for axis in axes} for rule in rules}
    missing = set[tuple[str, object]]().union(*values.values())
    chosen = []
    while missing:
        chosen.append(max(rules, key=lambda rule: len(values[rule] & missing)))
        missing -= values[chosen[-1]]
    return chosen
