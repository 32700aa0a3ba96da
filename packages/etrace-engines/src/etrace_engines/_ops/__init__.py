"""What the engines know about parameter operations: one file per kind, and the table that finds them."""

from .elementwise import is_elementwise
from .registry import ParameterOperation, operation_of, register_rule

__all__ = ["ParameterOperation", "is_elementwise", "operation_of", "register_rule"]
