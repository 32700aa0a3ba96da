"""Errors that a caller may want to catch."""

from __future__ import annotations

import os


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, foreign, from a newer format, or for another ensemble.

    Parameters
    ----------
    path : path-like
        The file.
    found : str
        What is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], found: str) -> None:
        super().__init__(f"Checkpoint {os.fspath(path)!r} cannot be used: {found}.")
