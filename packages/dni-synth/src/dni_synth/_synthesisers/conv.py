"""A convolution over the positions of a hidden group."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape
from .features import concatenated


class Conv(AbstractSynthesizer):
    r"""Predict with one convolution over the positions of each hidden group.

    .. math:: M(h, c)[p] = \sum_\delta (h, c)[p + \delta]\, W_\delta + b

    Parameters
    ----------
    kernel_size : int, default 3
        Odd, at least 1, the same along every position axis; the border is padded with zeros. The kernel starts at
        zero.

    Raises
    ------
    ValueError
        If `kernel_size` is even or below 1, or, at `init`, if a hidden group has no position axis.

    Examples
    --------
    >>> import jax, dni_synth
    >>> synthesizer = dni_synth.Conv(kernel_size=3)
    >>> synthesizer.init({"h": dni_synth.GroupShape((8, 8), 4)}, context_dim=0, key=jax.random.key(0))
    >>> synthesizer.states_dict()["h/kernel"].value.shape
    (3, 3, 4, 4)
    """

    def __init__(self, kernel_size: int = 3) -> None:
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd and at least 1, got {kernel_size}.")
        self.kernel_size = kernel_size

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the kernel, shape (*window, inputs, features), and the bias of each group."""
        params = {}
        for name, group in group_shapes.items():
            if not group.positions:
                raise ValueError(
                    f"`Conv` needs hidden states with at least two axes, but group '{name}' is flat with "
                    f"{group.features} features. Use `Affine()` or `MLP()`."
                )
            window = (self.kernel_size,) * len(group.positions)
            shape = (*window, group.features + context_dim, group.features)
            params[f"{name}/kernel"] = jnp.zeros(shape, group.dtype)
            params[f"{name}/bias"] = jnp.zeros(group.features, group.dtype)
        return params

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the convolution's estimate of every group."""
        return {
            name: convolve(concatenated(hidden, context), params[f"{name}/kernel"]) + params[f"{name}/bias"]
            for name, hidden in hiddens.items()
        }


def convolve(values: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve (*batch, *positions, inputs) with (*window, inputs, features) under zero padding."""
    space = kernel.ndim - 2
    batch = values.shape[: values.ndim - space - 1]
    flat = values.reshape(-1, *values.shape[len(batch) :])
    axes = "DHWXYZ"[:space]
    numbers = jax.lax.conv_dimension_numbers(flat.shape, kernel.shape, (f"N{axes}C", f"{axes}IO", f"N{axes}C"))
    out = jax.lax.conv_general_dilated(flat, kernel, (1,) * space, "SAME", dimension_numbers=numbers)
    return out.reshape(*batch, *out.shape[1:])
