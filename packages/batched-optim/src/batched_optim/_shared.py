"""Averages over the active members, which drive the shared parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SharedAverage:
    """The mean over active members of a gradient, shape (1, ...), and of further values, shape (values,)."""

    gradient: Tensor
    values: Tensor
    active: Tensor | None


def finite_rows(gradient: Tensor) -> Tensor:
    """Return which rows hold only finite numbers, shape (rows,)."""
    return torch.isfinite(gradient.reshape(len(gradient), -1)).all(dim=1)


def average_over_members(gradient: Tensor, values: Tensor, mask: Tensor | None) -> SharedAverage:
    """Average over the active members without reading the mask on the host.

    Parameters
    ----------
    gradient : Tensor, shape (members, ...)
        One row per member.
    values : Tensor, shape (members, values)
        Further numbers to average.
    mask : Tensor, shape (members,), or None
        True for the active members; None for all.
    """
    if mask is None:
        return SharedAverage(gradient.mean(dim=0, keepdim=True), values.mean(dim=0), None)
    # Rows are replaced rather than multiplied by zero: zero times NaN is NaN.
    kept = torch.where(mask.reshape(-1, *[1] * (gradient.ndim - 1)), gradient, 0.0).sum(dim=0, keepdim=True)
    weighted = torch.where(mask[:, None], values, 0.0).sum(dim=0)
    count = mask.sum()
    divisor = count.clamp(min=1)
    return SharedAverage(kept / divisor, weighted / divisor, (count > 0).reshape(1))
