"""The transition of the leaky recursions, which replaces the Jacobian."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@jax.tree_util.register_static
@dataclass(frozen=True)
class Leak:
    """A multiple of the identity: a constant of the rule, so no array, whatever transformations it travels through."""

    value: float
