"""Gradient clipping of rows: by value, then by the L2 norm of each row."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def clip_by_value(gradient: Tensor, limit: float | None) -> Tensor:
    """Return the gradient with every element clamped to [-limit, limit]."""
    return gradient if limit is None else gradient.clamp(-limit, limit)


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of each row, shape (rows,)."""
    norms: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return norms


def joint_norms(tensors: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm of each member over several tensors, shape (members,)."""
    norms = [row_norms(tensor).double() for tensor in tensors]
    joint: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return joint


def clip_by_norm(gradient: Tensor, norms: Tensor, limit: float | None) -> Tensor:
    """Return the gradient with each row scaled by min(1, limit / norm)."""
    if limit is None:
        return gradient
    # A norm of zero gives an infinite ratio, which the clamp turns into 1.
    scale = (limit / norms).clamp(max=1.0).to(gradient.dtype)
    return gradient * scale.reshape(-1, *[1] * (gradient.ndim - 1))
