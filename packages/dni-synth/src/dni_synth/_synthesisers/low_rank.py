"""An affine map of low rank per hidden group."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape
from .features import conditional, conditional_size


class LowRank(AbstractSynthesizer):
    r"""Predict with an affine map whose weight is a product of two thin matrices.

    .. math:: M(h, c) = (\phi U) V + b, \qquad \phi = (h,\; c,\; h \otimes c)

    For wide layers: the gradient of a loss on few outputs lies in few directions. `Affine` explains the products.

    Parameters
    ----------
    rank : int
        Number of columns of ``U``, at least 1. ``U`` starts random (unit variance of its products for unit inputs)
        and ``V`` at zero, so that the estimate starts at zero and still learns.

    Raises
    ------
    ValueError
        If `rank` is below 1.

    Examples
    --------
    >>> import jax, dni_synth
    >>> synthesizer = dni_synth.LowRank(2)
    >>> synthesizer.init({"h": dni_synth.GroupShape((), 64)}, context_dim=0, key=jax.random.key(0))
    >>> sum(state.value.size for state in synthesizer.states_dict().values())
    320
    """

    def __init__(self, rank: int) -> None:
        if rank < 1:
            raise ValueError(f"`rank` must be at least 1, got {rank}. `Zero()` is the synthesiser without parameters.")
        self.rank = rank

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the two factors and the bias of each group."""
        params = {}
        for name, group in group_shapes.items():
            key, own = jax.random.split(key)
            inputs = conditional_size(group.features, context_dim)
            params[f"{name}/encode"] = jax.random.normal(own, (inputs, self.rank), group.dtype) / inputs**0.5
            params[f"{name}/decode"] = jnp.zeros((self.rank, group.features), group.dtype)
            params[f"{name}/bias"] = jnp.zeros(group.features, group.dtype)
        return params

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the low-rank estimate of every group."""
        return {
            name: conditional(hidden, context) @ params[f"{name}/encode"] @ params[f"{name}/decode"]
            + params[f"{name}/bias"]
            for name, hidden in hiddens.items()
        }
