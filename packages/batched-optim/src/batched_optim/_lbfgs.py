"""L-BFGS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ._base import Options
from ._buffers import BufferSpec
from ._compact import Pairing, as_vectors, forget, judge, recur, ring_order
from ._ensemble import EnsembleOptimizer
from ._members import Call, Rows, TensorSpec
from ._validation import LRLike, check_flag, check_optional

COUNTERS = ("steps", "pairs", "rejected", "updates", "capped", "failed")
STATUS = ("fresh", "ready", "reset")  # the later outweighs the earlier among a member's tensors
JOINT = "*"  # the name under which a joint history is kept


class BatchedLBFGS(EnsembleOptimizer):
    """Limited-memory BFGS, batched over the ensemble.

    Each member keeps its own history of the last `history_size` correction pairs s = delta theta, y = delta g per
    parameter tensor. They turn the clipped gradient into a quasi-Newton direction d ~ H^-1 g, and the step is::

        theta = theta - lr * d

    with no line search. A pair is stored only if it passes the curvature condition (`curvature_eps`), and each member's
    update of a parameter tensor is capped at norm `max_step`. Members with `active_mask` False in `step` keep their
    parameters and store no pair, nor does a pair span their pause (unless `inactive='freeze'`, which resumes as if
    there had been none). Shared parameters keep one history, driven by the gradient averaged over the active members.

    Parameters
    ----------
    params : dict of str -> Tensor, shape (members, ...)
        Initial parameters.
    shared_param_names : iterable of str
        Names of the parameters shared by every member; these have no ensemble dimension.
    lr : float or Tensor, shape (), (1,), (members,) or (members, 1)
        Learning rate, in [0, inf); 1 is the quasi-Newton step.
    history_size : int
        Correction pairs kept per member, at least 1. Default 10.
    clip_value, clip_norm : float or None
        See `BaseOptimizer`.
    shared_param_lr_multiplier : float, in [0, inf)
        See `BaseOptimizer`.
    max_step : float or None
        Cap on the norm of one member's update of one parameter tensor, in parameter units (a crude trust region);
        None for no cap. Default 1.
    curvature_eps : float or None
        Store a pair only if ``y.s > curvature_eps |s| |y|``, the BFGS curvature condition with the standard skipping
        rule; None stores every pair with s != 0. Default 1e-8.
    joint_history : bool
        Keep one history over all of a member's batched tensors instead of one per tensor; the cap then limits the norm
        of their joint update. Default False.
    **options
        The keywords of `BaseOptimizer`: `clip_scope`, `maximize`, `inactive`, `nonfinite`, `compile`, `process_group`.

    Notes
    -----
    A member whose update of a tensor is not finite keeps that tensor, loses the tensor's history, and is counted in
    `nonfinite_counts`; its `status` is 'reset' until the tensor has a pair again. Other members are not touched.

    Nothing here depends on the scale of the problem: there is no absolute epsilon, for the curvature condition already
    keeps y.s positive.

    References
    ----------
    J. Nocedal, "Updating quasi-Newton matrices with limited storage", Math. Comp. 35 (1980), 773-782.
    R. H. Byrd, J. Nocedal, R. B. Schnabel, "Representations of quasi-Newton matrices and their use in limited memory
    methods", Math. Programming 63 (1994), 129-156, doi:10.1007/BF01582063.

    Examples
    --------
    Two quadratics, of curvature 1 and 100; after one pair each member knows its own.

    >>> import torch
    >>> from batched_optim import BatchedLBFGS
    >>> params, curvature = {"w": torch.ones(2, 1)}, torch.tensor([[1.0], [100.0]])
    >>> optimizer = BatchedLBFGS(params, [], lr=1.0, max_step=0.5)
    >>> for _ in range(3):
    ...     params = optimizer.step(params, {"w": curvature * params["w"]})
    >>> params["w"].abs().max().item() < 1e-6
    True
    """

    _settings: ClassVar[tuple[str, ...]] = (
        *EnsembleOptimizer._settings,
        "history_size",
        "max_step",
        "curvature_eps",
        "joint_history",
    )
    _fixed_settings: ClassVar[tuple[str, ...]] = ("shared_param_names", "history_size", "joint_history")

    def __init__(
        self,
        params: dict[str, Tensor],
        shared_param_names: Iterable[str],
        lr: LRLike,
        history_size: int = 10,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        shared_param_lr_multiplier: float = 1.0,
        max_step: float | None = 1.0,
        curvature_eps: float | None = 1e-8,
        *,
        joint_history: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, shared_param_names, lr, clip_value, clip_norm, shared_param_lr_multiplier, **options)
        if isinstance(history_size, bool) or not isinstance(history_size, int):
            raise TypeError(f"`history_size` must be an int, got {history_size!r}.")
        if history_size < 1:
            raise ValueError(f"`history_size` must be at least 1, got {history_size}.")
        check_optional("max_step", max_step)
        check_optional("curvature_eps", curvature_eps, zero=True)
        check_flag("joint_history", joint_history)
        self.history_size = history_size
        self.max_step = max_step
        self.curvature_eps = curvature_eps
        self.joint_history = joint_history
        self._allocate()

    @property
    def stats(self) -> dict[str, int]:
        """How many steps were taken, pairs stored and rejected, updates made and capped, over members and tensors."""
        counts = self._buffers.packed["counts"]
        totals = torch.cat((counts[:, :1].amax(dim=0), counts[:, 1:].sum(dim=0))).tolist()
        return dict(zip(COUNTERS[:-1], totals[:-1], strict=True))

    @property
    def nonfinite_counts(self) -> Tensor:
        """How often a tensor of each member was found non-finite and handled, shape (members,)."""
        failed = [
            counts[:, -1]
            for name, counts in self._buffers.by_kind["counts"].items()
            if not self._buffers.specs[name].shared
        ]
        return sum(failed, start=self._nonfinite.clone())

    @property
    def status(self) -> tuple[str, ...]:
        """What each member's curvature rests on: 'fresh', 'ready' or 'reset'.

        A member is 'fresh' before its first pair and 'ready' from then on. It is 'reset' when an update of one of its
        tensors was not finite, so that the tensor's history was lost, and no pair of it has been stored since.
        """
        pairs, counts = self._buffers.by_kind["hist_count"], self._buffers.by_kind["counts"]
        code = torch.zeros(self._layout.size, dtype=torch.int64, device=self._layout.device)
        for name, spec in self._buffers.specs.items():
            if not spec.shared:
                lost = (pairs[name] == 0) & (counts[name][:, -1] > 0)
                code = torch.maximum(code, torch.where(lost, 2, (pairs[name] > 0).long()))
        return tuple(STATUS[number] for number in code.tolist())

    def _buffer_specs(self, spec: TensorSpec) -> dict[str, BufferSpec]:
        slots = self.history_size + 1
        return {
            "history": BufferSpec((slots, 2, spec.width), spec.compute_dtype),
            "previous": BufferSpec((2, spec.width), spec.compute_dtype),
            "has_previous": BufferSpec((), torch.bool, packed=True),
            "inverse": BufferSpec((slots, slots), torch.float64, packed=True),
            "gram": BufferSpec((slots, slots), torch.float64, packed=True),
            "gamma": BufferSpec((), torch.float64, fill=1.0, packed=True),
            "head": BufferSpec((), torch.int64, packed=True),
            "hist_count": BufferSpec((), torch.int64, packed=True),
            "counts": BufferSpec((len(COUNTERS),), torch.int64, packed=True),
        }

    def _weight(self, spec: TensorSpec) -> int:
        return spec.width * (2 * self.history_size + 8) // 16

    # One update, in stages: large tensors one by one, the small matrices of all of them together.

    def _directions(self, group: list[Rows], packed: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        sizes = [len(rows.theta) for rows in group]
        works = [Pairing(rows) for rows in group]
        active = _joint_mask(group, sizes)
        gram = torch.cat([work.gram() for work in works]).double()
        stored, rejected = judge(gram, active & packed["has_previous"], self.curvature_eps)
        for work, head in zip(works, torch.split(packed["head"], sizes), strict=True):
            work.record(head)
        products = torch.cat([work.products() for work in works]).double().unflatten(2, (-1, 2))
        weights = recur(packed, stored, gram, products)
        for work, part in zip(works, torch.split(weights, sizes), strict=True):
            work.combine(part)

        rates = torch.cat([rows.flat("lr").expand(size) for rows, size in zip(group, sizes, strict=True)])
        norms = torch.cat([work.norms() for work in works])
        scale, updated, capped = self._scale(rates * packed["gamma"], norms, active)
        failed = active & ~updated
        events = (torch.ones_like(active), stored, rejected, updated, capped, failed)
        packed["counts"].add_(torch.stack(events, 1))
        forget(packed, failed)
        for work, was_active in zip(works, torch.split(active, sizes), strict=True):
            work.remember(was_active)
        packed["has_previous"].copy_(self._known(group, sizes, packed["has_previous"], active) & ~failed)
        for work, part in zip(works, torch.split(updated, sizes), strict=True):
            work.rows.mask = None if work.rows.mask is None else part
        parts = torch.split(torch.where(updated, scale, 0.0), sizes)
        return [(work.step_direction(), part.to(work.direction.dtype)) for work, part in zip(works, parts, strict=True)]

    def _scale(self, scale: Tensor, norms: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's factor on its direction after the cap, and which rows are updated and which capped."""
        lengths = scale.abs() * norms
        updated = active & torch.isfinite(lengths)
        if self.max_step is None:
            return scale, updated, torch.zeros_like(updated)
        # A length of zero gives an infinite ratio, which the clamp turns into 1.
        return scale * (self.max_step / lengths).clamp(max=1.0), updated, updated & (lengths > self.max_step)

    def _known(self, group: list[Rows], sizes: list[int], known: Tensor, active: Tensor) -> Tensor:
        """Return which rows can form a pair at the next step: those active now, and those whose buffers are held."""
        if not any(rows.holds_buffers for rows in group):
            return active
        held = [torch.full_like(part, rows.holds_buffers) for rows, part in zip(group, known.split(sizes), strict=True)]
        return active | (known & torch.cat(held))

    # One history over all of a member's tensors.

    def _tensors_with_state(self) -> dict[str, TensorSpec]:
        specs = super()._tensors_with_state()
        if not self.joint_history:
            return specs
        if JOINT in self.shared_param_names:
            raise ValueError(f"With `joint_history`, no shared parameter may be called {JOINT!r}; rename it.")
        batched = [spec for spec in specs.values() if not spec.shared]
        width = sum(spec.width for spec in batched)
        dtype = torch.float32
        for spec in batched:
            dtype = torch.promote_types(dtype, spec.dtype)
        size = self._layout.size
        joint = TensorSpec((size, width), dtype, self._layout.device, False, size, (width,))
        return {JOINT: joint, **{name: spec for name, spec in specs.items() if spec.shared}}

    def _joined_names(self) -> list[str]:
        """Return the names of the batched parameters in the order of their joint history."""
        return [name for name, spec in self._layout.specs.items() if not spec.shared and spec.width > 0]

    def _operands(self, call: Call, name: str, rows: slice | None) -> tuple[Tensor, Tensor]:
        if not self.joint_history:
            return super()._operands(call, name, rows)
        names = self._joined_names()
        theta = torch.cat([as_vectors(call.params[name], rows) for name in names], 1)
        return theta, torch.cat([as_vectors(self._clipped(call, name, rows), None) for name in names], 1)

    def _finished(self, call: Call, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.joint_history:
            specs = self._layout.specs
            names = self._joined_names()
            parts = torch.split(outputs.pop(JOINT), [specs[name].width for name in names], 1)
            for name, part in zip(names, parts, strict=True):
                outputs[name] = part.to(specs[name].dtype).reshape(specs[name].shape)
        return super()._finished(call, outputs)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the learning rate, the settings, the histories and the counters.

        `s_hist` and `y_hist` hold the pairs, shape (members, history_size, elements), the newest in the last slot; the
        last `hist_count` slots are valid. `head` is the slot of the ring that the next pair takes, to which `inverse`
        and `gram` refer. Buffers are float32 at least, whatever the parameters' precision.

        Returns
        -------
        dict of str -> Any
            Owned copies; later steps do not change them.
        """
        return super().state_dict()

    def _exported_buffers(self) -> dict[str, dict[str, Tensor]]:
        found = {
            kind: dict(named) for kind, named in self._buffers.by_kind.items() if kind not in {"history", "previous"}
        }
        for kind in ("s_hist", "y_hist", "prev_params", "prev_grads"):
            found[kind] = {}
        for name, spec in self._buffers.specs.items():
            ring = ring_order(self._buffers.by_kind["head"][name], self.history_size)
            age = torch.arange(self.history_size, 0, -1, device=ring.device)
            valid = (age <= self._buffers.by_kind["hist_count"][name][:, None])[:, :, None, None]
            history = self._buffers.by_kind["history"][name]
            ordered = torch.where(
                valid, history.gather(1, ring[:, :, None, None].expand(-1, -1, *history.shape[2:])), 0.0
            )
            previous = self._buffers.by_kind["previous"][name].reshape(spec.rows, 2, *spec.row_shape)
            found["s_hist"][name], found["y_hist"][name] = ordered.unbind(2)
            found["prev_params"][name], found["prev_grads"][name] = previous.unbind(1)
        return found

    def _import(self, buffers: Mapping[str, Any]) -> None:
        for kind, named in self._buffers.by_kind.items():
            if kind not in {"history", "previous"}:
                for name, tensor in named.items():
                    tensor.copy_(buffers[kind][name])
        for name, spec in self._buffers.specs.items():
            history, previous = self._buffers.by_kind["history"][name], self._buffers.by_kind["previous"][name]
            pairs = torch.stack((buffers["s_hist"][name], buffers["y_hist"][name]), -2)
            pairs = pairs.reshape(spec.rows, self.history_size, 2, spec.width)
            ring = ring_order(self._buffers.by_kind["head"][name], self.history_size)
            history.zero_().scatter_(1, ring[:, :, None, None].expand_as(pairs), pairs)
            for side, kind in enumerate(("prev_params", "prev_grads")):
                previous[:, side].copy_(buffers[kind][name].reshape(spec.rows, spec.width))


def _joint_mask(group: list[Rows], sizes: list[int]) -> Tensor:
    """Return which rows of a group are active."""
    device = group[0].theta.device
    if all(rows.mask is None for rows in group):
        return torch.ones(sum(sizes), dtype=torch.bool, device=device)
    ones = [torch.ones(size, dtype=torch.bool, device=device) for size in sizes]
    return torch.cat([one if rows.mask is None else rows.mask for rows, one in zip(group, ones, strict=True)])
