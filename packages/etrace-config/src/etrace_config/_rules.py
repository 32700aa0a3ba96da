"""The compatibility matrix as data: which canonical coordinates are refused, why, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ._axes import AXES, COEFFICIENTS, Fields


class Violation(NamedTuple):
    """A broken rule: its number and name in the matrix, and the message that the constructor raises.

    Parameters
    ----------
    number : str
        The number of the rule, or ``'-'`` for a value that is illegal by itself.
    name : str
        The name of the rule.
    message : str
        What is wrong, why, and what to use instead.
    """

    number: str
    name: str
    message: str


class Rule(NamedTuple):
    """A row of the compatibility matrix.

    Parameters
    ----------
    number : str
        The number under which the documentation cites the rule; letters belong to the canonical form.
    name : str
        A short name, words joined by hyphens.
    rejects : str
        What the rule rejects, in words.
    because : str
        The reason, a clause that completes the message.
    conflict : str
        The start of the message, a format string over the fields.
    instead : str
        The remedy, a sentence.
    is_violated : callable
        The predicate, on canonical fields.
    """

    number: str
    name: str
    rejects: str
    because: str
    conflict: str
    instead: str
    is_violated: Callable[[Fields], bool]


#: Recognised (field, value) pairs that no engine runs. Every one runs today; a value that is announced before
#: its engine exists goes here.
NOT_RUN: frozenset[tuple[str, str]] = frozenset()


def consuming_recursion(fields: Fields) -> str:
    """Return the recursion that would use D: the f-side of a pair."""
    recursion = fields.temporal_recursion
    return recursion[1] if isinstance(recursion, tuple) else recursion


def _has_discounted_none(fields: Fields) -> bool:
    """Return whether a side that forgets the trace also has a positive decay."""
    recursion, decay = fields.temporal_recursion, fields.decay
    if isinstance(recursion, tuple) and isinstance(decay, tuple):
        return any(r == "none" and d > 0.0 for r, d in zip(recursion, decay, strict=True))
    return recursion == "none" and isinstance(decay, float) and decay > 0.0


def _is_without_category(name: str, axis: str, value: str) -> Callable[[Fields], bool]:
    return lambda f: getattr(f, name) is not None and getattr(f, axis) != value


def _is_missing(name: str, axis: str, value: str) -> Callable[[Fields], bool]:
    return lambda f: getattr(f, name) is None and getattr(f, axis) == value


def _coefficient_rules() -> Iterator[Rule]:
    """Yield rule 7, both ways, for each coefficient that belongs to one category."""
    for name, (axis, value, legal) in COEFFICIENTS.items():
        if name == "decay":
            continue  # rules 4, 5, 6, B and D
        default = next(iter(AXES[axis]))
        yield Rule(
            number="7",
            name=f"{name}-without-category".replace("_", "-"),
            rejects=f"`{name}` where `{axis}` is not {value!r}",
            because="a coefficient without its category has no effect",
            conflict=f"`{name}={{{name}}}` is set but `{axis}` is {{{axis}!r}}",
            instead=f"Set `{axis}={value!r}` or drop `{name}`.",
            is_violated=_is_without_category(name, axis, value),
        )
        yield Rule(
            number="7",
            name=f"{name}-missing".replace("_", "-"),
            rejects=f"`{axis}={value!r}` without `{name}`",
            because="the category is not defined without its coefficient",
            conflict=f"`{axis}={value!r}` is set but `{name}` is None",
            instead=f"Pass `{name}`, {legal}, or use `{axis}={default!r}`.",
            is_violated=_is_missing(name, axis, value),
        )


#: The matrix, in the order in which the rules are checked.
RULES: tuple[Rule, ...] = (
    Rule(
        number="A",
        name="recursion-pair",
        rejects="a pair of `temporal_recursion` outside 'io_factorized'",
        because="only a factorised trace has an x-side and an f-side",
        conflict="`temporal_recursion={temporal_recursion}` is a pair but `trace_factorization` is "
        "{trace_factorization!r}",
        instead="Pass one recursion, such as 'jacobian', or set `trace_factorization='io_factorized'`.",
        is_violated=lambda f: isinstance(f.temporal_recursion, tuple) and f.trace_factorization != "io_factorized",
    ),
    Rule(
        number="A",
        name="decay-pair",
        rejects="a pair of `decay` outside 'io_factorized'",
        because="only a factorised trace has an x-side and an f-side",
        conflict="`decay={decay}` is a pair but `trace_factorization` is {trace_factorization!r}",
        instead="Pass one number or None, or set `trace_factorization='io_factorized'`.",
        is_violated=lambda f: isinstance(f.decay, tuple) and f.trace_factorization != "io_factorized",
    ),
    Rule(
        number="B",
        name="decay-of-none",
        rejects="a positive `decay` where `temporal_recursion` is 'none'",
        because="a trace that forgets its past has nothing to discount",
        conflict="`decay={decay}` is set but `temporal_recursion` is {temporal_recursion!r}",
        instead="Use `temporal_recursion='scalar_leak'`, or drop `decay` (under 'io_factorized', 0 on that side).",
        is_violated=_has_discounted_none,
    ),
    Rule(
        number="1",
        name="filter-needs-per-param",
        rejects="`trace_filter='kappa'` with a `trace_factorization` other than 'per_param'",
        because="the filtered trace is not rank one, so no pair of factors holds it",
        conflict="`trace_filter='kappa'` is set but `trace_factorization` is {trace_factorization!r}",
        instead="Use `trace_factorization='per_param'`, or drop the filter and `kappa`.",
        is_violated=lambda f: f.trace_filter == "kappa" and f.trace_factorization != "per_param",
    ),
    Rule(
        number="2",
        name="scope-needs-jacobian",
        rejects="a `recurrence_scope` other than 'diagonal' where the consuming recursion (the f-side under "
        "'io_factorized') is not 'jacobian'",
        because="the scope only shapes the hidden-to-hidden Jacobian D, and D is not used",
        conflict="`recurrence_scope={recurrence_scope!r}` is set but the `temporal_recursion` that consumes it is "
        "{recursion_f!r}",
        instead="Use `recurrence_scope='diagonal'`, or `temporal_recursion='jacobian'` (with a positive f-side `decay` "
        "under 'io_factorized').",
        is_violated=lambda f: f.recurrence_scope != "diagonal" and consuming_recursion(f) != "jacobian",
    ),
    Rule(
        number="3",
        name="x-side-jacobian",
        rejects="'jacobian' on the x-side of `temporal_recursion`",
        because="the input-side trace involves no Jacobian",
        conflict="`temporal_recursion={temporal_recursion}` has 'jacobian' on its x-side",
        instead="Use 'scalar_leak' on that side of `temporal_recursion`.",
        is_violated=lambda f: f.trace_factorization == "io_factorized" and f.temporal_recursion[0] == "jacobian",
    ),
    Rule(
        number="4",
        name="decay-of-jacobian",
        rejects="`decay` with 'per_param' and 'jacobian'",
        because="D alone carries the trace, so the decay would be ignored",
        conflict="`decay={decay}` is set but `temporal_recursion` is 'jacobian' under 'per_param'",
        instead="Drop `decay`, or use `temporal_recursion='scalar_leak'` or `trace_factorization='io_factorized'`.",
        is_violated=lambda f: (
            f.trace_factorization == "per_param" and f.temporal_recursion == "jacobian" and f.decay is not None
        ),
    ),
    Rule(
        number="5",
        name="leak-needs-decay",
        rejects="'per_param' and 'scalar_leak' without `decay`",
        because="the leak is the rule",
        conflict="`temporal_recursion='scalar_leak'` is set but `decay` is None",
        instead="Pass `decay`, a number in [0, 1), or use `temporal_recursion='jacobian'`.",
        is_violated=lambda f: (
            f.trace_factorization == "per_param" and f.temporal_recursion == "scalar_leak" and f.decay is None
        ),
    ),
    Rule(
        number="6",
        name="factors-need-decay",
        rejects="'io_factorized' without a `decay` on either side ('none' brings its own, 0)",
        because="the smoothing is the rule",
        conflict="`trace_factorization='io_factorized'` is set but `decay` is None",
        instead="Pass `decay`, a number in [0, 1) or an (x, f) pair of them, or use `trace_factorization='per_param'`.",
        is_violated=lambda f: f.trace_factorization == "io_factorized" and f.decay is None,
    ),
    *_coefficient_rules(),
    Rule(
        number="8",
        name="not-run",
        rejects="a recognised value that no engine runs (there is none)",
        because="no engine runs it yet",
        conflict="{not_run} is set but not available",
        instead="Use another value of that axis.",
        is_violated=lambda f: not NOT_RUN.isdisjoint(f._asdict().items()),
    ),
    Rule(
        number="11",
        name="projection-scope",
        rejects="'random_projection' with a `recurrence_scope` other than 'coupled'",
        because="the unbiased estimator rolls the full within-group Jacobian",
        conflict="`trace_factorization='random_projection'` is set but `recurrence_scope` is {recurrence_scope!r}",
        instead="Use `recurrence_scope='coupled'` (without `sparse_n`), or `trace_factorization='per_param'`.",
        is_violated=lambda f: f.trace_factorization == "random_projection" and f.recurrence_scope != "coupled",
    ),
    Rule(
        number="C",
        name="projection-recursion",
        rejects="'random_projection' with a `temporal_recursion` other than 'jacobian'",
        because="the estimator carries its own rank-one update, which is driven by the Jacobian",
        conflict="`temporal_recursion={temporal_recursion!r}` is set but `trace_factorization` is 'random_projection'",
        instead="Use `temporal_recursion='jacobian'`, or `trace_factorization='per_param'`.",
        is_violated=lambda f: f.trace_factorization == "random_projection" and f.temporal_recursion != "jacobian",
    ),
    Rule(
        number="D",
        name="projection-decay",
        rejects="'random_projection' with `decay`",
        because="the estimator carries its own rank-one update, which has no discount",
        conflict="`decay={decay}` is set but `trace_factorization` is 'random_projection'",
        instead="Drop `decay`, or use `trace_factorization='io_factorized'`.",
        is_violated=lambda f: (
            f.trace_factorization == "random_projection" and f.decay is not None and f.temporal_recursion != "none"
        ),
    ),
    Rule(
        number="9",
        name="neighbourhood-needs-per-param",
        rejects="`recurrence_scope='sparse_n'` with a `trace_factorization` other than 'per_param'",
        because="the factorised x-side has no hidden index to widen",
        conflict="`recurrence_scope='sparse_n'` is set but `trace_factorization` is {trace_factorization!r}",
        instead="Use `trace_factorization='per_param'`, or `recurrence_scope='coupled'` without `sparse_n`.",
        is_violated=lambda f: f.recurrence_scope == "sparse_n" and f.trace_factorization != "per_param",
    ),
    Rule(
        number="10",
        name="order-below-two",
        rejects="`sparse_n` below 2 in the canonical form (an invariant)",
        because="SnAp-1 is the scope 'coupled'",
        conflict="`sparse_n={sparse_n}` is set in a canonical form",
        instead="Use `recurrence_scope='coupled'` without `sparse_n`.",
        is_violated=lambda f: f.recurrence_scope == "sparse_n" and f.sparse_n is not None and f.sparse_n < 2,
    ),
)


def violations(canonical: Fields) -> Iterator[Violation]:
    """Yield every rule that the canonical fields break, in the order of the matrix."""
    return (_violation(rule, canonical) for rule in RULES if rule.is_violated(canonical))


def _violation(rule: Rule, fields: Fields) -> Violation:
    not_run = ", ".join(f"`{name}={value!r}`" for name, value in fields._asdict().items() if (name, value) in NOT_RUN)
    words = {**fields._asdict(), "recursion_f": consuming_recursion(fields), "not_run": not_run}
    return Violation(rule.number, rule.name, f"{rule.conflict.format(**words)}: {rule.because}. {rule.instead}")
