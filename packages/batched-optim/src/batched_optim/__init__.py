"""Optimizers that step a whole ensemble of PyTorch models at once."""

from ._adam import BatchedAdam
from ._base import BaseOptimizer
from ._checkpoint import load_into, save
from ._errors import CheckpointError
from ._lbfgs import BatchedLBFGS
from ._sgd import BatchedSGD
from ._version import __version__

__all__ = [
    "BaseOptimizer",
    "BatchedAdam",
    "BatchedLBFGS",
    "BatchedSGD",
    "CheckpointError",
    "__version__",
    "load_into",
    "save",
]
