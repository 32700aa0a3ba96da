"""Synthetic gradients across window boundaries for online learning of recurrent networks."""

from ._attach import attach
from ._checkpoint import load_synthesizer, save_synthesizer
from ._fit.normal_equations import RecursiveLeastSquares, fit_ridge
from ._fit.separate import train_synthetic_gradient
from ._learner import DNI
from ._protocol import AbstractSynthesizer, GroupShape, Synthesizer
from ._quality import BoundaryQuality, DNIReport, dni_report
from ._signature import Signature
from ._synthesisers.affine import Affine
from ._synthesisers.conv import Conv
from ._synthesisers.critic import Critic
from ._synthesisers.low_rank import LowRank
from ._synthesisers.mlp import MLP
from ._synthesisers.normalized import Normalized
from ._synthesisers.zero import Zero
from ._version import __version__
from ._window import Schedule

__all__ = [
    "DNI",
    "MLP",
    "AbstractSynthesizer",
    "Affine",
    "BoundaryQuality",
    "Conv",
    "Critic",
    "DNIReport",
    "GroupShape",
    "LowRank",
    "Normalized",
    "RecursiveLeastSquares",
    "Schedule",
    "Signature",
    "Synthesizer",
    "Zero",
    "__version__",
    "attach",
    "dni_report",
    "fit_ridge",
    "load_synthesizer",
    "save_synthesizer",
    "train_synthetic_gradient",
]
