"""Joining ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ._buffers import copy_rows
from ._ensemble import EnsembleOptimizer

Optimizer = TypeVar("Optimizer", bound=EnsembleOptimizer)


def concatenate(optimizers: Sequence[Optimizer]) -> Optimizer:
    """Join the members of several optimizers, in order: the inverse of `select`.

    Parameters
    ----------
    optimizers : sequence of BatchedSGD, BatchedAdam or BatchedLBFGS
        At least one, all of the same class, for the same parameters and with the same settings; rates and
        hyper-parameters that may differ between members may differ between optimizers.

    Returns
    -------
    BatchedSGD, BatchedAdam or BatchedLBFGS
        One optimizer with all members' state, bit for bit. It shares no memory with the others.

    Raises
    ------
    TypeError, ValueError
        If the optimizers do not go together, or their shared parameters' states differ.

    Examples
    --------
    >>> import torch
    >>> from batched_optim import BatchedSGD, concatenate
    >>> whole = BatchedSGD({"w": torch.zeros(3, 2)}, [], lr=torch.tensor([0.25, 0.5, 1.0]))
    >>> concatenate([whole.select([0]), whole.select([1, 2])]).lr.tolist()
    [0.25, 0.5, 1.0]
    """
    if not optimizers:
        raise ValueError("`optimizers` is empty; at least one is needed.")
    first = optimizers[0]
    for position, other in enumerate(optimizers):
        _check(first, other, position)
    new = first._without_buffers()
    new._members = first._layout.resized(sum(one.num_members for one in optimizers))
    for name in ("_lr", *first._member_settings):
        setattr(new, name, _joined([getattr(one, name) for one in optimizers], [one.num_members for one in optimizers]))
    new._allocate()
    copy_rows(new._buffers, [one._buffers for one in optimizers])
    new._nonfinite.copy_(torch.cat([one._nonfinite for one in optimizers]))
    new._refresh()
    return new


def _check(first: EnsembleOptimizer, other: EnsembleOptimizer, position: int) -> None:
    """Refuse an optimizer that does not go with the first."""
    if type(other) is not type(first):
        raise TypeError(f"`optimizers[{position}]` is a {type(other).__name__}, expected {type(first).__name__}.")
    if other._layout.resized(1).specs != first._layout.resized(1).specs:
        raise ValueError(f"`optimizers[{position}]` is for other parameters than `optimizers[0]`.")
    for name in first._common_settings():
        if getattr(other, name) != getattr(first, name):
            raise ValueError(
                f"`optimizers[{position}]` has {name} = {getattr(other, name)!r}, "
                f"expected {getattr(first, name)!r} as in `optimizers[0]`."
            )
    for named, others in zip(first._buffers.by_kind.values(), other._buffers.by_kind.values(), strict=True):
        for name, buffer in named.items():
            if first._buffers.specs[name].shared and not torch.equal(buffer.nan_to_num(), others[name].nan_to_num()):
                raise ValueError(
                    f"`optimizers[{position}]` has another state of the shared parameter {name!r} than "
                    "`optimizers[0]`; ensembles that were trained apart cannot be joined."
                )


def _joined(values: list[float | Tensor], sizes: list[int]) -> float | Tensor:
    """Return one value for all members: a number if all agree on it, else one entry per member."""
    first = values[0]
    if all(_is_number(value) and value == first for value in values):
        return first.clone() if isinstance(first, Tensor) else first
    tensors = [torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64) for value in values]
    return torch.cat([value.reshape(-1).expand(size) for value, size in zip(tensors, sizes, strict=True)])


def _is_number(value: float | Tensor) -> bool:
    """Tell one value for all members from one entry per member."""
    return not isinstance(value, Tensor) or value.ndim == 0
