"""What the engines know about parameter operations: one file per kind, and the table that finds them."""

from ._operation import ParameterOperation
from .elementwise import is_elementwise
from .registry import operation_of, register_rule

__all__ = ["ParameterOperation", "is_elementwise", "operation_of", "register_rule"]
