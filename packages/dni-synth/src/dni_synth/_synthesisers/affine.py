"""One affine map per hidden group."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._protocol import AbstractSynthesizer, GroupShape
from .features import conditional, conditional_size


class Affine(AbstractSynthesizer):
    r"""Predict with one affine map per hidden group, shared over batch and positions.

    .. math:: M(h, c) = \phi W + b, \qquad \phi = (h,\; c,\; h \otimes c)

    Without a context :math:`\phi = h`, the synthesiser of Jaderberg et al. With one, the products make the map's
    coefficients depend on the context: a label or the time that remains selects *which* affine map of ``h`` applies,
    which no affine map of ``(h, c)`` side by side can do.

    Parameters
    ----------
    scale : float, default 0.0
        Standard deviation of the initial weights times the square root of their number of inputs. The default
        starts at zero, so that nothing changes before the first regression step.

    References
    ----------
    Jaderberg et al. (2017), Decoupled Neural Interfaces using Synthetic Gradients, arXiv:1608.05343, section 2.1.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, dni_synth
    >>> synthesizer = dni_synth.Affine()
    >>> synthesizer.init({"h": dni_synth.GroupShape((), 3)}, context_dim=1, key=jax.random.key(0))
    >>> {name: state.value.shape for name, state in synthesizer.states_dict().items()}
    {'h/weight': (7, 3), 'h/bias': (3,)}
    """

    def __init__(self, *, scale: float = 0.0) -> None:
        self.scale = scale

    def initial(self, group_shapes: Mapping[str, GroupShape], context_dim: int, key: jax.Array) -> dict[str, jax.Array]:
        """Return the weight, shape (inputs, features), and the bias, shape (features,), of each group."""
        params = {}
        for name, group in group_shapes.items():
            key, own = jax.random.split(key)
            inputs = conditional_size(group.features, context_dim)
            weight = jax.random.normal(own, (inputs, group.features), group.dtype)
            params[f"{name}/weight"] = weight * (self.scale / inputs**0.5)
            params[f"{name}/bias"] = jnp.zeros(group.features, group.dtype)
        return params

    def apply(
        self, params: Mapping[str, jax.Array], hiddens: Mapping[str, jax.Array], context: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Return the affine estimate of every group."""
        return {
            name: conditional(hidden, context) @ params[f"{name}/weight"] + params[f"{name}/bias"]
            for name, hidden in hiddens.items()
        }
