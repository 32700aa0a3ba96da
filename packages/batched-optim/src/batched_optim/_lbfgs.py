"""L-BFGS.

The inverse-Hessian estimate of m pairs is applied in its compact form (Byrd, Nocedal & Schnabel 1994, theorem 2.2)::

    H g = gamma * g + S c - gamma * Y a,    a = R^-1 S'g,    c = R^-T ((D + gamma * Y'Y) a - gamma * Y'g)

with R the upper triangle, in order of age, of S'Y, and D its diagonal. It equals the two-loop recursion, but reads the
history twice rather than in 2 m dependent steps; all else happens on m x m matrices, in float64.

The history is a ring: a new pair overwrites the oldest and nothing is ever shifted. R^-1 and Y'Y are kept in the order
of the slots and updated by one row and column per pair. Two facts make that exact. Appending a pair to an upper
triangular matrix leaves the inverse of the rest as it was, and the inverse without its oldest row and column is the
inverse of the rest. Empty slots are rows and columns of zeros, so that no masks are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._ensemble import BufferSpec, Call, EnsembleOptimizer
from ._members import Rows, TensorSpec
from ._validation import LRLike, check_flag, check_optional

COUNTERS = ("pairs", "rejected", "updates", "capped")
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
    clip_value, clip_norm, shared_param_lr_multiplier
        See `BaseOptimizer`.
    max_step : float or None
        Cap on the norm of one member's update of one parameter tensor, in parameter units (a crude trust region);
        None for no cap. Default 1.
    curvature_eps : float or None
        Store a pair only if y.s > curvature_eps |s| |y|, the BFGS curvature condition with the standard skipping rule;
        None stores every pair with s != 0. Default 1e-8.
    joint_history : bool
        Keep one history over all of a member's batched tensors instead of one per tensor; the cap then limits the norm
        of their joint update. Default False.
    **options
        The keywords of `BaseOptimizer`: `clip_scope`, `maximize`, `inactive`, `nonfinite`.

    Notes
    -----
    A member whose update of a tensor is not finite keeps that tensor, loses the tensor's history, and is counted in
    `nonfinite_counts`; other members are not touched.

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
        **options: Any,  # Any: checked by BaseOptimizer
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

    def step(
        self, params: dict[str, Tensor], grads: dict[str, Tensor], active_mask: Tensor | None = None
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

        Returns
        -------
        dict of str -> Tensor
            The new parameters, with the same keys, order and shapes. The arguments are not changed.

        Raises
        ------
        KeyError, TypeError, ValueError
            If an argument does not fit the initial parameters. Nothing has changed then.
        """
        new = self._step(params, grads, active_mask)
        self._steps.add_(1)
        return new

    @property
    def stats(self) -> dict[str, int]:
        """How many steps were taken, pairs stored and rejected, updates made and capped, over members and tensors."""
        totals = self._packed["counts"].sum(dim=0).tolist()
        return {"steps": int(self._steps), **dict(zip(COUNTERS, totals, strict=True))}

    def _buffer_specs(self, spec: TensorSpec) -> dict[str, BufferSpec]:
        m = self.history_size
        return {
            "history": BufferSpec((m, 2, spec.width), spec.compute_dtype),
            "previous": BufferSpec((2, spec.width), spec.compute_dtype),
            "has_previous": BufferSpec((), torch.bool, packed=True),
            "inverse": BufferSpec((m, m), torch.float64, packed=True),
            "gram": BufferSpec((m, m), torch.float64, packed=True),
            "gamma": BufferSpec((), torch.float64, fill=1.0, packed=True),
            "head": BufferSpec((), torch.int64, packed=True),
            "hist_count": BufferSpec((), torch.int64, packed=True),
            "counts": BufferSpec((len(COUNTERS),), torch.int64, packed=True),
        }

    def _allocate(self) -> None:
        super()._allocate()
        self._steps = torch.zeros((), dtype=torch.int64, device=self._layout.device)

    def _elements_per_row(self, spec: TensorSpec) -> int:
        return spec.width * (2 * self.history_size + 8) // 8

    # One update, in stages: large tensors one by one, the small matrices of all of them together.

    def _directions(self, group: list[Rows]) -> list[tuple[Tensor, Tensor]]:
        state = self._small_state(group)
        active = torch.cat([_active(rows) for rows in group])
        works = [_Work(rows) for rows in group]
        stored, curvature = self._judge(state, active, torch.cat([work.gram() for work in works]).double())
        for work, head, keep in zip(works, _parts(state["head"], group), _parts(stored, group), strict=True):
            work.record(head, keep)
        products = torch.cat([work.products() for work in works]).double()
        weights = recur(state, stored, curvature, products.reshape(len(stored), 2, self.history_size, 2))
        for work, part in zip(works, _parts(weights, group), strict=True):
            work.combine(part)
        scale, failed = self._scale(state, group, active, torch.cat([work.norms() for work in works]).double())
        for work, was_active in zip(works, _parts(active, group), strict=True):
            work.remember(was_active if self.inactive == "freeze" else None)
        state["has_previous"].copy_((active | state["has_previous"] if self.inactive == "freeze" else active) & ~failed)
        for rows, part in zip(group, _parts(active & ~failed, group), strict=True):
            rows.mask = part
        self._count_failures(group, failed)
        parts = _parts(scale, group)
        return [(work.direction.view_as(work.rows.gradient), part) for work, part in zip(works, parts, strict=True)]

    def _small_state(self, group: list[Rows]) -> dict[str, Tensor]:
        """Return the part of every packed buffer that belongs to a group; its rows are consecutive."""
        first = self._offsets[group[0].name] + group[0].start
        length = sum(len(rows.theta) for rows in group)
        return {kind: buffer.narrow(0, first, length) for kind, buffer in self._packed.items()}

    def _judge(self, state: dict[str, Tensor], active: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        """Decide which rows store their new pair; return that and y.s, after updating gamma and the counters."""
        ss, sy, yy = gram[:, 0, 0], gram[:, 0, 1], gram[:, 1, 1]
        if self.curvature_eps is None:
            accepted = (ss > 0) & torch.isfinite(ss + yy)
        else:
            accepted = sy > self.curvature_eps * ss.sqrt() * yy.sqrt()
        candidate = active & state["has_previous"]
        stored = candidate & accepted
        state["gamma"].copy_(torch.where(stored, sy / yy, state["gamma"]))
        state["counts"][:, :2].add_(torch.stack((stored, candidate & ~accepted), 1))
        return stored, sy

    def _scale(
        self, state: dict[str, Tensor], group: list[Rows], active: Tensor, norms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return each row's factor on its direction, and the rows whose update is not finite, after resetting those."""
        rates = torch.cat([rows.flat("lr").expand(len(rows.theta)) for rows in group])
        scale = rates * state["gamma"]
        lengths = scale.abs() * norms
        finite = torch.isfinite(lengths)
        updated = active & finite
        capped = torch.zeros_like(updated)
        if self.max_step is not None:
            scale = scale * (self.max_step / lengths).clamp(max=1.0)
            capped = updated & (lengths > self.max_step)
        state["counts"][:, 2:].add_(torch.stack((updated, capped), 1))
        failed = active & ~finite
        for kind in ("inverse", "gram", "hist_count", "head"):
            state[kind].masked_fill_(failed.reshape(-1, *[1] * (state[kind].ndim - 1)), 0)
        state["gamma"].masked_fill_(failed, 1.0)
        return scale, failed

    def _count_failures(self, group: list[Rows], failed: Tensor) -> None:
        for rows, part in zip(group, _parts(failed, group), strict=True):
            if not self._state_specs[rows.name].shared:
                self._nonfinite.narrow(0, rows.start, len(part)).add_(part)

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

    def _operands(self, call: Call, name: str, rows: slice) -> tuple[Tensor, Tensor]:
        if not self.joint_history:
            return super()._operands(call, name, rows)
        names = self._joined_names()
        theta = torch.cat([call.params[name][rows].flatten(1) for name in names], 1)
        return theta, torch.cat([self._clipped(call, name, rows).flatten(1) for name in names], 1)

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
        return {**super().state_dict(), "steps": self._steps.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state written by `state_dict`; every field must be present.

        Parameters
        ----------
        state_dict : dict of str -> Any
            What `state_dict` returned, of an optimizer for the same parameters.

        Raises
        ------
        KeyError, ValueError
            If fields are missing or do not fit; the message lists them all, and nothing has changed.
        """
        super().load_state_dict(state_dict)
        self._steps.copy_(state_dict["steps"])

    def _exported_buffers(self) -> dict[str, dict[str, Tensor]]:
        found = {kind: dict(named) for kind, named in self._buffers.items() if kind not in {"history", "previous"}}
        for kind in ("s_hist", "y_hist", "prev_params", "prev_grads"):
            found[kind] = {}
        for name, spec in self._state_specs.items():
            ring = _ring_order(self._buffers["head"][name], self.history_size)
            age = torch.arange(self.history_size, 0, -1, device=ring.device)
            valid = (age <= self._buffers["hist_count"][name][:, None])[:, :, None, None]
            history = self._buffers["history"][name]
            ordered = torch.where(valid, history.gather(1, ring[:, :, None, None].expand_as(history)), 0.0)
            previous = self._buffers["previous"][name].reshape(spec.rows, 2, *spec.row_shape)
            found["s_hist"][name], found["y_hist"][name] = ordered.unbind(2)
            found["prev_params"][name], found["prev_grads"][name] = previous.unbind(1)
        return found

    def _import(self, buffers: Mapping[str, Any]) -> None:
        for kind, named in self._buffers.items():
            if kind not in {"history", "previous"}:
                for name, tensor in named.items():
                    tensor.copy_(buffers[kind][name])
        for name, spec in self._state_specs.items():
            history, previous = self._buffers["history"][name], self._buffers["previous"][name]
            pairs = torch.stack((buffers["s_hist"][name], buffers["y_hist"][name]), -2).view_as(history)
            ring = _ring_order(self._buffers["head"][name], self.history_size)
            history.scatter_(1, ring[:, :, None, None].expand_as(history), pairs)
            for side, kind in enumerate(("prev_params", "prev_grads")):
                previous[:, side].copy_(buffers[kind][name].reshape(spec.rows, spec.width))


class _Work:
    """The large tensors of one parameter during an update."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.history = rows.buffers["history"].flatten(1, 2)  # slot by slot: s, y
        self.previous = rows.buffers["previous"]
        gradient = rows.gradient.flatten(1) if rows.gradient.ndim > 1 else rows.gradient[:, None]
        self.current = torch.stack((rows.theta.reshape(gradient.shape).to(gradient.dtype), gradient), 1)
        self.pair = self.current - self.previous
        self.direction = gradient

    def gram(self) -> Tensor:
        """Return the inner products of s and y with each other, shape (rows, 2, 2)."""
        return torch.bmm(self.pair, self.pair.transpose(1, 2))

    def record(self, head: Tensor, keep: Tensor) -> None:
        """Write the new pair over the oldest where it is to be kept."""
        history = self.rows.buffers["history"]
        index = torch.arange(len(head), device=head.device)
        history[index, head] = torch.where(keep[:, None, None], self.pair, history[index, head])

    def products(self) -> Tensor:
        """Return the inner products of g and of the new y with the history, shape (rows, 2, 2 * history_size)."""
        vectors = torch.stack((self.current[:, 1], self.pair[:, 1]), 1)
        return torch.bmm(vectors, self.history.transpose(1, 2))

    def combine(self, weights: Tensor) -> None:
        """Set the direction, up to the factor gamma: the gradient plus the weighted history."""
        weights = weights[:, None].to(self.history.dtype)
        self.direction = torch.baddbmm(self.current[:, 1:], weights, self.history)[:, 0]

    def norms(self) -> Tensor:
        """Return the L2 norm of each row's direction, shape (rows,)."""
        norms: Tensor = torch.linalg.vector_norm(self.direction, dim=1)
        return norms

    def remember(self, chosen: Tensor | None) -> None:
        """Keep parameters and gradient for the next pair, of the chosen rows only unless None."""
        current = self.current if chosen is None else torch.where(chosen[:, None, None], self.current, self.previous)
        self.previous.copy_(current)


def recur(state: dict[str, Tensor], stored: Tensor, curvature: Tensor, products: Tensor) -> Tensor:
    """Take the new pairs into the small matrices; return the weights of the history in the direction.

    Parameters
    ----------
    state : dict of str -> Tensor
        `inverse`, `gram`, `gamma`, `head` and `hist_count`, updated in place.
    stored : Tensor, shape (rows,)
        Which rows have a new pair, in slot `head`.
    curvature : Tensor, shape (rows,)
        y.s of the new pair.
    products : Tensor, shape (rows, 2, history_size, 2)
        Inner products of g and of the new y with each slot's s and y.

    Returns
    -------
    Tensor, shape (rows, 2 * history_size)
        Weights of s and y, slot by slot, of which the direction is gamma * (g + their sum).
    """
    inverse, gram, gamma, head = state["inverse"], state["gram"], state["gamma"], state["head"]
    (s_g, y_g), (s_y, y_y) = (block.unbind(2) for block in products.unbind(1))
    size = inverse.shape[1]
    slot = stored[:, None] & (torch.arange(size, device=head.device) == head[:, None])
    row, column = slot[:, :, None], slot[:, None, :]

    rest = inverse.masked_fill(row, 0.0)
    appended = torch.where(slot, 1.0, -_times(rest, s_y)) / curvature[:, None]
    inverse.copy_(torch.where(column, appended[:, :, None], rest))
    gram.copy_(torch.where(column, y_y[:, :, None], torch.where(row, y_y[:, None, :], gram)))
    head.add_(stored).remainder_(size)
    state["hist_count"].add_(stored).clamp_(max=size)

    diagonal = inverse.diagonal(dim1=1, dim2=2)
    curvatures = torch.where(diagonal != 0, diagonal, torch.inf).reciprocal()
    first = _times(inverse, s_g)
    second = curvatures * first + gamma[:, None] * (_times(gram, first) - y_g)
    return torch.stack((_times(inverse.transpose(1, 2), second) / gamma[:, None], -first), 2).flatten(1)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of each row's matrix and vector."""
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]


def _active(rows: Rows) -> Tensor:
    """Return which rows are active as a tensor."""
    if rows.mask is not None:
        return rows.mask
    return torch.ones(len(rows.theta), dtype=torch.bool, device=rows.theta.device)


def _parts(joined: Tensor, group: list[Rows]) -> tuple[Tensor, ...]:
    """Split what was computed for a whole group by tensor."""
    return torch.split(joined, [len(rows.theta) for rows in group])


def _ring_order(head: Tensor, size: int) -> Tensor:
    """Return the slots of each row from the oldest to the newest, shape (rows, size)."""
    return (head[:, None] + torch.arange(size, device=head.device)) % size
