"""Placeholder until the first module lands."""

from ._version import __version__

__all__ = ["__version__"]
