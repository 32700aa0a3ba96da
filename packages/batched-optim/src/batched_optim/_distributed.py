"""Members divided over the ranks of `torch.distributed`.

Batched parameters never leave their rank. For each shared parameter and step, the ranks exchange one message: the sum
of their active members' gradients, how many these are, and the sums of their rates. All compute the same from the
answer, bit for bit, whatever their masks and however uneven their parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ._shards import Shard, commit_shards, divide, publish_shard, remove_leftovers, write_shard


def members_of_rank(members: int, group: ProcessGroup | None = None) -> slice:
    """Return which members belong to this rank; parts are consecutive and differ by one member at most.

    Parameters
    ----------
    members : int
        The number of all members.
    group : ProcessGroup or None
        The ranks; None for the default group.

    Returns
    -------
    slice
        Their positions, to be given to `select`, to `load` or to a tensor.

    Raises
    ------
    ValueError
        If there are fewer members than ranks.
    """
    world, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    if members < world:
        raise ValueError(f"{members} members cannot be divided over {world} ranks; each needs at least one.")
    return slice(*divide(members, world)[rank])


def write_shards_of_ranks(
    path: Path,
    members: int,
    tensors: dict[str, Tensor],
    document: dict[str, Any],  # Any: JSON
    version: int,
    group: ProcessGroup,
) -> None:
    """Write one shard per rank and make them, together, the valid checkpoint."""
    rank, world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    counts: list[Any] = [None] * world  # Any: objects of other ranks
    torch.distributed.all_gather_object(counts, members, group=group)
    start = sum(counts[:rank])
    own = write_shard(path, rank, world, (start, start + members), tensors, document)
    shards: list[Any] = [None] * world
    torch.distributed.all_gather_object(shards, own, group=group)
    if rank == 0:
        commit_shards(path, [Shard(*shard) for shard in shards], version)
    torch.distributed.barrier(group=group)
    publish_shard(path, own)
    torch.distributed.barrier(group=group)
    if rank == 0:
        remove_leftovers(path, [Shard(*shard) for shard in shards])
    torch.distributed.barrier(group=group)
