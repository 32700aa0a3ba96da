"""The wrapper that tells a window of steps from one step."""

from __future__ import annotations

from typing import Any

import jax


@jax.tree_util.register_pytree_node_class
class MultiStepData:
    """Mark an input as a window of steps: time leads every array.

    Parameters
    ----------
    data : pytree of arrays, shape (time, ...)
        The inputs of the steps.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from etrace_engines import MultiStepData
    >>> MultiStepData(jnp.zeros((3, 2))).data.shape
    (3, 2)
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Flatten for JAX."""
        return (self.data,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> MultiStepData:
        """Rebuild for JAX."""
        return cls(*children)
