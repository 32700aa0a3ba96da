"""Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ._base import Options
from ._buffers import BufferSpec
from ._ensemble import EnsembleOptimizer
from ._members import Rows, TensorSpec
from ._validation import LRLike, check_range, per_member


class BatchedAdam(EnsembleOptimizer):
    """Adam, batched over the ensemble.

    Per member and parameter tensor, with g the clipped gradient and t the step count::

        m = b1 * m + (1 - b1) * g,      v = b2 * v + (1 - b2) * g^2
        theta = theta - lr * m_hat / (sqrt(v_hat) + eps)
        m_hat = m / (1 - b1^t),         v_hat = v / (1 - b2^t)

    Members with `active_mask` False in `step` keep their parameters bit for bit; their moment buffers and step count
    still advance, unless `inactive='freeze'`. A shared parameter is updated once, from the average of the active
    members' clipped gradients; without an active member it and its moments stay as they are.

    Parameters
    ----------
    params : dict of str -> Tensor, shape (members, ...)
        Initial parameters; they set the shapes of the moment buffers.
    shared_param_names : iterable of str
        Names of the parameters shared by every member; these have no ensemble dimension.
    lr : float or Tensor, shape (), (1,), (members,) or (members, 1)
        Learning rate, in [0, inf).
    betas : pair of float or Tensor, shape (members,)
        Decay rates b1, b2 of the moment estimates, in [0, 1). Default (0.9, 0.999).
    eps : float
        Added to sqrt(v_hat) in the denominator, in [0, inf). Default 1e-8.
    clip_value, clip_norm : float or None
        See `BaseOptimizer`.
    shared_param_lr_multiplier : float, in [0, inf)
        See `BaseOptimizer`.
    **options
        The keywords of `BaseOptimizer`: `clip_scope`, `maximize`, `inactive`, `nonfinite`, `compile`, `process_group`.

    Notes
    -----
    Members share one t until some are reset, frozen or joined from elsewhere; each then goes by its own. A
    hyper-parameter that differs between members acts on a shared parameter by its mean over the active members.

    References
    ----------
    D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1, arXiv:1412.6980.

    Examples
    --------
    >>> import torch
    >>> from batched_optim import BatchedAdam
    >>> params = {"w": torch.tensor([[1.0], [1.0]], dtype=torch.float64)}
    >>> optimizer = BatchedAdam(params, [], lr=torch.tensor([0.5, 0.25]), eps=0.0)
    >>> optimizer.step(params, {"w": params["w"]})["w"].tolist()
    [[0.5], [0.75]]
    """

    _settings: ClassVar[tuple[str, ...]] = (*EnsembleOptimizer._settings, "betas", "eps")
    _member_settings: ClassVar[tuple[str, ...]] = ("beta1", "beta2")

    def __init__(
        self,
        params: dict[str, Tensor],
        shared_param_names: Iterable[str],
        lr: LRLike,
        betas: tuple[LRLike, LRLike] = (0.9, 0.999),
        eps: float = 1e-8,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        shared_param_lr_multiplier: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, shared_param_names, lr, clip_value, clip_norm, shared_param_lr_multiplier, **options)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"`betas` must be a pair of decay rates, got {betas!r}.")
        for i, beta in enumerate(betas):
            check_range(f"betas[{i}]", beta, 0.0, 1.0, open_high=True)
        check_range("eps", eps, 0.0, open_high=True)
        size, device = self._layout.size, self._layout.device
        self.beta1 = per_member("betas[0]", betas[0], size, device)
        self.beta2 = per_member("betas[1]", betas[1], size, device)
        self.eps = eps
        self._allocate()

    @property
    def betas(self) -> tuple[LRLike, LRLike]:
        """The decay rates of the moment estimates."""
        return self.beta1, self.beta2

    @betas.setter
    def betas(self, value: tuple[LRLike, LRLike]) -> None:
        self.beta1, self.beta2 = value

    def step(
        self, params: dict[str, Tensor], grads: dict[str, Tensor], active_mask: Tensor | None = None, b: Any = None
    ) -> dict[str, Tensor]:
        """Take one optimizer step for every active member.

        Parameters
        ----------
        params : dict of str -> Tensor, shape (members, ...)
            Current parameters, with the members on the leading dimension; shared ones without it.
        grads : dict of str -> Tensor, shape (members, ...)
            Their gradients, with the same keys; those of shared parameters stacked, one row per member.
        active_mask : Tensor, shape (members,), bool, or None
            True for the members that step; None steps every member.
        b : any
            Not used.

        Returns
        -------
        dict of str -> Tensor
            The new parameters, with the same keys, order and shapes. The arguments are not changed.

        Raises
        ------
        KeyError, TypeError, ValueError
            If an argument does not fit the initial parameters. Nothing has changed then.
        """
        return super().step(params, grads, active_mask)

    def _buffer_specs(self, spec: TensorSpec) -> dict[str, BufferSpec]:
        moment = BufferSpec(spec.row_shape, spec.compute_dtype)
        return {"m": moment, "v": moment, "step": BufferSpec((), torch.int64)}

    def _allocate(self) -> None:
        super()._allocate()
        self._refresh()

    def _common_settings(self) -> tuple[str, ...]:
        return tuple(name for name in super()._common_settings() if name != "betas")

    def _refresh(self) -> None:
        # Equal counts are a property of the data, so a run and its resumption take the same path.
        self._counts_agree = all(bool((steps == steps[0]).all()) for steps in self._buffers.by_kind["step"].values())

    def _directions(self, group: list[Rows], packed: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        fusable = self._counts_agree and not isinstance(self.beta1, Tensor) and not isinstance(self.beta2, Tensor)
        fusable = fusable and self.inactive == "advance" and not torch.compiler.is_compiling()
        by_dtype: dict[torch.dtype | None, list[int]] = {}
        for place, rows in enumerate(group):
            by_dtype.setdefault(rows.gradient.dtype if fusable and not rows.holds_buffers else None, []).append(place)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for dtype, places in by_dtype.items():
            chosen = [group[place] for place in places]
            several = [self._direction(rows) for rows in chosen] if dtype is None else self._fused_directions(chosen)
            found.update(zip(places, several, strict=True))
        return [found[place] for place in range(len(group))]

    def _fused_directions(self, group: list[Rows]) -> list[tuple[Tensor, Tensor]]:
        """Return the directions of several tensors of one dtype by PyTorch's fused kernel: one pass over their memory.

        The kernel is given a zero to update at rate -1, so that it returns the direction itself and the rates, one
        per member, can be applied afterwards.
        """
        directions = [
            torch.zeros_like(rows.buffers["m"]) if rows.scratch is None else rows.scratch.zero_() for rows in group
        ]
        torch._foreach_add_([rows.buffers["step"] for rows in group], 1)
        torch._fused_adam_(
            directions,
            [rows.gradient.contiguous() for rows in group],
            [rows.buffers["m"] for rows in group],
            [rows.buffers["v"] for rows in group],
            [],
            [rows.buffers["step"][0].float() for rows in group],
            lr=-1.0,
            beta1=float(self.beta1),
            beta2=float(self.beta2),
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
        return [(direction, rows.rate()) for direction, rows in zip(directions, group, strict=True)]

    def _direction(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the direction of one tensor by elementary operations."""
        b1, b2, gradient = rows.value("beta1"), rows.value("beta2"), rows.gradient
        steps = rows.store("step", rows.buffers["step"] + 1).double()
        m = rows.store("m", torch.lerp(rows.buffers["m"], gradient, 1 - b1))
        v = rows.store("v", rows.buffers["v"] * b2 + gradient * gradient * (1 - b2))
        bias1, bias2 = (_settled(1 - torch.pow(rows.flat(name), steps)).to(m.dtype) for name in ("beta1", "beta2"))
        # sqrt(v_hat) = sqrt(v) / sqrt(1 - b2^t), per row.
        denominator = v.sqrt().div_(rows.column(bias2.sqrt())).add_(self.eps)
        return m / denominator, rows.rate() / bias1


def _settled(values: Tensor) -> Tensor:
    """Return the same values, which a compiler then computes once per row rather than once per element."""
    return values.as_strided(values.shape, values.stride()) if torch.compiler.is_compiling() else values
