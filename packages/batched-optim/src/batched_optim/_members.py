"""The member axis: which tensors carry it, which are shared, which members are active.

Every other module sees *rows*: a tensor whose leading dimension counts things that move independently.
A batched parameter has one row per member. A shared parameter is one single row whose gradient is the average over
the active members, whose rate is their mean rate, and which is inactive when no member is active.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

Index = int | slice | list[int] | Tensor


@dataclass(frozen=True)
class TensorSpec:
    """What is fixed about one parameter tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    shared: bool
    rows: int
    row_shape: tuple[int, ...]

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the precision of buffers and arithmetic: float32 at least."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def width(self) -> int:
        """Return the number of elements of one row."""
        return math.prod(self.row_shape)


@dataclass
class Call:
    """What one step was called with, and what it found."""

    params: Mapping[str, Tensor]
    grads: Mapping[str, Tensor]
    mask: Tensor | None
    values: dict[str, Any]  # Any: a float, or a tensor of shape () or (members,)
    norms: Tensor | None = None
    nonfinite: Tensor | None = None


@dataclass
class Rows:
    """Some rows of one parameter tensor, with all that an update of them needs."""

    name: str
    theta: Tensor
    gradient: Tensor
    mask: Tensor | None
    holds_buffers: bool
    values: dict[str, float | Tensor]
    buffers: dict[str, Tensor]
    out: Tensor | None = None  # where the new rows go, when they are a part of a tensor
    scratch: Tensor | None = None  # memory for one value per element

    def column(self, value: Tensor) -> Tensor:
        """Return a value per row shaped to broadcast against the rows."""
        return value if value.ndim == 0 else value.reshape(-1, *[1] * (self.gradient.ndim - 1))

    def value(self, name: str) -> float | Tensor:
        """Return a hyper-parameter ready to broadcast against the rows."""
        value = self.values[name]
        return self.column(value.to(self.gradient.dtype)) if isinstance(value, Tensor) else value

    def flat(self, name: str) -> Tensor:
        """Return a hyper-parameter in float64, shape () or (rows,)."""
        value = self.values[name]
        if isinstance(value, Tensor):
            return value.double()
        # Filled on the device: a copy from the host could not be captured in a CUDA graph.
        return torch.full((), value, dtype=torch.float64, device=self.gradient.device)

    def rate(self) -> Tensor:
        """Return the learning rate in computing precision, shape () or (rows,)."""
        rate: Tensor = self.values["lr"]  # type: ignore[assignment]  # the rate is always a tensor
        return rate.to(self.gradient.dtype)

    def keep_inactive(self, new: Tensor, old: Tensor) -> Tensor:
        """Return `new` where rows are active and `old` where they are not."""
        if self.mask is None:
            return new
        return torch.where(self.mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    def store(self, kind: str, new: Tensor) -> Tensor:
        """Overwrite a buffer, keeping inactive rows where they must be kept; return what is stored."""
        old = self.buffers[kind]
        if new is not old:
            old.copy_(self.keep_inactive(new, old) if self.holds_buffers else new)
        return old

    def moved(self, direction: Tensor, scale: Tensor) -> Tensor:
        """Return `theta - scale * direction`, inactive rows bit for bit as they were."""
        scale, dtype = self.column(scale), self.theta.dtype
        if self.mask is None and dtype == direction.dtype:
            if self.out is None:
                return torch.addcmul(self.theta, direction, scale, value=-1.0)
            return torch.addcmul(self.theta, direction, scale, value=-1.0, out=self.out)
        new = torch.addcmul(self.theta.to(direction.dtype), direction, scale, value=-1.0).to(dtype)
        if self.out is None:
            return self.keep_inactive(new, self.theta)
        if self.mask is None:
            return self.out.copy_(new)
        return torch.where(self.column(self.mask), new, self.theta, out=self.out)


class Members:
    """The layout of an ensemble's parameters, and the check that a step's arguments obey it."""

    def __init__(self, specs: dict[str, TensorSpec], size: int) -> None:
        self.specs = specs
        self.size = size
        self.device = next(iter(specs.values())).device

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], shared: tuple[str, ...]) -> Members:
        """Read the layout off the initial parameters; the first that is not shared fixes the number of members."""
        if not isinstance(params, Mapping):
            raise TypeError(f"`params` must map names to tensors, got {type(params).__name__}.")
        for name in shared:
            if name not in params:
                raise ValueError(f"`shared_param_names` names {name!r}, which `params` does not hold.")
        for name, tensor in params.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"`params[{name!r}]` must be a tensor, got {type(tensor).__name__}.")
            if not tensor.is_floating_point():
                raise TypeError(
                    f"`params[{name!r}]` has dtype {tensor.dtype}; only real floating-point tensors can be optimized, "
                    "so leave buffers and counters out."
                )
        size = cls._count(params, shared)
        specs = {}
        for name, tensor in params.items():
            is_shared = name in shared
            row_shape = tuple(tensor.shape if is_shared else tensor.shape[1:])
            rows = 1 if is_shared else size
            specs[name] = TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.device, is_shared, rows, row_shape)
        return cls(specs, size)

    @staticmethod
    def _count(params: Mapping[str, Tensor], shared: tuple[str, ...]) -> int:
        """Return the number of members, on which all batched parameters must agree."""
        batched = {name: tensor for name, tensor in params.items() if name not in shared}
        if not batched:
            raise ValueError(
                "`params` holds no batched parameter; the first one that is not shared gives the member count. Where "
                "members share everything there is one model: step it by `torch.optim`."
            )
        first, leader = next(iter(batched.items()))
        for name, tensor in batched.items():
            if tensor.ndim == 0 or len(tensor) != len(leader if leader.ndim else tensor):
                expected = len(leader) if leader.ndim else "members"
                raise ValueError(
                    f"`params[{name!r}]` has shape {tuple(tensor.shape)}, expected ({expected}, ...): {first!r} has "
                    "the members on its leading dimension. If all members share it, name it in `shared_param_names`."
                )
        if len(leader) == 0:
            raise ValueError(f"`params[{first!r}]` has no members, got shape {tuple(leader.shape)}.")
        return len(leader)

    def resized(self, size: int) -> Members:
        """Return the same layout for another number of members."""
        specs = {}
        for name, spec in self.specs.items():
            shape = spec.shape if spec.shared else (size, *spec.row_shape)
            rows = 1 if spec.shared else size
            specs[name] = TensorSpec(shape, spec.dtype, spec.device, spec.shared, rows, spec.row_shape)
        return Members(specs, size)

    def check_step(self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], mask: Tensor | None) -> None:
        """Refuse arguments of a step that do not fit the layout."""
        self.check_params(params)
        self._check_names("grads", grads)
        for name, spec in self.specs.items():
            _check_tensor("grads", name, grads[name], (self.size, *spec.row_shape), spec)
        if mask is not None:
            self._check_mask(mask)

    def check_params(self, params: Mapping[str, Tensor]) -> None:
        """Refuse parameters that do not fit the layout."""
        self._check_names("params", params)
        for name, spec in self.specs.items():
            _check_tensor("params", name, params[name], spec.shape, spec)
            if params[name].dtype != spec.dtype:
                raise TypeError(
                    f"`params[{name!r}]` has dtype {params[name].dtype}, but the optimizer was made for {spec.dtype}; "
                    "cast it back or make a new optimizer."
                )

    def _check_names(self, argument: str, tensors: Mapping[str, Tensor]) -> None:
        for name in self.specs:
            if name not in tensors:
                raise KeyError(f"`{argument}` lacks {name!r}; it must hold every parameter the optimizer was made for.")
        if len(tensors) != len(self.specs):
            unknown = [name for name in tensors if name not in self.specs]
            raise KeyError(f"`{argument}` holds {unknown}, which the optimizer was not made for.")

    def _check_mask(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"`active_mask` must be a bool tensor, got {found}.")
        if mask.shape != (self.size,):
            raise ValueError(
                f"`active_mask` must have shape ({self.size},), one entry per member; got {tuple(mask.shape)}."
            )


