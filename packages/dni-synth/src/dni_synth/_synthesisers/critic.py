"""A scalar prediction of the future loss, whose gradient is the estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape


class Critic(AbstractSynthesizer):
    r"""Predict with the gradient of a scalar potential of all hidden groups together.

    .. math:: J(h, c) = \tanh((h, c)\, W + b)\, v, \qquad M(h, c) = \partial J / \partial h

    The true target is a gradient field (of the future loss), and so is every estimate of a critic; it also couples
    the hidden groups, which the other synthesisers treat one by one.

    Parameters
    ----------
    width : int, default 64
        Units of the inner layer, at least 1. ``v`` starts at zero, hence so does the estimate.

    Raises
    ------
    ValueError
        If `width` is below 1.

    References
    ----------
    Czarnecki et al. (2017), Understanding Synthetic Gradients and Decoupled Neural Interfaces, arXiv:1703.00522,
    section 4 (critics).

    Examples
    --------
    >>> import jax, dni_synth
    >>> synthesizer = dni_synth.Critic(width=16)
    >>> synthesizer.init({"h": dni_synth.GroupShape((), 3)}, context_dim=0, key=jax.random.key(0))
    >>> {name: state.value.shape for name, state in synthesizer.states_dict().items()}
    {'h/weight': (3, 16), 'bias': (16,), 'readout': (16,)}
    """

    def __init__(self, width: int = 64) -> None:
        if width < 1:
            raise ValueError(f"`width` must be at least 1, got {width}.")
        self.width = width

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the first layer, split by group and context, and the readout."""
        sizes = {name: math.prod(group.positions) * group.features for name, group in group_shapes.items()}
        dtype = jnp.result_type(*(group.dtype for group in group_shapes.values()))
        total = sum(sizes.values()) + context_dim
        params = {}
        for name, size in (*sizes.items(), *([("", context_dim)] if context_dim else [])):
            key, own = jax.random.split(key)
            weight = jax.random.normal(own, (size, self.width), dtype) / total**0.5
            params[f"{name}/weight" if name else "context"] = weight
        return params | {"bias": jnp.zeros(self.width, dtype), "readout": jnp.zeros(self.width, dtype)}

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the gradient of the potential with respect to each group."""
        gradient: dict[str, jax.Array] = jax.grad(lambda values: self.potential(params, values, context))(dict(hiddens))
        return gradient

    def potential(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> jax.Array:
        """Return the predicted future loss, summed over the batch.

        Parameters
        ----------
        params : mapping of str to Array
            The parameters by name.
        hiddens : mapping of str to Array, shape (*batch, *positions, features)
            The hidden values of each group.
        context : Array, shape (*batch, context_dim), or None
            What else is known at the boundary.

        Returns
        -------
        Array, shape ()
            The sum over the batch, so that its gradient is each element's own.
        """
        inner = params["bias"]
        for name, hidden in hiddens.items():
            # The number of positions is not in the parameters, but the size of one element's group is.
            inner = inner + hidden.reshape(-1, params[f"{name}/weight"].shape[0]) @ params[f"{name}/weight"]
        if context is not None:
            inner = inner + context.reshape(-1, context.shape[-1]).astype(inner.dtype) @ params["context"]
        return jnp.sum(jnp.tanh(inner) @ params["readout"])
