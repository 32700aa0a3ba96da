"""Online learning of unmodified recurrent and spiking JAX models by eligibility traces."""

from ._data import MultiStepData
from ._graph.groups import HiddenGroup
from ._graph.report import Report, ReportRow
from ._ops import ParameterOperation, register_rule
from ._rules.compile import compile
from ._rules.presets import (
    D_RTRL,
    ES_D_RTRL,
    UORO,
    EProp,
    IODimVjpAlgorithm,
    OSTLFeedforward,
    OSTLRecurrent,
    ParamDimVjpAlgorithm,
    RandomProjectionVjpAlgorithm,
    SnAp,
    ThreeFactor,
    pp_prop,
)
from ._sequence.learner import ETraceLearner
from ._version import __version__

__all__ = [
    "D_RTRL",
    "ES_D_RTRL",
    "UORO",
    "EProp",
    "ETraceLearner",
    "HiddenGroup",
    "IODimVjpAlgorithm",
    "MultiStepData",
    "OSTLFeedforward",
    "OSTLRecurrent",
    "ParamDimVjpAlgorithm",
    "ParameterOperation",
    "RandomProjectionVjpAlgorithm",
    "Report",
    "ReportRow",
    "SnAp",
    "ThreeFactor",
    "__version__",
    "compile",
    "pp_prop",
    "register_rule",
]
