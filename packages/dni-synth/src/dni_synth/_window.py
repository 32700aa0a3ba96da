"""The injection: what a learner adds to the cotangent of its hidden states at the end of a window."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from ._digest import current_digest
from ._groups import Group, Path, Values, hidden_groups, leaf_of, name_of_path, other_groups
from ._protocol import Synthesizer

Estimator = Callable[[Values], "dict[Path, Any] | None"]


@dataclass(frozen=True)
class Schedule:
    """When the estimate is injected and when the synthesiser is fitted, in calls of a joint fit.

    Parameters
    ----------
    warmup : int, default 0
        Calls that fit the synthesiser but inject nothing.
    ramp : int, default 0
        Calls after the warm-up over which the injection's scale rises linearly from 0 to 1.
    freeze : int, optional
        Calls after which the synthesiser is no longer fitted; None fits for ever.

    Raises
    ------
    ValueError
        If a number is negative.

    Examples
    --------
    >>> import dni_synth
    >>> schedule = dni_synth.Schedule(warmup=2, ramp=4)
    >>> [float(schedule.scale(call)) for call in range(7)]
    [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """

    warmup: int = 0
    ramp: int = 0
    freeze: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("warmup", self.warmup), ("ramp", self.ramp), ("freeze", self.freeze)):
            if value is not None and value < 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}.")

    def scale(self, calls: int | jax.Array) -> jax.Array:
        """Return the injection's scale in a call.

        Parameters
        ----------
        calls : int or Array
            Joint-fit calls before this one.

        Returns
        -------
        Array, shape ()
            In [0, 1].
        """
        after = jnp.asarray(calls) - self.warmup + 1.0
        return jnp.clip(after / max(self.ramp, 1), 0.0, 1.0)


@dataclass(frozen=True)
class Boundary:
    """What is known at a window's end besides the hidden state: context, and whether anything follows."""

    context: jax.Array | None = None
    live: jax.Array | None = None  # 0 where the episode has ended; None: everything goes on
    scale: jax.Array | None = None  # of the injection; None: 1


class Injection:
    """Applies a synthesiser at the boundaries of one learner."""

    def __init__(
        self,
        learner: Any,  # a bootstrapped learner of etrace_engines, known by its public attributes
        synthesizer: Synthesizer,
        *,
        regressor: Any = None,  # a Regressor, whose module needs this one
        context_dim: int = 0,
        schedule: Schedule | None = None,
        include_other_states: bool = False,
        key: jax.Array | None = None,
        attached: bool = True,
    ) -> None:
        self.synthesizer = synthesizer
        self.regressor = regressor
        self.schedule = Schedule() if schedule is None else schedule
        self.context_dim = context_dim
        self.attached = attached
        hidden = hidden_groups(learner)
        values = {path: state.value for path, state in learner.hidden_states.items()}
        self.batch_shape = hidden[0].batch_shape(values)
        others = learner.other_states if include_other_states else {}
        # Each kind is predicted by itself, because a learner asks for them one after the other.
        self.kinds = (hidden, other_groups(others, self.batch_shape))
        self.states = {
            path: state
            for path, state in {**learner.hidden_states, **others}.items()
            if any(path in group.paths for group in self.groups)
        }
        self.dtype = hidden[0].dtype
        key = jax.random.key(0) if key is None else key
        synthesizer.init({group.name: group.shape for group in self.groups}, context_dim, key)
        self.calls = brainstate.ShortTermState(jnp.zeros((), jnp.int32))
        self.fit_error = brainstate.ShortTermState(jnp.zeros(()))
        self.entry = brainstate.ShortTermState(self.no_entry())
        self.digest = brainstate.ShortTermState(current_digest(learner))  # of the model's parameters at the last fit
        self.fitted: Any = None  # a Fitted, whose module needs this one
        self.output_structure: Any = None
        self.recorded: list[Any] | None = None
        self.answer: tuple[Any] | None = None
        self._element: jax.Array | None = None
        self._boundary = Boundary()
        self._override: Estimator | None = None
        self._on = True

    def renewed(self, learner: Any) -> Injection:
        """Return the injection of the same synthesiser, as it is fitted, into a learner that was compiled again."""
        new = Injection(
            learner,
            self.synthesizer,
            regressor=self.regressor,
            context_dim=self.context_dim,
            schedule=self.schedule,
            include_other_states=bool(self.kinds[1]),
        )
        new.calls, new.fitted, new.digest = self.calls, self.fitted, self.digest
        return new

    @property
    def injecting(self) -> bool:
        """Whether a call injects the synthesiser's own estimate."""
        return self._on and self._override is None

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups that the synthesiser predicts."""
        return tuple(group for kind in self.kinds for group in kind)

    def no_entry(self) -> dict[str, jax.Array]:
        """Return the record of the last exit for a state that no window has led to."""
        return {
            "context": jnp.zeros((*self.batch_shape, self.context_dim), self.dtype),
            "live": jnp.zeros(self.batch_shape, self.dtype),
        }

    def entry_boundary(self) -> Boundary:
        """Return what was known when the current state was a window's exit."""
        record = self.entry.value
        return Boundary(record["context"] if self.context_dim else None, record["live"])

    def record_exit(self, boundary: Boundary) -> None:
        """Remember a window's exit, which is the next window's entry."""
        live = jnp.ones(self.batch_shape, self.dtype) if boundary.live is None else boundary.live
        record = self.no_entry() | {"live": jnp.broadcast_to(live, self.batch_shape).astype(self.dtype)}
        if boundary.context is not None:
            record["context"] = boundary.context.astype(self.dtype)
        self.entry.value = record

    def params(self) -> dict[str, jax.Array]:
        """Return the synthesiser's parameters by name."""
        return {name: state.value for name, state in self.synthesizer.states_dict().items()}

    def own_states(self) -> dict[str, brainstate.State]:
        """Return every state of the synthesiser and of its fit by name."""
        statistics: dict[str, brainstate.State] = getattr(self.synthesizer, "statistics_dict", dict)()
        records = {"calls": self.calls, "fit_error": self.fit_error, "entry": self.entry, "digest": self.digest}
        return {**self.synthesizer.states_dict(), **statistics, **self.regressor.states_dict(), **records}

    def values(self) -> dict[Path, Any]:
        """Return the current values of every predicted state."""
        return {path: state.value for path, state in self.states.items()}

    def gather(self, values: Values) -> dict[str, jax.Array]:
        """Return values by group instead of by path."""
        return {group.name: group.gather(values) for group in self.groups}

    def predict(
        self,
        params: Mapping[str, jax.Array],
        values: Values,
        boundary: Boundary,
        groups: tuple[Group, ...] | None = None,
    ) -> dict[str, jax.Array]:
        """Return the estimate of each group, zero where the episode has ended."""
        estimates: dict[str, jax.Array] = {}
        for kind in self.kinds if groups is None else (groups,):
            if kind:
                hiddens = {group.name: group.gather(values) for group in kind}
                estimates |= self.synthesizer.apply(params, hiddens, boundary.context)
        if boundary.live is None:
            return estimates
        return {name: estimate * align(boundary.live, estimate) for name, estimate in estimates.items()}

    def estimate(self, values: Values, groups: tuple[Group, ...]) -> dict[Path, Any] | None:
        """Return what to inject at the exit, by path; None injects nothing."""
        if not self._on or not groups:
            return None
        if self._override is not None:
            return self._override(values)
        if self.context_dim and self._boundary.context is None:
            raise ValueError(
                f"the synthesiser takes {self.context_dim} context features, but this window has none. Pass "
                "`context_fn` to `etrace_grad`, or call the learner inside `with learner.boundary(context=...)`."
            )
        estimates = self.predict(self.params(), values, self._boundary, groups)
        scale = self._boundary.scale
        scattered: dict[Path, Any] = {}
        for group in groups:
            estimate = estimates[group.name]
            scattered |= group.scatter(estimate if scale is None else estimate * scale.astype(group.dtype), values)
        return scattered

    def estimate_hidden(self, values: Values) -> dict[Path, Any] | None:
        """The learner's `exit_estimator`."""
        return self.estimate(values, self.kinds[0])

    def estimate_other(self, values: Values) -> dict[Path, Any] | None:
        """The learner's `exit_estimator_other`."""
        return self.estimate(values, self.kinds[1])

    def note_outputs(self, outputs: Any, *, windowed: bool) -> None:
        """Remember what a call returned, and the structure of one step's output."""
        self.output_structure = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape[1:] if windowed else a.shape, a.dtype), outputs
        )
        if self.recorded is not None:
            self.recorded.append(outputs)

    def isolated(self, outputs: Any, *, windowed: bool) -> Any:
        """Detach the outputs of all batch elements but those that are looked at."""
        if self._element is None:
            return outputs
        element, lead, batch = self._element, int(windowed), self.batch_shape

        def detach(array: jax.Array) -> jax.Array:
            if array.shape[lead : lead + len(batch)] != batch:
                return array
            chosen = element.reshape(*batch, *(1 for _ in range(array.ndim - lead - len(batch))))
            return jnp.where(chosen, array, jax.lax.stop_gradient(array))

        return jax.tree.map(detach, outputs)

    @contextlib.contextmanager
    def alone(self, element: jax.Array) -> Iterator[None]:
        """Differentiate only the outputs of some batch elements in this block, a mask of shape (*batch)."""
        before, self._element = self._element, element
        try:
            yield
        finally:
            self._element = before

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Any]]:
        """Collect the outputs of the learner's calls in this block."""
        before, self.recorded = self.recorded, []
        try:
            yield self.recorded
        finally:
            self.recorded = before

    @contextlib.contextmanager
    def answering(self, outputs: Any) -> Iterator[None]:
        """Answer the learner's calls in this block with given outputs, to look at a loss alone."""
        before, self.answer = self.answer, (outputs,)
        try:
            yield
        finally:
            self.answer = before

    @contextlib.contextmanager
    def at(self, boundary: Boundary) -> Iterator[None]:
        """Use what is known at the exit of the windows called in this block."""
        before, self._boundary = self._boundary, boundary
        try:
            yield
        finally:
            self._boundary = before

    @contextlib.contextmanager
    def replaced(self, estimator: Estimator) -> Iterator[None]:
        """Inject another estimate in this block."""
        before, self._override = self._override, estimator
        try:
            yield
        finally:
            self._override = before

    @contextlib.contextmanager
    def switched(self, *, on: bool) -> Iterator[None]:
        """Inject or do not inject in this block."""
        before, self._on = self._on, on
        try:
            yield
        finally:
            self._on = before


def align(live: jax.Array, array: jax.Array) -> jax.Array:
    """Append axes to a (*batch) array until it broadcasts against `array`."""
    return live.reshape(*live.shape, *(1 for _ in range(array.ndim - live.ndim))).astype(array.dtype)


def warn_uncovered(injection: Injection, learner: Any) -> None:
    """Warn of carried float states that get no estimate."""
    missing = sorted(name_of_path(path) for path in learner.other_states if path not in injection.states)
    if missing:
        warnings.warn(
            f"the carried states {missing} are not hidden states and get no synthetic gradient, so credit through "
            "them ends with the window. Construct the learner with `include_other_states=True` to include them.",
            UserWarning,
            stacklevel=3,
        )


def scaled_like(gradient: Any, value: Any) -> Any:
    """Give a gradient the tree structure of the value it belongs to."""
    return jax.tree.unflatten(jax.tree.structure(value), [leaf_of(gradient)])
