"""The synthesiser that predicts nothing: plain truncation."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape


class Zero(AbstractSynthesizer):
    """Predict zero everywhere, which is truncated learning.

    It has no parameters. Gradients are bit-identical to those of a learner without a synthesiser.

    Examples
    --------
    >>> import jax.numpy as jnp, dni_synth
    >>> dni_synth.Zero().apply({}, {"h": jnp.ones((1, 2))}, None)["h"].tolist()
    [[0.0, 0.0]]
    """

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return no parameters."""
        return {}

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return zeros shaped like the hidden values."""
        return {name: jnp.zeros_like(hidden) for name, hidden in hiddens.items()}
