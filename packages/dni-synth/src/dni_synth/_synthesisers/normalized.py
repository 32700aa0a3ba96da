"""Running normalisation and clipping of the targets of another synthesiser."""

from __future__ import annotations

from collections.abc import Mapping

import brainstate
import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape


class Normalized(AbstractSynthesizer):
    r"""Fit another synthesiser in units of the root mean square of each group's targets.

    .. math:: M(h, c) = u\, \hat M(h, c), \qquad u^2 = \frac{\sum_i d^{n-i} \overline{G_i^2}}{\sum_i d^{n-i}}

    with :math:`\overline{G_i^2}` the mean square of the targets of regression step ``i``. The regression of
    :math:`\hat M` on :math:`G/u` is dimensionless, so one learning rate suits losses of any scale and groups of very
    different gradients. The zero estimate stays zero.

    Parameters
    ----------
    synthesizer : AbstractSynthesizer
        The one that predicts in normalised units.
    decay : float, default 0.99
        ``d``, in [0, 1): weight of the past for each regression step.
    clip : float, optional
        Bound on the absolute value of a target, in units of ``u``; dimensionless, positive. None clips nothing.

    Raises
    ------
    ValueError
        If `decay` is outside [0, 1) or `clip` is not positive.

    References
    ----------
    van Hasselt et al. (2016), Learning values across many orders of magnitude, arXiv:1602.07714. Deviation: outputs
    are not preserved when the unit changes, since a synthesiser only has to be right in the current unit.

    Examples
    --------
    >>> import jax.numpy as jnp, dni_synth
    >>> synthesizer = dni_synth.Normalized(dni_synth.Affine(), clip=2.0)
    >>> synthesizer.init({"h": dni_synth.GroupShape((), 2)}, context_dim=0, key=jax.random.key(0))
    >>> targets, units = synthesizer.prepare({"h": jnp.array([[3e-4, 4e-4]])})
    >>> round(float(units["h"]), 6)
    0.000354
    """

    def __init__(self, synthesizer: AbstractSynthesizer, *, decay: float = 0.99, clip: float | None = None) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"`decay` must be in [0, 1), got {decay}.")
        if clip is not None and clip <= 0:
            raise ValueError(f"`clip` must be positive, got {clip}. Use `clip=None` to clip nothing.")
        self.synthesizer = synthesizer
        self.decay = decay
        self.clip = clip
        self._statistics: dict[str, brainstate.State] = {}

    def init(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> None:
        """Create the inner synthesiser's parameters and the running statistics.

        Parameters
        ----------
        group_shapes : mapping of str to GroupShape
            The hidden groups by name.
        context_dim : int
            Number of context features; 0 without a context.
        key : Array
            A random key.
        """
        self.synthesizer.init(group_shapes, context_dim, key)
        for name, group in group_shapes.items():
            # Decayed sum of mean squares, and decayed number of them.
            self._statistics.setdefault(f"{name}/statistics", brainstate.ShortTermState(jnp.zeros(2, group.dtype)))

    def states_dict(self) -> dict[str, brainstate.ParamState]:
        """Return the inner synthesiser's parameters by name.

        Returns
        -------
        dict of str to ParamState
            What to register on an optimizer.
        """
        return self.synthesizer.states_dict()

    def statistics_dict(self) -> dict[str, brainstate.State]:
        """Return the running statistics of each group and those of the inner synthesiser.

        Returns
        -------
        dict of str to State
            Two numbers for each group: the decayed sum of mean squares and the decayed number of them.
        """
        return self._statistics | self.synthesizer.statistics_dict()

    def prepare(self, targets: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Update the statistics, then return the clipped targets and the units.

        Parameters
        ----------
        targets : mapping of str to Array
            The gradients to predict.

        Returns
        -------
        tuple of dict
            Targets and units, by group.
        """
        clipped, units = {}, {}
        for name, target in targets.items():
            state = self._statistics[f"{name}/statistics"]
            state.value = self.decay * state.value + jnp.stack([jnp.mean(target**2), jnp.ones((), target.dtype)])
            units[name] = unit = self.unit(name)
            clipped[name] = target if self.clip is None else jnp.clip(target, -self.clip * unit, self.clip * unit)
        return clipped, units

    def unit(self, name: str) -> jax.Array:
        """Return the current unit of a group, 1 before the first regression step.

        Parameters
        ----------
        name : str
            The group.

        Returns
        -------
        Array, shape ()
            Root mean square of the targets seen so far, at least the smallest normal number.
        """
        total, count = self._statistics[f"{name}/statistics"].value
        tiny = jnp.finfo(total.dtype).tiny
        rms = jnp.sqrt(jnp.maximum(total / jnp.maximum(count, 1), tiny))
        return jnp.where(count > 0, rms, 1).astype(total.dtype)

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the inner synthesiser's parameters at the start."""
        return self.synthesizer.initial(group_shapes, context_dim, key)

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the inner estimate in true units."""
        inner = self.synthesizer.apply(params, hiddens, context)
        return {name: self.unit(name) * estimate for name, estimate in inner.items()}
