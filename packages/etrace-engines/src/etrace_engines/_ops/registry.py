"""The table from primitive names to parameter operations."""

from __future__ import annotations

from collections.abc import Callable

from .._compat import JaxprEqn
from ._operation import ParameterOperation
from .convolution import convolution
from .dense import dense
from .elementwise import elementwise, is_elementwise
from .lookup import lookup
from .sparse import (
    COMPRESSED_ROWS,
    EVENT_PRODUCTS,
    FIXED_NUMBER,
    compressed_rows,
    event_product,
    fixed_number,
)

Rule = Callable[[JaxprEqn, int], ParameterOperation | None]

_RULES: dict[str, Rule] = {
    "dot_general": dense,
    "conv_general_dilated": convolution,
    "gather": lookup,
    **dict.fromkeys(COMPRESSED_ROWS, compressed_rows),
    **dict.fromkeys(FIXED_NUMBER, fixed_number),
    **dict.fromkeys(EVENT_PRODUCTS, event_product),
}


def register_rule(primitive: str, rule: Rule) -> None:
    """Teach the engines a parameter operation.

    Parameters
    ----------
    primitive : str
        Name of the JAX primitive, as it is printed in a jaxpr.
    rule : callable
        ``rule(eqn, operand)`` views the equation, whose operand number `operand` is the weight, as a
        `ParameterOperation`, or returns None where it cannot; the weight is then learned by the in-step gradient only.
        Operands that are constants of the step (the indices of a sparse matrix) are literals: ``eqn.invars[i].val``.

    Raises
    ------
    ValueError
        If the primitive has a rule already.

    Examples
    --------
    >>> from etrace_engines import register_rule
    >>> register_rule("dot_general", lambda eqn, operand: None)
    Traceback (most recent call last):
    ValueError: `primitive='dot_general'` has a rule already; a rule cannot be replaced.
    """
    if primitive in _RULES:
        raise ValueError(f"`primitive={primitive!r}` has a rule already; a rule cannot be replaced.")
    _RULES[primitive] = rule


def operation_of(eqn: JaxprEqn, operand: int) -> ParameterOperation | None:
    """Return the view of an equation as a parameter operation with respect to one operand, or None."""
    rule = _RULES.get(eqn.primitive.name)
    if rule is not None:
        return rule(eqn, operand)
    return elementwise(eqn, operand) if is_elementwise(eqn) else None
