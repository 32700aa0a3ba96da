"""A learning rule for recurrent networks as a validated point in a space of axes."""

from ._axes import AXES, COEFFICIENTS, Coefficient
from ._codec import from_dict, from_json, from_toml, to_dict, to_json
from ._config import ETraceConfig
from ._coordinates import legal_coordinates
from ._cost import cost
from ._explain import explain
from ._presets import (
    PRESETS,
    d_rtrl,
    dni,
    eprop,
    es_d_rtrl,
    name_of,
    ostl_feedforward,
    ostl_recurrent,
    pp_prop,
    snap,
    three_factor,
    uoro,
)
from ._rules import RULES, Rule, Violation
from ._version import __version__

__all__ = [
    "AXES",
    "COEFFICIENTS",
    "PRESETS",
    "RULES",
    "Coefficient",
    "ETraceConfig",
    "Rule",
    "Violation",
    "__version__",
    "cost",
    "d_rtrl",
    "dni",
    "eprop",
    "es_d_rtrl",
    "explain",
    "from_dict",
    "from_json",
    "from_toml",
    "legal_coordinates",
    "name_of",
    "ostl_feedforward",
    "ostl_recurrent",
    "pp_prop",
    "snap",
    "three_factor",
    "to_dict",
    "to_json",
    "uoro",
]
