"""A network with one hidden layer per hidden group."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape
from .features import concatenated


class MLP(AbstractSynthesizer):
    r"""Predict with a one-layer tanh network per hidden group, shared over batch and positions.

    .. math:: M(h, c) = \tanh((h, c)\, W_1 + b_1)\, W_2 + b_2

    Parameters
    ----------
    width : int, default 64
        Units of the inner layer, at least 1. The last layer starts at zero.

    Raises
    ------
    ValueError
        If `width` is below 1.

    References
    ----------
    Jaderberg et al. (2017), Decoupled Neural Interfaces using Synthetic Gradients, arXiv:1608.05343, appendix.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, dni_synth
    >>> synthesizer = dni_synth.MLP(width=16)
    >>> synthesizer.init({"h": dni_synth.GroupShape((), 3)}, context_dim=0, key=jax.random.key(0))
    >>> params = {name: state.value for name, state in synthesizer.states_dict().items()}
    >>> synthesizer.apply(params, {"h": jnp.ones((1, 3))}, None)["h"].tolist()
    [[0.0, 0.0, 0.0]]
    """

    def __init__(self, width: int = 64) -> None:
        if width < 1:
            raise ValueError(f"`width` must be at least 1, got {width}.")
        self.width = width

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return weights and biases of the two layers of each group."""
        params = {}
        for name, group in group_shapes.items():
            key, own = jax.random.split(key)
            inputs = group.features + context_dim
            params[f"{name}/weight1"] = jax.random.normal(own, (inputs, self.width), group.dtype) / inputs**0.5
            params[f"{name}/bias1"] = jnp.zeros(self.width, group.dtype)
            params[f"{name}/weight2"] = jnp.zeros((self.width, group.features), group.dtype)
            params[f"{name}/bias2"] = jnp.zeros(group.features, group.dtype)
        return params

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the network's estimate of every group."""
        found = {}
        for name, hidden in hiddens.items():
            inner = jnp.tanh(concatenated(hidden, context) @ params[f"{name}/weight1"] + params[f"{name}/bias1"])
            found[name] = inner @ params[f"{name}/weight2"] + params[f"{name}/bias2"]
        return found
