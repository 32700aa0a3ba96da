"""What the engines know about parameter operations: one file per kind, and the table that finds them."""

from ._operation import ParameterOperation
from .elementwise import is_elementwise
from .registry import operation_of, register_rule
from .sparse import WRITTEN_OUT, write_out

__all__ = ["WRITTEN_OUT", "ParameterOperation", "is_elementwise", "operation_of", "register_rule", "write_out"]
