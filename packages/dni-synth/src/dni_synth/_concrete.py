"""Work on the host where values are known: it needs no compiled program, and it can decide what to say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_traced(tree: Any) -> bool:
    """Return whether any leaf stands for a value that is not known yet."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def numpy_for(array: Any) -> Any:
    """Return the module to compute on an array with."""
    return jnp if is_traced(array) else np
