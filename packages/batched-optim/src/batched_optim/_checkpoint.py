"""Saving an optimizer, with its parameters, to a safetensors file, and getting it back bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._ensemble import EnsembleOptimizer
from ._errors import CheckpointError
from ._file import read_file, write_file
from ._registry import optimizers
from ._version import __version__

FORMAT_VERSION = 1
PathLike = str | os.PathLike[str]


def save(
    path: PathLike,
    optimizer: EnsembleOptimizer,
    params: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, Any] | None = None,  # Any: JSON
) -> None:
    """Write an optimizer, and its parameters if given, to one safetensors file.

    The file is replaced at once: whatever happens meanwhile, it holds the old state or the new one.

    Parameters
    ----------
    path : path-like
        The file.
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        What to save: all its state, its settings and its learning rate.
    params : dict of str -> Tensor or None
        The current parameters, to be saved beside the state.
    metadata : dict or None
        Anything of yours that JSON can hold.

    Raises
    ------
    TypeError, ValueError, KeyError
        If an argument does not fit; nothing has been written then.

    Examples
    --------
    >>> import tempfile, torch
    >>> from batched_optim import BatchedAdam, load_into, save
    >>> params = {"w": torch.zeros(3, 2)}
    >>> optimizer, other = BatchedAdam(params, [], lr=0.1), BatchedAdam(params, [], lr=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.safetensors", optimizer, params)
    ...     params = load_into(f"{folder}/run.safetensors", other)
    >>> other.lr.item()
    0.1
    """
    tensors, document = _packed(optimizer, params, metadata)
    write_file(Path(path), tensors, document)


def load_into(path: PathLike, optimizer: EnsembleOptimizer) -> dict[str, Tensor]:
    """Give an optimizer the state saved in a file.

    Parameters
    ----------
    path : path-like
        The file.
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        An optimizer of the same class for the same parameters.

    Returns
    -------
    dict of str -> Tensor
        The saved parameters, on the optimizer's device; empty if none were saved.

    Raises
    ------
    CheckpointError
        If the file is damaged, foreign, or does not fit; every misfit is listed, and nothing has changed.
    """
    path = Path(path)
    tensors, document = read_file(path, FORMAT_VERSION)
    name = _name(optimizer)
    if document["optimizer"] != name:
        raise CheckpointError(path, f"it holds the optimizer {document['optimizer']!r}, expected {name!r}")
    try:
        optimizer.load_state_dict(_state(tensors, document))
    except (KeyError, ValueError) as error:
        raise CheckpointError(path, str(error.args[0]).rstrip(".")) from error
    device = optimizer._layout.device
    return {name: tensors[f"params/{name}"].to(device) for name in document["saved_params"]}


def _name(optimizer: EnsembleOptimizer) -> str:
    """Return the registered name of an optimizer's class."""
    for name, kind in optimizers.items():
        if type(optimizer) is kind:
            return name
    known = ", ".join(kind.__name__ for kind in optimizers.values())
    raise TypeError(f"`optimizer` must be one of {known}, got {type(optimizer).__name__}.")


def _packed(
    optimizer: EnsembleOptimizer, params: Mapping[str, Tensor] | None, metadata: Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all tensors by flat name, and the JSON document of the rest."""
    name = _name(optimizer)
    layout = optimizer._layout
    if "__metadata__" in layout.specs:
        raise ValueError("The parameter name '__metadata__' is reserved by the file format; rename it.")
    if params is not None:
        layout.check_params(params)
    tensors: dict[str, Tensor] = {}
    fields = {key: _encode(f"state/{key}", value, tensors) for key, value in optimizer.state_dict().items()}
    for key, value in (params or {}).items():
        _encode(f"params/{key}", value, tensors)
    document = {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "optimizer": name,
        "members": layout.size,
        "params": {
            key: {"row_shape": spec.row_shape, "dtype": str(spec.dtype).removeprefix("torch."), "shared": spec.shared}
            for key, spec in layout.specs.items()
        },
        "saved_params": list(params or {}),
        "state": fields,
        "metadata": metadata or {},
    }
    try:
        json.dumps(document)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`metadata` must hold only what JSON can: {error}.") from error
    return tensors, document


def _encode(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:  # Any: a field of a state, as JSON
    """Return a field as JSON; tensors go to `tensors`, and their names stand for them."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"fields": {name: _encode(f"{key}/{name}", part, tensors) for name, part in value.items()}}
    if isinstance(value, tuple | list):
        return [_encode(f"{key}/{i}", part, tensors) for i, part in enumerate(value)]
    return value


def _decode(field: Any, tensors: Mapping[str, Tensor]) -> Any:  # Any: as above
    """Return what `_encode` was given; sequences come back as tuples."""
    if isinstance(field, dict):
        if "tensor" in field:
            return tensors[field["tensor"]]
        return {name: _decode(part, tensors) for name, part in field["fields"].items()}
    return tuple(_decode(part, tensors) for part in field) if isinstance(field, list) else field


def _state(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that a file holds."""
    return {key: _decode(field, tensors) for key, field in document["state"].items()}
