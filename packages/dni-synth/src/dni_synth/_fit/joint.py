"""The joint fit: the model's gradient and the synthesiser's regression from one pass over the sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from .._groups import Path
from .._options import JointResult
from .._sequence import Windows, run_window
from .._targets import Targets, lambda_targets
from .._window import Boundary, Injection, scaled_like
from .regression import Regressor, regress


def joint_gradient(
    learner: Any,
    windows: Windows,
    wanted: Mapping[Path, brainstate.State],
    *,
    injecting: bool,
    fitting: bool,
    mixing: float = 0.0,
) -> JointResult:
    """Run over all windows; sum the gradients of the wanted states and, where asked to, fit the synthesiser."""
    injection: Injection = learner.injection
    regressor: Regressor = injection.regressor
    targets = lambda_targets(learner, windows, mixing) if fitting and mixing > 0 else None
    scale = injection.schedule.scale(injection.calls.value) if fitting else None
    fit_inside = fitting and targets is None
    states = {**wanted, **injection.states} if fit_inside else dict(wanted)
    start = {path: jax.tree.map(jnp.zeros_like, state.value) for path, state in wanted.items()}

    def body(total: dict[Path, Any], inputs: Any) -> tuple[dict[Path, Any], tuple[Any, ...]]:
        slices, weights, live = inputs
        entry, values = injection.entry_boundary(), injection.values()
        boundary = dataclasses.replace(windows.boundary(slices, live), scale=scale)
        with injection.at(boundary), injection.switched(on=injecting):
            result = run_window(learner, windows, slices, weights, states)
        injection.record_exit(boundary)
        error = jnp.zeros(()), jnp.zeros(())
        if fit_inside:
            error = fit_boundary(injection, regressor, values, entry, result.gradients)
        total = {path: jax.tree.map(jnp.add, total[path], like(result.gradients[path], total[path])) for path in total}
        return total, (result.losses, result.aux, error)

    gradients, (losses, aux, errors) = brainstate.transform.scan(body, start, windows.inputs)
    if targets is not None:
        errors = fit_targets(injection, regressor, targets)
    if fitting:
        injection.calls.value = injection.calls.value + 1
    mean = jnp.sum(errors[0]) / jnp.maximum(jnp.sum(errors[1]), 1)
    return JointResult(gradients, losses.reshape(-1), aux, mean)


def like(gradient: Any, value: Any) -> Any:
    """Give a gradient the structure of the accumulator."""
    return scaled_like(gradient, value) if len(jax.tree.leaves(value)) == 1 else gradient


def fit_boundary(
    injection: Injection, regressor: Regressor, values: dict[Path, Any], boundary: Boundary, gradients: dict[Path, Any]
) -> tuple[jax.Array, jax.Array]:
    """Take one regression step unless frozen, or no batch element goes on; return the error, and 1 if it counts."""
    own = {path: gradients[path] for path in injection.states}
    fitting = jnp.ones((), bool) if boundary.live is None else jnp.any(boundary.live > 0)
    if injection.schedule.freeze is not None:
        fitting = fitting & (injection.calls.value < injection.schedule.freeze)
    error = brainstate.transform.cond(
        fitting,
        lambda: regress(injection, regressor, values, boundary, own),
        lambda: jnp.zeros(()),
    )
    return error, fitting.astype(error.dtype)


def fit_targets(injection: Injection, regressor: Regressor, targets: Targets) -> tuple[jax.Array, jax.Array]:
    """Take one regression step for each boundary, in order."""

    def step(
        values: dict[Path, Any], record: dict[str, jax.Array], gradients: dict[Path, Any]
    ) -> tuple[jax.Array, jax.Array]:
        boundary = Boundary(record["context"] if injection.context_dim else None, record["live"])
        return fit_boundary(injection, regressor, values, boundary, gradients)

    found: tuple[jax.Array, jax.Array] = brainstate.transform.for_loop(
        step, targets.entries, targets.records, targets.gradients
    )
    return found
