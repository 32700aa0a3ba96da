"""The configuration: a frozen dataclass that is canonical and legal, or does not exist."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from ._axes import (
    DEFAULTS,
    Fields,
    LearningSignal,
    RecurrenceScope,
    TemporalRecursion,
    TraceFactorization,
    TraceFilter,
    UpdateSchedule,
)
from ._canonical import canonicalise
from ._rules import violations
from ._values import check_fields

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ETraceConfig:
    """A point in the space of online learning rules.

    Six categorical axes carry the coordinate, four numbers the coefficients. An instance is put into canonical
    form and validated when it is built, so a coordinate has exactly one spelling, equal rules are equal objects,
    and an illegal combination cannot be built at all.

    Parameters
    ----------
    trace_factorization : {'per_param', 'io_factorized', 'random_projection'}
        How the eligibility trace is stored, which decides the engine that runs the rule: a trace per parameter
        element, a pair of an input-side (x) and an output-side (f) factor, or UORO's unbiased random pair.
    temporal_recursion : {'jacobian', 'scalar_leak', 'none'} or an (x, f) pair of them
        The operator R that carries the previous trace: the hidden-to-hidden Jacobian D, ``decay * I``, or 0. Under
        ``'io_factorized'`` it is a pair; a scalar means both sides, ``'jacobian'`` the pair
        ``('scalar_leak', 'jacobian')``, since the input-side trace involves no Jacobian.
    recurrence_scope : {'diagonal', 'coupled', 'sparse_n'}
        How much hidden-to-hidden coupling enters D: each state's own recurrence, the recurrent mixing between the
        states of a hidden group too (SnAp-1), or an n-step neighbourhood of the model's own transition (SnAp-n).
    learning_signal : {'symmetric', 'random_feedback', 'modulatory', 'bootstrapped'}
        What meets the trace: the true dL/dh, its image under a fixed random matrix, a neuromodulator that the user
        supplies, or the true dL/dh with a learned estimate of the future's at the window's exit (DNI).
    trace_filter : {'none', 'kappa'}
        An optional low-pass of the trace, ``filtered <- kappa * filtered + trace``.
    update_schedule : {'per_step', 'window', 'sequence_end'}
        When the weight gradient is emitted.
    decay : float or (float, float), optional
        Discount of the previous trace per step, dimensionless, in [0, 1). Required by ``'io_factorized'``, where it
        is an (x, f) pair and a scalar means both sides, and by ``'per_param'`` with ``'scalar_leak'``.
    kappa : float, optional
        Coefficient of ``trace_filter='kappa'``, dimensionless, in [0, 1).
    sparse_n : int, optional
        Coefficient of ``recurrence_scope='sparse_n'``: the SnAp order, at least 1. An order at or above the
        diameter of a hidden group saturates to full real-time recurrent learning within the group.
    window_size : int, optional
        Coefficient of ``update_schedule='window'``: the number of steps, at least 1.

    Raises
    ------
    ValueError
        If a field carries a value outside its vocabulary, a coefficient is out of range, or the compatibility
        matrix rejects the combination.
    TypeError
        If a coefficient is not a number (a bool is not one).

    Notes
    -----
    Canonical form comes before validation, so no rule fires on a spelling that the canonical form removes:

    - ``'scalar_leak'`` with decay 0 is ``'none'``, and ``'none'`` stores decay 0.0.
    - Under ``'io_factorized'`` scalars become pairs, and a side with decay 0 becomes ``'none'``.
    - ``trace_filter='kappa'`` with kappa 0 is ``'none'``.
    - ``recurrence_scope='sparse_n'`` with ``sparse_n=1`` is ``'coupled'``.

    NumPy and JAX scalars count as numbers, lists as pairs; plain Python values are stored.

    Examples
    --------
    A leaky input trace beside a Jacobian output trace:

    >>> config = ETraceConfig(trace_factorization='io_factorized', decay=0.9)
    >>> config.temporal_recursion
    ('scalar_leak', 'jacobian')

    A coefficient without its category is a typo, not a configuration:

    >>> ETraceConfig(kappa=0.5)
    Traceback (most recent call last):
    ValueError: `kappa=0.5` is set but `trace_filter` is 'none'...
    """

    trace_factorization: TraceFactorization = "per_param"
    temporal_recursion: TemporalRecursion | tuple[TemporalRecursion, TemporalRecursion] = "jacobian"
    recurrence_scope: RecurrenceScope = "diagonal"
    learning_signal: LearningSignal = "symmetric"
    trace_filter: TraceFilter = "none"
    update_schedule: UpdateSchedule = "per_step"
    decay: float | tuple[float, float] | None = None
    kappa: float | None = None
    sparse_n: int | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        """Store the canonical form, or raise the first violated rule."""
        fields = canonicalise(check_fields(fields_of(self)))
        for violation in violations(fields):
            raise ValueError(violation.message)
        for name, value in fields._asdict().items():
            object.__setattr__(self, name, value)

    @property
    def is_factorized(self) -> bool:
        """Whether the trace is stored as an input/output factor pair."""
        return self.trace_factorization == "io_factorized"

    @property
    def recursion_x(self) -> TemporalRecursion:
        """The recursion of the x-side (input factor), under ``'io_factorized'`` only."""
        return self._side("recursion_x", self.temporal_recursion, 0)

    @property
    def recursion_f(self) -> TemporalRecursion:
        """The recursion of the f-side (output factor), under ``'io_factorized'`` only."""
        return self._side("recursion_f", self.temporal_recursion, 1)

    @property
    def decay_x(self) -> float:
        """The discount of the x-side (input factor), under ``'io_factorized'`` only."""
        return self._side("decay_x", self.decay, 0)

    @property
    def decay_f(self) -> float:
        """The discount of the f-side (output factor), under ``'io_factorized'`` only."""
        return self._side("decay_f", self.decay, 1)

    @property
    def include_recurrent_mixing(self) -> bool:
        """Whether D keeps hidden-to-hidden mixing: true for ``'coupled'`` and ``'sparse_n'``."""
        return self.recurrence_scope != "diagonal"

    def replace(self, **changes: Any) -> ETraceConfig:  # Any: each field has its own type, checked when built
        """Return a copy with changes applied, put into canonical form and validated again.

        Parameters
        ----------
        **changes
            Field values to override; the other fields keep their canonical values.

        Returns
        -------
        ETraceConfig
            The new configuration.

        Raises
        ------
        ValueError
            If the changed combination is illegal, as in the constructor.
        TypeError
            If a change is no field, or a coefficient is not a number.

        Examples
        --------
        >>> ETraceConfig().replace(recurrence_scope='sparse_n', sparse_n=1).recurrence_scope
        'coupled'
        """
        return dataclasses.replace(self, **changes)

    def describe(self) -> str:
        """Return the coordinate in one line, for reports and error messages.

        Returns
        -------
        str
            The fields that differ from the default, or ``'default'`` if none does.

        Examples
        --------
        >>> ETraceConfig(trace_filter='kappa', kappa=0.8).describe()
        "trace_filter='kappa', kappa=0.8"
        """
        return ", ".join(f"{name}={value!r}" for name, value in changed_fields(self).items()) or "default"

    def _side(self, name: str, value: _T | tuple[_T, _T] | None, side: int) -> _T:
        """Return one side of a field that is a pair, or say why it is not one."""
        if not isinstance(value, tuple):
            field = "decay" if name.startswith("decay") else "temporal_recursion"
            raise AttributeError(
                f"`{name}` exists under `trace_factorization='io_factorized'` only, got "
                f"{self.trace_factorization!r}; read `{field}` instead."
            )
        return value[side]


def fields_of(config: ETraceConfig) -> Fields:
    """Return the ten fields of a configuration."""
    return Fields(*(getattr(config, name) for name in Fields._fields))


def changed_fields(config: ETraceConfig) -> dict[str, object]:
    """Return the fields that differ from the default, by name."""
    return {
        name: value
        for name, value, default in zip(Fields._fields, fields_of(config), DEFAULTS, strict=True)
        if value != default
    }
