"""The optimizers by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ._adam import BatchedAdam
from ._ensemble import EnsembleOptimizer
from ._lbfgs import BatchedLBFGS
from ._sgd import BatchedSGD

optimizers: Mapping[str, type[EnsembleOptimizer]] = MappingProxyType(
    {"sgd": BatchedSGD, "adam": BatchedAdam, "lbfgs": BatchedLBFGS}
)