def positions(members: Index, size: int, device: torch.device) -> Tensor:
    """Return the positions, among `size` members, that an int, slice, list, index tensor or mask selects."""
    everyone = torch.arange(size, device=device)
    if isinstance(members, int):
        members = [members]
    try:
        chosen = members if isinstance(members, slice) else torch.as_tensor(members, device=device)
        if isinstance(chosen, Tensor) and chosen.numel() == 0:
            chosen = chosen.long()
        return everyone[chosen].reshape(-1)
    except (IndexError, TypeError, ValueError) as error:
        raise IndexError(f"`members` must select among {size} members, got {members}.") from error


def _check_tensor(argument: str, name: str, tensor: Tensor, shape: tuple[int, ...], spec: TensorSpec) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"`{argument}[{name!r}]` must be a floating-point tensor, got {found}.")
    if tensor.shape != shape:
        remedy = ""
        if argument == "grads" and spec.shared:
            remedy = (
                "; the gradient of a shared parameter arrives stacked, one row per member, as `torch.func.vmap` "
                "gives it: stack the members' gradients"
            )
        raise ValueError(f"`{argument}[{name!r}]` must have shape {shape}, got {tuple(tensor.shape)}{remedy}.")
    if tensor.device != spec.device:
        raise ValueError(f"`{argument}[{name!r}]` is on {tensor.device}, but the optimizer was made on {spec.device}.")


def per_member(value: object) -> TypeGuard[Tensor]:
    """Tell a tensor with one entry per member from a number."""
    return isinstance(value, Tensor) and value.ndim > 0


def take(value: Any, rows: slice | None) -> Any:  # Any: a tensor or a number
    """Return some rows of a tensor that has rows, and anything else as it is."""
    return value if rows is None or not per_member(value) else value[rows]


def owned(value: Any) -> Any:  # Any: a setting of any type
    """Return a value that later changes of the original do not reach."""
    if isinstance(value, tuple):
        return tuple(owned(part) for part in value)
    return value.clone() if isinstance(value, Tensor) else value
