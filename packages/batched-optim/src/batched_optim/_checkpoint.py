"""Saving an optimizer, with its parameters, to a safetensors file, and getting it back bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ._concatenate import concatenate
from ._distributed import write_shards_of_ranks
from ._ensemble import EnsembleOptimizer
from ._errors import CheckpointError
from ._file import read_file, write_file
from ._members import Index, Members, positions
from ._registry import optimizers
from ._shards import (
    commit_shards,
    divide,
    index_path,
    publish_shard,
    read_index,
    remove_leftovers,
    remove_shards,
    shard_file,
    write_shard,
)
from ._version import __version__

FORMAT_VERSION = 1
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Parameters
    ----------
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer, with its state, settings and rates.
    params : dict of str -> Tensor
        The parameters; empty if none were saved.
    metadata : dict
        What was given to `save`.
    """

    optimizer: EnsembleOptimizer
    params: dict[str, Tensor]
    metadata: dict[str, Any]  # Any: JSON


def save(
    path: PathLike,
    optimizer: EnsembleOptimizer,
    params: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, Any] | None = None,  # Any: JSON
    *,
    shards: int | None = None,
) -> None:
    """Write an optimizer, and its parameters if given, to a safetensors file.

    The file is replaced at once: whatever happens meanwhile, what `load` finds is the old state or the new one.

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
    shards : int or None
        Divide the members among so many files `name-00001-of-0000n.safetensors`, each a checkpoint by itself, beside
        an index `name.safetensors.index.json`; None writes one file. Replaces one kind by the other. Where members are
        divided over ranks, all ranks call `save` together and each writes its shard.

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
    path = Path(path)
    _name(optimizer)
    if optimizer.process_group is not None:
        if shards is not None:
            raise ValueError("`shards` cannot be chosen where members are divided over ranks; each rank writes one.")
        tensors, document = _packed(optimizer, params, metadata)
        write_shards_of_ranks(path, optimizer.num_members, tensors, document, FORMAT_VERSION, optimizer.process_group)
        return
    if shards is None:
        write_file(path, *_packed(optimizer, params, metadata))
        remove_shards(path)
        return
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= optimizer.num_members:
        raise ValueError(f"`shards` must be an int from 1 to the {optimizer.num_members} members, got {shards!r}.")
    _packed(optimizer.select(0), None, metadata)  # refuse what does not fit before anything is written
    if params is not None:
        optimizer._layout.check_params(params)
    written = []
    for number, (start, stop) in enumerate(divide(optimizer.num_members, shards)):
        rows = slice(start, stop)
        specs = optimizer._layout.specs
        part = None if params is None else {k: v if specs[k].shared else v[rows] for k, v in params.items()}
        packed = _packed(optimizer.select(rows), part, metadata)
        written.append(write_shard(path, number, shards, (start, stop), *packed))
    commit_shards(path, written, FORMAT_VERSION)
    for shard in written:
        publish_shard(path, shard)
    remove_leftovers(path, written)


def load(
    path: PathLike,
    map_location: torch.device | str | None = None,
    *,
    members: Index | None = None,
    reset: bool | Index = False,
    process_group: ProcessGroup | None = None,
) -> Checkpoint:
    """Read an optimizer, and its parameters if saved, from a file.

    Parameters
    ----------
    path : path-like
        What was given to `save`, whether it wrote one file or shards.
    map_location : torch.device or str or None
        Where the tensors go; None for the CPU.
    members : int, slice, list of int, Tensor, or None
        The members to load, as for `select`; of shards, only those that hold them are read. None loads all.
    reset : bool, or int, slice, list of int, Tensor
        True keeps parameters, rates and settings and drops all state; positions, counted among the loaded members,
        drop the state of those. Default False.
    process_group : torch.distributed.ProcessGroup or None
        The ranks over which the members are divided from now on, however many wrote the checkpoint; each loads its
        own, `members=members_of_rank(n)`. None, the default, means that all are here.

    Returns
    -------
    Checkpoint
        The optimizer, the parameters and the metadata.

    Raises
    ------
    FileNotFoundError
        If there is no such checkpoint.
    CheckpointError
        If a file is truncated, changed, foreign, or from a newer format.

    Examples
    --------
    >>> import tempfile, torch
    >>> from batched_optim import BatchedAdam, load, save
    >>> params = {"w": torch.zeros(3, 2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.safetensors", BatchedAdam(params, [], lr=0.5), params, metadata={"epoch": 7})
    ...     found = load(f"{folder}/run.safetensors", members=[0, 2])
    >>> found.optimizer.lr.item(), found.params["w"].shape[0], found.metadata
    (0.5, 2, {'epoch': 7})
    """
    path = Path(path)
    device = torch.device(map_location if map_location is not None else "cpu")
    in_shards = not path.exists() and index_path(path).exists()
    found = _load_shards(path, device, members) if in_shards else _load_file(path, device, members)
    if reset is not False:
        found.optimizer.reset(None if reset is True else reset)
    if process_group is None:
        return found
    found.optimizer.process_group = process_group
    return replace(found, optimizer=found.optimizer.select(slice(None)))  # ranks go through shared parameters alike


def load_into(path: PathLike, optimizer: EnsembleOptimizer) -> dict[str, Tensor]:
    """Give an optimizer the state saved in one file.

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
    state = _state(tensors, document)
    misfits = _compare_layouts(_describe(optimizer._layout), document)
    if document["optimizer"] != name:
        misfits.append(f"it holds the optimizer {document['optimizer']!r}, expected {name!r}")
    else:
        settings = [(key, getattr(optimizer, key), state.get(key)) for key in optimizer._fixed_settings]
        misfits += [f"{key!r} is {theirs!r}, expected {ours!r}" for key, ours, theirs in settings if ours != theirs]
    if misfits:
        raise CheckpointError(path, "; ".join(misfits))
    try:
        optimizer.load_state_dict(state)
    except (KeyError, ValueError) as error:
        raise CheckpointError(path, str(error.args[0]).rstrip(".")) from error
    return _params(tensors, document, optimizer._layout.device)


def _load_file(path: Path, device: torch.device, members: Index | None) -> Checkpoint:
    """Read one file, and select members."""
    found = _restore(*read_file(path, FORMAT_VERSION), device)
    return found if members is None else _select(found, found.optimizer._positions(members))


def _load_shards(path: Path, device: torch.device, members: Index | None) -> Checkpoint:
    """Read the shards that hold the members, join them, and select."""
    shards = read_index(path, FORMAT_VERSION)
    wanted = None if members is None else positions(members, shards[-1].stop, device)
    parts, held = [], []
    for shard in shards:
        here = torch.arange(shard.start, shard.stop, device=device)
        if wanted is None or bool(torch.isin(wanted, here).any()):
            parts.append(_restore(*read_file(shard_file(path, shard), FORMAT_VERSION), device))
            held.append(here)
    if not parts:
        raise ValueError("`members` selects none; at least one is needed.")
    joined = _join(parts)
    if wanted is None:
        return joined
    return _select(joined, torch.searchsorted(torch.cat(held), wanted))


def _restore(tensors: dict[str, Tensor], document: dict[str, Any], device: torch.device) -> Checkpoint:
    """Build the optimizer that a file describes."""
    shared = [name for name, spec in document["params"].items() if spec["shared"]]
    templates = {}
    for name, spec in document["params"].items():
        rows = [] if spec["shared"] else [document["members"]]
        templates[name] = torch.empty((*rows, *spec["row_shape"]), dtype=getattr(torch, spec["dtype"]), device=device)
    state = _state(tensors, document)
    kind = optimizers[document["optimizer"]]
    arguments = {name: state[name] for name in ("lr", *kind._settings) if name != "shared_param_names"}
    optimizer = kind(templates, shared, **arguments)
    optimizer.load_state_dict(state)
    return Checkpoint(optimizer, _params(tensors, document, device), document["metadata"])


def _select(found: Checkpoint, rows: Tensor) -> Checkpoint:
    """Return what a checkpoint holds of some members."""
    specs = found.optimizer._layout.specs
    params = {
        name: tensor if specs[name].shared else tensor.index_select(0, rows) for name, tensor in found.params.items()
    }
    return Checkpoint(found.optimizer.select(rows), params, found.metadata)


def _join(parts: list[Checkpoint]) -> Checkpoint:
    """Return the members of several checkpoints in one."""
    first = parts[0]
    specs = first.optimizer._layout.specs
    params = {
        name: tensor if specs[name].shared else torch.cat([part.params[name] for part in parts])
        for name, tensor in first.params.items()
    }
    return Checkpoint(concatenate([part.optimizer for part in parts]), params, first.metadata)


def _describe(layout: Members) -> dict[str, Any]:
    """Return a layout as JSON."""
    params = {
        key: {"row_shape": list(spec.row_shape), "dtype": str(spec.dtype).removeprefix("torch."), "shared": spec.shared}
        for key, spec in layout.specs.items()
    }
    return {"members": layout.size, "params": params}


def _compare_layouts(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return how a file's parameters differ from those expected."""
    misfits = []
    if ours["members"] != theirs["members"]:
        misfits.append(f"it holds {theirs['members']} members, expected {ours['members']}")
    misfits += [f"parameter {name!r} is missing" for name in ours["params"] if name not in theirs["params"]]
    misfits += [f"parameter {name!r} is unexpected" for name in theirs["params"] if name not in ours["params"]]
    for name, spec in ours["params"].items():
        for key, value in theirs["params"].get(name, {}).items():
            if value != spec[key]:
                misfits.append(f"parameter {name!r} has {key} {value}, expected {spec[key]}")
    return misfits


def _params(tensors: Mapping[str, Tensor], document: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Return the parameters that a file holds, in the order in which they were saved."""
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
        **_describe(layout),
        "saved_params": list(params or {}),
        "state": fields,
        "metadata": dict(metadata or {}),
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
