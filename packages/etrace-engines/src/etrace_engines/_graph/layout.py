"""Layout equations, which only move elements, applied to plain NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._compat import JaxprEqn


def _broadcast_in_dim(x: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slice(x: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


_MOVES: dict[str, Callable[[np.ndarray, dict[str, Any]], np.ndarray]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "copy": lambda x, params: x,
    "copy_p": lambda x, params: x,
    "expand_dims": lambda x, params: np.expand_dims(x, params["dimensions"]),
    "reshape": lambda x, params: x.reshape(params["new_sizes"]),
    "rev": lambda x, params: np.flip(x, params["dimensions"]),
    "slice": _slice,
    "squeeze": lambda x, params: np.squeeze(x, params["dimensions"]),
    "transpose": lambda x, params: np.transpose(x, params["permutation"]),
}
LAYOUT = frozenset({*_MOVES, "concatenate", "split"})


def move_elements(eqn: JaxprEqn, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Apply a layout equation; always a list of outputs."""
    if eqn.primitive.name == "concatenate":
        return [np.concatenate(operands, axis=eqn.params["dimension"])]
    if eqn.primitive.name == "split":
        return np.split(operands[0], np.cumsum(eqn.params["sizes"])[:-1], axis=eqn.params["axis"])
    return [_MOVES[eqn.primitive.name](operands[0], eqn.params)]
