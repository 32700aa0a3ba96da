"""Averages over the active members, which drive the shared parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass
class SharedAverage:
    """The mean over active members of a gradient, shape (1, ...), and of further values, each of shape (1,)."""

    gradient: Tensor
    values: list[Tensor]
    active: Tensor | None


def finite_rows(gradient: Tensor) -> Tensor:
    """Return which rows hold only finite numbers, shape (rows,)."""
    return torch.isfinite(gradient.reshape(len(gradient), -1)).all(dim=1)


def average_over_members(
    gradient: Tensor, values: list[Tensor], mask: Tensor | None, group: ProcessGroup | None
) -> SharedAverage:
    """Average over the active members, of all ranks, without reading the mask on the host.

    Parameters
    ----------
    gradient : Tensor, shape (members, ...)
        One row per member.
    values : list of Tensor, shape (members,)
        Further numbers to average.
    mask : Tensor, shape (members,), or None
        True for the active members; None for all.
    group : ProcessGroup or None
        The ranks that hold members; None if there is one.
    """
    if mask is None and group is None:
        means = [value.mean(dim=0, keepdim=True, dtype=torch.float64) for value in values]
        return SharedAverage(gradient.mean(dim=0, keepdim=True), means, None)
    if mask is None:
        mask = torch.ones(len(gradient), dtype=torch.bool, device=gradient.device)
    # Rows are replaced rather than multiplied by zero: zero times NaN is NaN.
    total = torch.where(mask.reshape(-1, *[1] * (gradient.ndim - 1)), gradient, 0.0).sum(dim=0, keepdim=True)
    sums = [torch.where(mask, value.double(), 0.0).sum(dim=0, keepdim=True) for value in values]
    count = mask.sum(dim=0, keepdim=True)
    if group is not None:
        # One message; every rank gets the same bits, so that shared parameters never drift apart.
        message = torch.cat([total.double().flatten(), *sums, count.double()])
        torch.distributed.all_reduce(message, group=group)
        total = message[: total.numel()].view_as(total).to(total.dtype)
        sums = [message[total.numel() + i : total.numel() + i + 1] for i in range(len(sums))]
        count = message[-1:]
    divisor = count.clamp(min=1)
    return SharedAverage(total / divisor.to(total.dtype), [value / divisor for value in sums], count > 0)
