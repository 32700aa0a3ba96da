"""Regression targets: the gradient of all future loss at every window boundary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import brainstate
import jax

from ._groups import Path, Values
from ._sequence import Windows, run_window
from ._window import Injection, align, scaled_like


@dataclass(frozen=True)
class Targets:
    """The entry of every window with the gradient of all loss from there on.

    Parameters
    ----------
    entries : mapping of path to Array, shape (windows, *batch, ...)
        Values of the predicted states at the windows' entries.
    gradients : mapping of path to Array, shape (windows, *batch, ...)
        The targets.
    records : mapping of str to Array
        Context and live mask of the exit that led to each entry.
    """

    entries: dict[Path, Any]
    gradients: dict[Path, Any]
    records: dict[str, jax.Array]


@contextlib.contextmanager
def preserved(states: Sequence[brainstate.State]) -> Iterator[None]:
    """Give states their values back after this block."""
    before = [state.value for state in states]
    try:
        yield
    finally:
        restore(states, before)


def restore(states: Sequence[brainstate.State], values: Sequence[Any]) -> None:
    """Write values into states in place."""
    for state, value in zip(states, values, strict=True):
        state.value = value


def carried(learner: Any) -> list[brainstate.State]:
    """Return every state that a call of the learner writes, and last the record of its last boundary."""
    return [*learner.carried_states.values(), learner.injection.entry]


def lambda_targets(learner: Any, windows: Windows, mixing: float) -> Targets:
    r"""Return the targets of every boundary, leaving every state as it was.

    .. math:: G_k = \partial_{h^{a_k}} [ L_k + \langle (1-\lambda) M(h^{b_k}) + \lambda G_{k+1}, h^{b_k} \rangle ]
    """
    injection: Injection = learner.injection
    states = carried(learner)
    index = {id(state): position for position, state in enumerate(states)}
    with preserved(states):
        starts = entry_snapshots(learner, windows, states)
        gradients = backward_scan(learner, windows, states, starts, mixing)
    entries = {path: starts[index[id(state)]] for path, state in injection.states.items()}
    return Targets(entries, gradients, starts[-1])


def entry_snapshots(learner: Any, windows: Windows, states: Sequence[brainstate.State]) -> list[Any]:
    """Run forward and return the carried values at every window's entry, stacked."""
    injection: Injection = learner.injection

    def advance(slices: Any, live: jax.Array) -> list[Any]:
        start = [state.value for state in states]
        with injection.switched(on=False):
            windows.step_fn(*slices)
        injection.record_exit(windows.boundary(slices, live))
        return start

    found: list[Any] = brainstate.transform.for_loop(advance, windows.slices, windows.live)
    return found


def backward_scan(
    learner: Any, windows: Windows, states: Sequence[brainstate.State], starts: list[Any], mixing: float
) -> dict[Path, Any]:
    """Return the gradients at every entry, from the last window to the first."""
    injection: Injection = learner.injection

    def step(following: dict[Path, Any], inputs: Any) -> tuple[dict[Path, Any], dict[Path, Any]]:
        (slices, weights, live), start = inputs
        restore(states, start)
        boundary = windows.boundary(slices, live)

        def mixed(values: Values) -> dict[Path, Any]:
            return mix(injection, boundary, values, following, mixing)

        with injection.replaced(mixed):
            result = run_window(learner, windows, slices, weights, injection.states)
        gradients = {path: scaled_like(g, injection.states[path].value) for path, g in result.gradients.items()}
        return gradients, gradients

    last = terminal(learner)
    _, stacked = brainstate.transform.scan(step, last, (windows.inputs, starts), reverse=True)
    return dict(stacked)


def terminal(learner: Any) -> dict[Path, Any]:
    """Return the estimate at the current state, the exit of the last window; zero where the episode has ended there."""
    injection: Injection = learner.injection
    values = injection.values()
    estimates = injection.predict(injection.params(), values, injection.entry_boundary())
    found: dict[Path, Any] = {}
    for group in injection.groups:
        found |= group.scatter(estimates[group.name], values)
    return found


def mix(injection: Injection, boundary: Any, values: Values, following: Values, mixing: float) -> dict[Path, Any]:
    """Return (1 - lambda) M + lambda G for the given exit values, zero where the episode has ended."""
    found: dict[Path, Any] = {}
    groups = [group for group in injection.groups if group.paths[0] in values]
    estimates = injection.predict(injection.params(), values, boundary, tuple(groups)) if mixing < 1 else {}
    for group in groups:
        target = group.gather(following)
        if boundary.live is not None:
            target = target * align(boundary.live, target)
        blend = mixing * target
        if mixing < 1:
            blend = blend + (1 - mixing) * estimates[group.name]
        found |= group.scatter(blend, values)
    return found
