"""One safetensors file: replaced atomically, and any changed bit is noticed.

All that is not a tensor is one JSON document in the file's metadata. It begins with a SHA-256 digest of the whole file,
taken with zeros in the digest's place, which is the same in every file::

    8 bytes, length of the header | {"__metadata__":{"batched_optim":"{\\"digest\\":\\"<64 hex digits>\\", ...
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ._errors import CheckpointError

KEY = "batched_optim"
PREFIX = b'{"__metadata__":{"batched_optim":"{\\"digest\\":\\"'
DIGEST = slice(8 + len(PREFIX), 8 + len(PREFIX) + 64)
NO_DIGEST = "0" * 64


def write_file(path: Path, tensors: dict[str, Tensor], document: dict[str, Any]) -> str:  # Any: JSON
    """Write tensors and a JSON document, replacing the file at once; return the digest."""
    text = json.dumps({"digest": NO_DIGEST, **document}, separators=(",", ":"))
    raw = safetensors.torch.save(tensors, {KEY: text})
    if raw[8 : DIGEST.start] != PREFIX:
        raise RuntimeError(
            "The installed safetensors lays out its header in an unknown way; another version is needed."
        )
    digest = hashlib.sha256(raw).hexdigest()
    view = memoryview(raw)
    replace_file(path, [view[: DIGEST.start], digest.encode(), view[DIGEST.stop :]])
    return digest


def read_file(path: Path, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:  # Any: JSON
    """Return the tensors and the document of a file that `write_file` wrote, of the format `version` or older."""
    raw = path.read_bytes()
    document = _document(path, raw)
    found = document.get("format_version")
    if isinstance(found, int) and found > version:
        raise CheckpointError(
            path, f"its format version is {found}, this release reads up to {version}; upgrade batched-optim"
        )
    digest = document.get("digest")
    check = hashlib.sha256(raw[: DIGEST.start])
    check.update(NO_DIGEST.encode())
    check.update(memoryview(raw)[DIGEST.stop :])
    if check.hexdigest() != digest or raw[DIGEST] != str(digest).encode():
        raise CheckpointError(path, f"its digest is {check.hexdigest()[:16]}..., recorded was {str(digest)[:16]}...")
    return safetensors.torch.load(raw), document


def file_digest(path: Path) -> str:
    """Return the digest that a file claims to have."""
    with path.open("rb") as file:
        return file.read(DIGEST.stop)[DIGEST].decode(errors="replace")


def _document(path: Path, raw: bytes) -> dict[str, Any]:  # Any: JSON
    """Return the JSON document in the header."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise CheckpointError(path, f"it is truncated or no safetensors file ({len(raw)} bytes)")
    try:
        header = json.loads(raw[8 : 8 + length])
        text = header.get("__metadata__", {}).get(KEY)
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(path, "its header is damaged or it is no safetensors file") from error
    if text is None:
        raise CheckpointError(path, "it is a safetensors file that batched-optim did not write")
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(path, "its metadata is damaged") from error
    if not isinstance(document, dict):
        raise CheckpointError(path, "its metadata is damaged")
    return document


def replace_file(path: Path, chunks: list[memoryview | bytes]) -> None:
    """Write a file so that whoever looks, at any moment, finds the old content or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    with _unnamed_file(path, draft) as (descriptor, publish):
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        publish()
    os.replace(draft, path)
    _sync_directory(path.parent)


@contextlib.contextmanager
def _unnamed_file(path: Path, draft: Path) -> Iterator[tuple[int, Any]]:  # Any: a function without arguments
    """Open a file for writing that gets the name `draft` when published.

    Where the system can, the file has no name until it is complete, so that a killed process leaves nothing behind.
    """
    draft.unlink(missing_ok=True)
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        publish = lambda: None
    else:
        # Python follows the link in /proc only when a directory is named, though an absolute path ignores it.
        publish = lambda: os.link(f"/proc/self/fd/{descriptor}", draft, src_dir_fd=descriptor, follow_symlinks=True)
    try:
        yield descriptor, publish
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _sync_directory(folder: Path) -> None:
    """Make a rename survive a loss of power, where the system lets a directory be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
