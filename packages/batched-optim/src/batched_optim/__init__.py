"""Optimizers that step a whole ensemble of PyTorch models at once."""

from ._adam import BatchedAdam
from ._base import BaseOptimizer
from ._checkpoint import Checkpoint, load, load_into, save
from ._concatenate import concatenate
from ._distributed import members_of_rank
from ._errors import CheckpointError
from ._fit import FitResult, fit_ensemble
from ._lbfgs import BatchedLBFGS
from ._registry import make_optimizer, optimizers
from ._schedule import ReduceOnPlateau, TorchSchedule
from ._sgd import BatchedSGD
from ._version import __version__

__all__ = [
    "BaseOptimizer",
    "BatchedAdam",
    "BatchedLBFGS",
    "BatchedSGD",
    "Checkpoint",
    "CheckpointError",
    "FitResult",
    "ReduceOnPlateau",
    "TorchSchedule",
    "__version__",
    "concatenate",
    "fit_ensemble",
    "load",
    "load_into",
    "make_optimizer",
    "members_of_rank",
    "optimizers",
    "save",
]
