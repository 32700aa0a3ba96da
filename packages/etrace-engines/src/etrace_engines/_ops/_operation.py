"""The form that every parameter operation takes in the engines: a batched matrix product.

An operation y = op(x, w) is described by how its output, its weight and what multiplies the weight (the *carrier*) look
as

    y[b, f, g] = sum_k x[b, f, k] w[b, k, g]

up to terms that do not depend on w. A dense product, a convolution (over patches), an embedding lookup (over one-hot
rows) and an elementwise operation (b runs over the elements, f = k = g = 1) all fit, so traces are written once, for
this form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax import Array


@dataclass(frozen=True)
class ParameterOperation:
    """View one equation, with respect to one weight operand, as a batched matrix product.

    Parameters
    ----------
    mixing : bool
        Whether the operation joins positions (a matrix product does, adding a bias does not).
    sizes : tuple of int, (b, f, k, g)
        Sizes of the axes of the product.
    carrier : callable
        From the equation's operands to the derivative of y by w, shape (b, f, k).
    output : callable
        From an array of the output's shape, with any leading axes, to (..., b, f, g).
    weight : callable
        From a gradient of shape (b, k, g) to the weight's shape.
    """

    mixing: bool
    sizes: tuple[int, int, int, int]
    carrier: Callable[[Sequence[Array]], Array]
    output: Callable[[Array], Array]
    weight: Callable[[Array], Array]
