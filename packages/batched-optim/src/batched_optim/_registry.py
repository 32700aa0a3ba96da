"""The optimizers by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ._adam import BatchedAdam
from ._base import BaseOptimizer
from ._ensemble import EnsembleOptimizer
from ._lbfgs import BatchedLBFGS
from ._sgd import BatchedSGD

optimizers: Mapping[str, type[EnsembleOptimizer]] = MappingProxyType(
    {"sgd": BatchedSGD, "adam": BatchedAdam, "lbfgs": BatchedLBFGS}
)


def make_optimizer(
    name: str,
    params: dict[str, Tensor],
    shared_param_names: Iterable[str],
    **optimizer_params: Any,  # Any: what the chosen class takes
) -> EnsembleOptimizer:
    """Make an optimizer by its name, as a configuration file gives it.

    Parameters
    ----------
    name : {'sgd', 'adam', 'lbfgs'}
        A key of `optimizers`.
    params : dict of str -> Tensor, shape (members, ...)
        Initial parameters.
    shared_param_names : iterable of str
        Names of the parameters shared by every member.
    **optimizer_params
        Arguments of the class, `lr` among them.

    Returns
    -------
    BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer.

    Raises
    ------
    ValueError, TypeError
        If the name or an argument is unknown; the message proposes the nearest known one.

    Examples
    --------
    >>> import torch
    >>> from batched_optim import make_optimizer
    >>> type(make_optimizer("adam", {"w": torch.zeros(3, 2)}, [], lr=1e-3, eps=1e-6)).__name__
    'BatchedAdam'
    """
    if name not in optimizers:
        known = ", ".join(map(repr, optimizers))
        raise ValueError(f"`name` must be one of {known}, got {name!r}{_nearest(str(name).lower(), optimizers)}.")
    kind = optimizers[name]
    accepted = arguments(kind)
    for key in optimizer_params:
        if key not in accepted:
            raise TypeError(f"The optimizer {name!r} takes no {key!r}{_nearest(key, accepted)}.")
    return kind(params, shared_param_names, **optimizer_params)


def arguments(kind: type[EnsembleOptimizer]) -> list[str]:
    """Return the names of the arguments that a class takes beside the parameters and the shared ones' names."""
    names = dict.fromkeys([*inspect.signature(kind).parameters, *inspect.signature(BaseOptimizer).parameters])
    return [name for name in names if name not in {"params", "shared_param_names", "options"}]


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return a proposal to append to an error, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
