"""A checkpoint in several files, replaced as one.

Every shard is first written under a draft's name; then the index, which holds the shards' digests, is replaced: from
that moment the new checkpoint is the valid one. Only then do the drafts take the shards' names. A reader accepts a
shard, under either name, by its digest, so that a process killed anywhere leaves the old checkpoint or the new one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ._errors import CheckpointError
from ._file import file_digest, replace_file, write_file


class Shard(NamedTuple):
    """One file of a checkpoint, and the range of members in it."""

    file: str
    digest: str
    start: int
    stop: int


def divide(members: int, parts: int) -> list[tuple[int, int]]:
    """Return the ranges of members of `parts` parts, whose sizes differ by one at most."""
    bounds = [members * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(bounds))


def index_path(path: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return path.with_name(f"{path.name}.index.json")


def write_shard(
    path: Path, number: int, count: int, members: tuple[int, int], tensors: dict[str, Tensor], document: dict[str, Any]
) -> Shard:  # Any: JSON
    """Write one shard under its draft's name."""
    name = f"{path.stem}-{number + 1:05d}-of-{count:05d}{path.suffix}"
    return Shard(name, write_file(_draft(path, name), tensors, document), *members)


def commit_shards(path: Path, shards: list[Shard], version: int) -> None:
    """Make the shards written the valid ones."""
    content = {"format_version": version, "shards": [shard._asdict() for shard in shards]}
    text = json.dumps({"digest": _digest(content), **content}, indent=1)
    replace_file(index_path(path), [text.encode()])


def publish_shard(path: Path, shard: Shard) -> None:
    """Give a shard's draft the shard's name."""
    os.replace(_draft(path, shard.file), path.with_name(shard.file))


def remove_leftovers(path: Path, shards: Iterable[Shard]) -> None:
    """Remove what an earlier checkpoint of the same name left: one file, or other shards."""
    path.unlink(missing_ok=True)
    _remove_files(path, keep={shard.file for shard in shards})


def remove_shards(path: Path) -> None:
    """Remove the index and the shards of an earlier checkpoint of the same name."""
    index_path(path).unlink(missing_ok=True)
    _remove_files(path, keep=set())


def read_index(path: Path, version: int) -> list[Shard]:
    """Return the shards of a checkpoint."""
    index = index_path(path)
    try:
        content = json.loads(index.read_bytes())
        digest = content.pop("digest")
        found = content.get("format_version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(index, "it is damaged or no index of a checkpoint") from error
    if isinstance(found, int) and found > version:
        raise CheckpointError(
            index, f"its format version is {found}, this release reads up to {version}; upgrade batched-optim"
        )
    if _digest(content) != digest:
        raise CheckpointError(index, "its digest does not fit its content")
    return [Shard(**entry) for entry in content["shards"]]


def shard_file(path: Path, shard: Shard) -> Path:
    """Return the file that holds a shard: that of its name, or the draft that its killed writer did not rename."""
    candidates = [path.with_name(shard.file), _draft(path, shard.file)]
    for candidate in candidates:
        if candidate.exists() and file_digest(candidate) == shard.digest:
            return candidate
    raise CheckpointError(candidates[0], "it is missing or is not the file that the index speaks of")


def _draft(path: Path, name: str) -> Path:
    return path.with_name(f".{name}.next")


def _digest(content: dict[str, Any]) -> str:  # Any: JSON
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _remove_files(path: Path, keep: set[str]) -> None:
    stem, suffix = re.escape(path.stem), re.escape(path.suffix)
    pattern = re.compile(rf"\.?({stem}-\d{{5}}-of-\d{{5}}{suffix})(\.next)?")
    for file in path.parent.iterdir():
        match = pattern.fullmatch(file.name)
        if match and (file.name.endswith(".next") or match[1] not in keep):
            file.unlink(missing_ok=True)
