"""The step that all three optimizers share: validate, clip, average, update rows, write new parameters.

An optimizer adds only its buffers (`_buffer_specs`) and its formula (`_directions`). All buffers have one row per row
of their parameter, so that selecting, joining, resetting, saving and loading members are the same code for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ._base import BaseOptimizer
from ._buffers import BLOCK_ELEMENTS, Buffers, BufferSpec, Piece, copy_rows
from ._clip import clip_by_norm, clip_by_value, joint_norms, row_norms
from ._members import Call, Index, Members, Rows, TensorSpec, owned, per_member, positions, take
from ._shared import average_over_members, finite_rows
from ._state import compare_states
from ._validation import LRLike, check_range, member_value


class EnsembleOptimizer(BaseOptimizer):
    """An optimizer of rows; see the module's docstring."""

    _settings: ClassVar[tuple[str, ...]] = (
        "shared_param_names",
        "clip_value",
        "clip_norm",
        "shared_param_lr_multiplier",
        "clip_scope",
        "maximize",
        "inactive",
        "nonfinite",
    )
    _fixed_settings: ClassVar[tuple[str, ...]] = ("shared_param_names",)  # loading does not change them
    _member_settings: ClassVar[tuple[str, ...]] = ()  # those that may be a (members,) tensor
    # What `_allocate` makes:
    _allocated: ClassVar[tuple[str, ...]] = ("_nonfinite", "_buffers", "_scratch", "_compiled", "_blocks", "_whole")

    def __init__(
        self, params: Mapping[str, Tensor], shared_param_names: Iterable[str], lr: LRLike, *args: Any, **options: Any
    ) -> None:  # Any: forwarded to BaseOptimizer, which checks them
        self._members: Members | None = None
        super().__init__(shared_param_names, lr, *args, **options)
        self._members = Members.from_params(params, self.shared_param_names)
        self.lr = lr

    @property
    def lr(self) -> Tensor:
        """The learning rate, a tensor owned by the optimizer; edit it in place or assign a number or a tensor."""
        return self._lr

    @lr.setter
    def lr(self, value: LRLike) -> None:
        if not torch.compiler.is_compiling():
            check_range("lr", value, 0.0, open_high=True)
        if self._members is not None:
            self._lr = member_value("lr", value, self._members.size, self._members.device)

    @property
    def nonfinite_counts(self) -> Tensor:
        """The number of steps in which each member's gradient was found non-finite and handled, shape (members,)."""
        return self._nonfinite

    @property
    def num_members(self) -> int:
        """The number of members of the ensemble."""
        return self._layout.size

    # What an optimizer adds.

    @abstractmethod
    def _buffer_specs(self, spec: TensorSpec) -> dict[str, BufferSpec]:
        """Return the buffers of one parameter tensor."""

    @abstractmethod
    def _directions(self, group: list[Rows], packed: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Advance the buffers of some rows; return direction and scale of each: theta moves by -scale * direction."""

    def _penalizes(self) -> bool:
        """Tell whether gradients get penalties on the parameters."""
        return False

    def _penalized(self, gradient: Tensor, theta: Tensor, rows: slice | None) -> Tensor:
        """Return some members' rows of a gradient with the penalties added."""
        return gradient

    # Layout.

    @property
    def _layout(self) -> Members:
        if self._members is None:
            raise RuntimeError("The optimizer has no layout before its parameters are given.")
        return self._members

    def _allocate(self) -> None:
        """Make fresh buffers, and the order in which a step goes through them."""
        device = self._layout.device
        self._nonfinite = torch.zeros(self._layout.size, dtype=torch.int64, device=device)
        self._buffers = Buffers(self._tensors_with_state(), self._buffer_specs, device)
        limit = BLOCK_ELEMENTS * torch.get_num_threads() if device.type == "cpu" else None
        self._scratch: dict[tuple[torch.dtype, torch.Size], Tensor] = {}
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        # Ranks hold different numbers of members; what they must compute alike, they compute apart from these.
        apart = self.process_group is not None
        self._blocks = self._buffers.plan(self._weight, limit, shared_apart=apart)
        self._whole = self._buffers.plan(self._weight, None, shared_apart=apart)

    def _without_buffers(self) -> Self:
        """Return an optimizer of the same settings that has still to allocate its buffers."""
        new = object.__new__(type(self))
        new.__dict__.update({name: value for name, value in vars(self).items() if name not in self._allocated})
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy holds: views of one buffer would become separate buffers there."""
        return {**vars(self._without_buffers()), "state": self.state_dict()}

    def __setstate__(self, content: dict[str, Any]) -> None:
        """Restore what `__getstate__` returned."""
        state = content.pop("state")
        self.__dict__.update(content)
        self._allocate()
        self.load_state_dict(state)

    def _tensors_with_state(self) -> dict[str, TensorSpec]:
        """Return the tensors that carry buffers, shared ones last; empty ones have nothing to update."""
        specs = {name: spec for name, spec in self._layout.specs.items() if spec.width > 0}
        return dict(sorted(specs.items(), key=lambda item: item[1].shared))

    def _weight(self, spec: TensorSpec) -> int:
        """Return how many elements of an ordinary update a row of a tensor counts for."""
        return spec.width

    # The step.

    @torch.no_grad()
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
        self._layout.check_step(params, grads, active_mask)
        if self.compile and not torch.compiler.is_compiling():
            if self._compiled is None:
                self._compiled = torch.compile(self._stepped, fullgraph=True, dynamic=False)
            return self._compiled(params, grads, active_mask)
        return self._stepped(params, grads, active_mask)

    def _stepped(
        self, params: dict[str, Tensor], grads: dict[str, Tensor], active_mask: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the parameters after one step with arguments that fit."""
        call = Call(params, grads, active_mask, self._member_values())
        if self.clip_scope == "member" and self.clip_norm is not None:
            call.norms = joint_norms(self._clamped(call, name) for name in self._layout.specs)
        outputs: dict[str, Tensor] = {}
        for pieces, packed in self._whole if torch.compiler.is_compiling() else self._blocks:
            group = [self._rows(call, piece, outputs) for piece in pieces]
            for rows, (direction, scale) in zip(group, self._directions(group, packed), strict=True):
                new = rows.moved(direction, scale)
                if rows.out is None:
                    outputs[rows.name] = new
        if call.nonfinite is not None:
            self._nonfinite.add_(call.nonfinite)
        return self._finished(call, outputs)

    def _member_values(self) -> dict[str, float | Tensor]:
        """Return the learning rate and the hyper-parameters, floats or tensors of shape () or (members,)."""
        size = self._layout.size
        rate = self._lr.reshape(() if self._lr.numel() != size or self._lr.ndim == 0 else (size,))
        return {"lr": rate, **{name: getattr(self, name) for name in self._member_settings}}

    def _clamped(self, call: Call, name: str, rows: slice | None = None) -> Tensor:
        """Return some members' rows of a gradient in computing precision, penalized and clipped by value."""
        spec = self._layout.specs[name]
        gradient = take(call.grads[name], rows)
        if gradient.dtype != spec.compute_dtype:
            gradient = gradient.to(spec.compute_dtype)
        if self.maximize:
            gradient = -gradient
        if self._penalizes():
            theta = call.params[name][None] if spec.shared else take(call.params[name], rows)
            gradient = self._penalized(gradient, theta, rows)
        return clip_by_value(gradient, self.clip_value)

    def _clipped(self, call: Call, name: str, rows: slice | None = None) -> Tensor:
        """Return some members' rows of a gradient, ready to be used."""
        gradient = self._clamped(call, name, rows)
        if self.clip_norm is None or gradient.numel() == 0:
            return gradient
        norms = row_norms(gradient) if call.norms is None else take(call.norms, rows)
        return clip_by_norm(gradient, norms, self.clip_norm)

    def _rows(self, call: Call, piece: Piece, outputs: dict[str, Tensor]) -> Rows:
        """Return what an update of some rows of one tensor needs."""
        name, rows, buffers = piece
        spec = self._buffers.specs[name]
        if spec.shared:
            return self._shared_row(call, name, buffers)
        values = call.values if rows is None else {key: take(value, rows) for key, value in call.values.items()}
        mask = take(call.mask, rows)
        freezes = mask is not None and self.inactive == "freeze"
        theta, gradient = self._operands(call, name, rows)
        found = Rows(name, theta, gradient, mask, freezes, values, buffers)
        if rows is not None:
            if name not in outputs:
                outputs[name] = torch.empty((spec.rows, *spec.row_shape), dtype=theta.dtype, device=theta.device)
            found.out, found.scratch = outputs[name][rows], self._scratch_like(gradient)
        return found

    def _scratch_like(self, rows: Tensor) -> Tensor:
        """Return memory for one value per element, the same for like blocks; fresh memory costs page faults."""
        key = rows.dtype, rows.shape
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(rows, memory_format=torch.contiguous_format)
        return self._scratch[key]

    def _operands(self, call: Call, name: str, rows: slice | None) -> tuple[Tensor, Tensor]:
        """Return some rows of a batched parameter and of its clipped gradient."""
        return take(call.params[name], rows), self._clipped(call, name, rows)

    def _shared_row(self, call: Call, name: str, buffers: dict[str, Tensor]) -> Rows:
        """Return a shared parameter as one row, driven by the average over the active members."""
        gradient = self._clipped(call, name)
        mask = call.mask
        if self.nonfinite == "skip":
            finite = finite_rows(gradient)
            lost = ~finite if mask is None else mask & ~finite
            call.nonfinite = lost if call.nonfinite is None else call.nonfinite | lost
            mask = finite if mask is None else mask & finite
        varying = {key: value for key, value in call.values.items() if per_member(value)}
        average = average_over_members(gradient, list(varying.values()), mask, self.process_group)
        values = {**call.values, **dict(zip(varying, average.values, strict=True))}
        if self.shared_param_lr_multiplier != 1.0:
            values["lr"] = values["lr"] * self.shared_param_lr_multiplier
        theta, active = call.params[name][None], average.active
        return Rows(name, theta, average.gradient, active, active is not None, values, buffers)

    def _finished(self, call: Call, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the new parameters by name, in the order in which the old ones came."""
        new = {}
        for name, tensor in call.params.items():
            if name not in outputs:
                new[name] = tensor.detach().clone()
            else:
                new[name] = outputs[name][0] if self._layout.specs[name].shared else outputs[name]
        return new

    # Members come and go.

    def select(self, members: Index) -> Self:
        """Return an optimizer for some of the members: prune, reorder, repeat.

        Parameters
        ----------
        members : int, slice, list of int, or Tensor
            Positions of members, or a bool mask.

        Returns
        -------
        BaseOptimizer
            One of the same class with the chosen members' state, bit for bit, and the whole state of the shared
            parameters. It shares no memory with this one.

        Raises
        ------
        IndexError, ValueError
            If `members` does not fit or selects none.

        Examples
        --------
        >>> import torch
        >>> from batched_optim import BatchedSGD
        >>> optimizer = BatchedSGD({"w": torch.zeros(3, 2)}, [], lr=torch.tensor([0.1, 0.2, 0.5]))
        >>> optimizer.select([2, 0]).lr.tolist()
        [0.5, 0.10000000149011612]
        """
        rows = self._positions(members)
        if len(rows) == 0:
            raise ValueError("`members` selects none; an optimizer needs at least one member.")
        new = self._without_buffers()
        new._members = self._layout.resized(len(rows))
        for name in ("_lr", *self._member_settings):
            value = getattr(self, name)
            varies = per_member(value) and value.numel() == self._layout.size
            setattr(new, name, value.index_select(0, rows) if varies else owned(value))
        new._allocate()
        copy_rows(new._buffers, [self._buffers], rows)
        new._nonfinite.copy_(self._nonfinite.index_select(0, rows))
        new._refresh()
        return new

    def reset(self, members: Index | None = None) -> None:
        """Give members fresh state, as if they had just begun; their rates and the other members are not touched.

        Parameters
        ----------
        members : int, slice, list of int, Tensor, or None
            Positions of members, or a bool mask; None resets all members and the state of the shared parameters.
        """
        rows = None if members is None else self._positions(members)
        self._buffers.reset(rows)
        self._nonfinite.index_fill_(0, self._positions(slice(None) if members is None else members), 0)
        self._refresh()

    def _positions(self, members: Index) -> Tensor:
        return positions(members, self._layout.size, self._layout.device)

    def _common_settings(self) -> tuple[str, ...]:
        """Return the names of the settings that cannot differ between members."""
        return tuple(name for name in self._settings if name not in self._member_settings)

    def _refresh(self) -> None:
        """Take note that buffers have changed other than by a step."""

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the learning rate, the settings and the buffers.

        Buffers are dicts of tensors by parameter name; those of batched parameters have the members on the leading
        dimension, those of shared ones have not. Buffers are float32 at least, whatever the parameters' precision.

        Returns
        -------
        dict of str -> Any
            Owned copies; later steps do not change them.
        """
        settings = {name: owned(getattr(self, name)) for name in self._settings}
        return {"lr": self._lr.clone(), **settings, "nonfinite_counts": self._nonfinite.clone(), **self._exported()}

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
        expected = self.state_dict()
        missing, misfits = compare_states(expected, state_dict, fixed=self._fixed_settings)
        if missing or misfits:
            raise (KeyError if missing else ValueError)(
                "The state does not fit: " + "; ".join([*missing, *misfits]) + "."
            )
        for name in self._settings:
            setattr(self, name, owned(state_dict[name]))
        self.lr = state_dict["lr"]
        self._nonfinite.copy_(state_dict["nonfinite_counts"])
        self._import(state_dict)
        self._refresh()

    def _exported_buffers(self) -> dict[str, dict[str, Tensor]]:
        """Return the buffers as `state_dict` shows them, all with a row axis."""
        return self._buffers.by_kind

    def _exported(self) -> dict[str, dict[str, Tensor]]:
        """Return owned copies of the buffers, those of shared parameters without the row axis."""
        return {
            kind: {
                name: (tensor[0] if self._buffers.specs[name].shared else tensor).clone()
                for name, tensor in named.items()
            }
            for kind, named in self._exported_buffers().items()
        }

    def _import(self, buffers: Mapping[str, Any]) -> None:
        """Overwrite all buffers with those of a state."""
        for kind, named in self._buffers.by_kind.items():
            for name, tensor in named.items():
                tensor.copy_(buffers[kind][name])
