"""SGD with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from ._base import Options
from ._buffers import BufferSpec
from ._ensemble import EnsembleOptimizer
from ._members import Rows, TensorSpec, take
from ._validation import LRLike, check_flag, check_range, per_member


class BatchedSGD(EnsembleOptimizer):
    """SGD with momentum, batched over the ensemble.

    Per member and parameter tensor, with g the gradient plus `weight_decay` * theta, then clipped::

        v = momentum * v + g
        theta = theta - lr * (momentum * v + g)     (nesterov=True)
        theta = theta - lr * v                      (nesterov=False)

    Members with `active_mask` False in `step` keep their parameters bit for bit; their momentum buffer still advances,
    unless `inactive='freeze'`. A shared parameter is updated once, from the average of the active members' clipped
    gradients; without an active member it and its buffer stay as they are.

    Parameters
    ----------
    params : dict of str -> Tensor, shape (members, ...)
        Initial parameters; they set the shapes of the momentum buffers.
    shared_param_names : iterable of str
        Names of the parameters shared by every member; these have no ensemble dimension.
    lr : float or Tensor, shape (), (1,), (members,) or (members, 1)
        Learning rate, in [0, inf).
    momentum : float or Tensor, shape (members,)
        Momentum coefficient, in [0, 1). Default 0.9.
    weight_decay : float or Tensor, shape (members,)
        L2 penalty added to the gradient (coupled, not decoupled), in [0, inf). Default 0.
    nesterov : bool
        Use the Nesterov form of the update. Default True.
    clip_value, clip_norm : float or None
        See `BaseOptimizer`.
    shared_param_lr_multiplier : float, in [0, inf)
        See `BaseOptimizer`.
    **options
        The keywords of `BaseOptimizer`: `clip_scope`, `maximize`, `inactive`, `nonfinite`, `compile`, `process_group`.

    Notes
    -----
    The first step has v = g. A hyper-parameter that differs between members acts on a shared parameter by its mean
    over the active members.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of initialization and momentum in deep learning",
    ICML 2013, in the form of `torch.optim.SGD` (the rate multiplies the velocity rather than entering it).

    Examples
    --------
    >>> import torch
    >>> from batched_optim import BatchedSGD
    >>> params = {"w": torch.tensor([[1.0], [1.0]])}
    >>> optimizer = BatchedSGD(params, [], lr=torch.tensor([0.5, 0.25]), momentum=0.0)
    >>> optimizer.step(params, {"w": params["w"]})["w"].tolist()
    [[0.5], [0.75]]
    """

    _settings: ClassVar[tuple[str, ...]] = (*EnsembleOptimizer._settings, "momentum", "weight_decay", "nesterov")
    _member_settings: ClassVar[tuple[str, ...]] = ("momentum", "weight_decay")

    def __init__(
        self,
        params: dict[str, Tensor],
        shared_param_names: Iterable[str],
        lr: LRLike,
        momentum: LRLike = 0.9,
        weight_decay: LRLike = 0.0,
        nesterov: bool = True,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        shared_param_lr_multiplier: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, shared_param_names, lr, clip_value, clip_norm, shared_param_lr_multiplier, **options)
        check_range("momentum", momentum, 0.0, 1.0, open_high=True)
        check_range("weight_decay", weight_decay, 0.0, open_high=True)
        check_flag("nesterov", nesterov)
        size, device = self._layout.size, self._layout.device
        self.momentum = per_member("momentum", momentum, size, device)
        self.weight_decay = per_member("weight_decay", weight_decay, size, device)
        self.nesterov = nesterov
        self._allocate()

    def _buffer_specs(self, spec: TensorSpec) -> dict[str, BufferSpec]:
        return {"momentum_buffer": BufferSpec(spec.row_shape, spec.compute_dtype)}

    def _penalizes(self) -> bool:
        return isinstance(self.weight_decay, Tensor) or self.weight_decay != 0.0

    def _penalized(self, gradient: Tensor, theta: Tensor, rows: slice | None) -> Tensor:
        decay = self.weight_decay
        if isinstance(decay, Tensor):
            column = take(decay, rows).to(gradient.dtype).reshape(-1, *[1] * (gradient.ndim - 1))
            return torch.addcmul(gradient, column, theta.to(gradient.dtype))
        return gradient.add(theta, alpha=decay)

    def _directions(self, group: list[Rows], packed: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [self._direction(rows) for rows in group]

    def _direction(self, rows: Rows) -> tuple[Tensor, Tensor]:
        momentum, gradient = rows.value("momentum"), rows.gradient
        velocity = rows.buffers["momentum_buffer"]
        new = _add(gradient, velocity, momentum, out=None if rows.holds_buffers else velocity)
        velocity = rows.store("momentum_buffer", new)
        direction = _add(gradient, velocity, momentum, out=rows.scratch) if self.nesterov else velocity
        return direction, rows.rate()


def _add(gradient: Tensor, velocity: Tensor, momentum: float | Tensor, out: Tensor | None) -> Tensor:
    """Return gradient + momentum * velocity."""
    if isinstance(momentum, Tensor):
        return torch.addcmul(gradient, velocity, momentum, out=out)
    return torch.add(gradient, velocity, alpha=momentum, out=out)
