"""What a synthesiser is."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import brainstate
import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class GroupShape:
    """Shape of one hidden group as a synthesiser sees it: ``(*batch, *positions, features)``.

    Parameters
    ----------
    positions : tuple of int
        Leading axes of the hidden states, such as image rows and columns; ``()`` for a flat layer.
    features : int
        Length of the last axis of the hidden states times the number of states in the group.
    dtype : dtype
        Of hidden values and estimates.

    Examples
    --------
    >>> import dni_synth
    >>> dni_synth.GroupShape(positions=(), features=8)
    GroupShape(positions=(), features=8, dtype=<class 'jax.numpy.float32'>)
    """

    positions: tuple[int, ...]
    features: int
    dtype: Any = jnp.float32  # a NumPy dtype or a JAX scalar type; they share no public base


@runtime_checkable
class Synthesizer(Protocol):
    """Predict the gradient of all future loss with respect to the hidden state at the end of a window.

    Any object with these three methods can be attached; `AbstractSynthesizer` supplies `init` and `states_dict`.
    """

    def init(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> None:
        """Create the parameters for these groups, as states.

        Parameters
        ----------
        group_shapes : mapping of str to GroupShape
            The hidden groups by name.
        context_dim : int
            Number of context features; 0 without a context.
        key : Array
            A random key.
        """

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the estimate of every group, shaped like its hidden values.

        Parameters
        ----------
        params : mapping of str to Array
            Values of the states that `states_dict` returns.
        hiddens : mapping of str to Array, shape (*batch, *positions, features)
            The hidden values of each group.
        context : Array, shape (*batch, context_dim), or None
            What else is known at the boundary.
        """

    def states_dict(self) -> dict[str, brainstate.ParamState]:
        """Return the parameters by name, to register on an optimizer."""


class AbstractSynthesizer(abc.ABC):
    """Base of the synthesisers: holds the parameters as states and leaves two pure functions to write."""

    _states: dict[str, brainstate.ParamState] | None = None

    def init(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> None:
        """Create the parameters for these groups; a second call for the same shapes keeps those there are.

        Parameters
        ----------
        group_shapes : mapping of str to GroupShape
            The hidden groups by name.
        context_dim : int
            Number of context features; 0 without a context.
        key : Array
            A random key.

        Raises
        ------
        ValueError
            If parameters exist already and were made for other groups or another context; both are named.
        """
        values = self.initial(group_shapes, context_dim, key)
        if self._states is None:
            self._states = {name: brainstate.ParamState(value) for name, value in values.items()}
            return
        have = {name: state.value.shape for name, state in self._states.items()}
        need = {name: value.shape for name, value in values.items()}
        if have != need:
            raise ValueError(
                f"`synthesizer` holds parameters {have}, but the learner's hidden groups {dict(group_shapes)} with "
                f"`context_dim={context_dim}` need {need}. Attach a new {type(self).__name__} to this learner."
            )

    def states_dict(self) -> dict[str, brainstate.ParamState]:
        """Return the parameters by name.

        Returns
        -------
        dict of str to ParamState
            What to register on an optimizer; empty before `init`.
        """
        return dict(self._states or {})

    def statistics_dict(self) -> dict[str, brainstate.State]:
        """Return states that belong to the synthesiser but are not learned by the regression.

        Returns
        -------
        dict of str to State
            Saved and loaded with the parameters; empty by default.
        """
        return {}

    def prepare(self, targets: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Return what a fit regresses on: the targets, and for each group the unit in which it measures errors.

        Called once before each regression step. The default returns the targets and the unit 1.

        Parameters
        ----------
        targets : mapping of str to Array
            The gradients to predict.

        Returns
        -------
        tuple of dict
            Targets and units, by group.
        """
        return dict(targets), {name: jnp.ones((), target.dtype) for name, target in targets.items()}

    @abc.abstractmethod
    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the parameters at the start, for which every estimate should be zero."""

    @abc.abstractmethod
    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the estimate of every group, shaped like its hidden values."""
