"""Averages over the active members, which drive the shared parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SharedAverage:
    """The mean over active members of a gradient, shape (1, ...), and of further values, each of shape (1,)."""

    gradient: Tensor
    values: list[Tensor]
    active: Tensor | None


def finite_rows(gradient: Tensor) -> Tensor:
    """Return which rows hold only finite numbers, shape (rows,)."""
    return torch.isfinite(gradient.reshape(len(gradient), -1)).all(dim=1)


def average_over_members(gradient: Tensor, values: list[Tensor], mask: Tensor | None) -> SharedAverage:
    """Average over the active members without reading the mask on the host.

    Parameters
    ----------
    gradient : Tensor, shape (members, ...)
        One row per member.
    values : list of Tensor, shape (members,)
        Further numbers to average.
    mask : Tensor, shape (members,), or None
        True for the active members; None for all.
    """
    if mask is None:
        means = [value.mean(dim=0, keepdim=True, dtype=torch.float64) for value in values]
        return SharedAverage(gradient.mean(dim=0, keepdim=True), means, None)
    # Rows are replaced rather than multiplied by zero: zero times NaN is NaN.
    kept = torch.where(mask.reshape(-1, *[1] * (gradient.ndim - 1)), gradient, 0.0).sum(dim=0, keepdim=True)
    sums = [torch.where(mask, value.double(), 0.0).sum(dim=0, keepdim=True) for value in values]
    count = mask.sum(dim=0, keepdim=True)
    divisor = count.clamp(min=1)
    return SharedAverage(kept / divisor, [total / divisor for total in sums], count > 0)
