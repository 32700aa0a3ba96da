"""Checks of constructor arguments, each naming the argument, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

LRLike = float | Tensor


def check_range(
    name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Refuse a number, or any element of a tensor, outside the interval from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"`{name}` must be a number or a tensor, got {type(value).__name__}.")
    if isinstance(value, Tensor) and (value.is_complex() or value.dtype == torch.bool):
        raise TypeError(f"`{name}` must be real, got {value.dtype}.")
    values = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    inside = ((values > low) if open_low else (values >= low)) & ((values < high) if open_high else (values <= high))
    if not bool(inside.all()):
        interval = f"{'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}"
        raise ValueError(f"`{name}` must lie in {interval}, got {value}.")


def check_optional(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse anything but None and a positive number (or zero, where `zero`)."""
    if value is not None:
        if isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a number or None, got a tensor.")
        check_range(name, value, 0.0, open_low=not zero)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is none of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r}.")


def shared_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the shared parameters, refusing a bare string, whose letters would be taken for names."""
    if isinstance(names, str):
        raise TypeError(
            f"`shared_param_names` must be an iterable of names, got the string {names!r}; write [{names!r}]."
        )
    found = tuple(dict.fromkeys(names))
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"`shared_param_names` must hold strings, got {name!r}.")
    return found


def member_value(name: str, value: LRLike, size: int, device: torch.device) -> Tensor:
    """Return an owned copy of a value per member; a number becomes a float64 tensor of rank 0."""
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float64, device=device)
    if value.shape not in {(), (1,), (size,), (size, 1)}:
        raise ValueError(
            f"`{name}` must be a number or a tensor of shape (), (1,), ({size},) or ({size}, 1), one entry per member; "
            f"got shape {tuple(value.shape)}."
        )
    value = value.detach().to(device, copy=True)
    return value if value.is_floating_point() else value.to(torch.float64)


def per_member(name: str, value: LRLike, size: int, device: torch.device) -> LRLike:
    """Return a hyper-parameter as a float, or as an owned (members,) tensor where it differs between members."""
    if not isinstance(value, Tensor):
        return float(value)
    owned = member_value(name, value, size, device).reshape(-1)
    return owned.expand(size).clone() if len(owned) == 1 else owned
