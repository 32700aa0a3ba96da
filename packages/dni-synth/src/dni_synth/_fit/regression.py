"""One regression step of a synthesiser on the gradient at one boundary."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import brainstate
import jax
import jax.numpy as jnp

from .._groups import Values
from .._window import Boundary, Injection, align

# Optimizers of braintools carry no type information; `Any` stands for one of them.
Optimizer = Any


@runtime_checkable
class Regressor(Protocol):
    """Moves a synthesiser towards a target."""

    def prepare(self, injection: Injection) -> None:
        """Get ready for the synthesiser that has just been attached."""

    def states_dict(self) -> dict[str, brainstate.State]:
        """Return its own states by name, without those of an optimizer that the caller holds."""

    def fit_boundary(
        self, injection: Injection, values: Values, boundary: Boundary, targets: dict[str, jax.Array]
    ) -> None:
        """Update the parameters from one boundary."""


class GradientRegressor:
    """One step of gradient descent, or of an optimizer registered on the synthesiser's parameters."""

    def __init__(self, optimizer: Optimizer | None, learning_rate: float) -> None:
        self.optimizer = optimizer
        self.learning_rate = learning_rate

    def prepare(self, injection: Injection) -> None:
        """Register the optimizer on the synthesiser's parameters."""
        if self.optimizer is not None:
            self.optimizer.register_trainable_weights(injection.synthesizer.states_dict())

    def states_dict(self) -> dict[str, brainstate.State]:
        """Return nothing: an optimizer belongs to the caller."""
        return {}

    def fit_boundary(
        self, injection: Injection, values: Values, boundary: Boundary, targets: dict[str, jax.Array]
    ) -> None:
        """Descend the mean squared error, in the synthesiser's own units."""
        prepare = getattr(injection.synthesizer, "prepare", None)
        units = None
        if prepare is not None:
            targets, units = prepare(targets)

        def loss(params: dict[str, jax.Array]) -> jax.Array:
            return squared_error(injection.predict(params, values, boundary), targets, boundary, units)

        gradients = jax.grad(loss)(injection.params())
        if self.optimizer is not None:
            self.optimizer.update(gradients)
            return
        for name, state in injection.synthesizer.states_dict().items():
            state.value = state.value - self.learning_rate * gradients[name]


def squared_error(
    estimates: dict[str, jax.Array],
    targets: dict[str, jax.Array],
    boundary: Boundary,
    units: dict[str, jax.Array] | None = None,
) -> jax.Array:
    """Return the sum over groups of the mean squared error, over the batch elements that go on."""
    total = jnp.zeros(())
    for name, target in targets.items():
        difference = estimates[name] - target
        if units is not None:
            difference = difference / units[name]
        if boundary.live is None:
            total = total + jnp.mean(difference**2)
            continue
        # `where` and not a product: a target after an episode's end may be anything, also NaN.
        weight = jnp.broadcast_to(align(boundary.live, target), target.shape)
        squares = jnp.where(weight > 0, difference, 0) ** 2
        total = total + jnp.sum(squares) / jnp.maximum(jnp.sum(weight), 1)
    return total


def masked_targets(injection: Injection, gradients: Values, boundary: Boundary) -> dict[str, jax.Array]:
    """Return detached targets by group, zero where no boundary led to the state."""
    targets = jax.lax.stop_gradient(injection.gather(gradients))
    if boundary.live is None:
        return targets
    return {name: jnp.where(align(boundary.live, t) > 0, t, 0) for name, t in targets.items()}


def regress(
    injection: Injection, regressor: Regressor, values: Values, boundary: Boundary, gradients: Values
) -> jax.Array:
    """Take one regression step and return the error before it."""
    targets = masked_targets(injection, gradients, boundary)
    error = squared_error(injection.predict(injection.params(), values, boundary), targets, boundary)
    regressor.fit_boundary(injection, values, boundary, targets)
    return error
