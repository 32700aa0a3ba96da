"""Chains of products: (x @ A) @ B becomes x @ (A @ B), so that a low-rank weight is one effective weight.

Else the first product would reach a hidden state only through another mixing operation, and A would have no trace.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import Array

from .._compat import ClosedJaxpr, JaxprEqn, Literal, aval, bind
from .lift import StepFunction


@dataclass(frozen=True)
class Product:
    """A `dot_general` of data and a weight in the parameter cone: the two, and the axes that each contracts, in pairs.

    `data` and `weight` are variables while a step is read, and arrays while it is rewritten.
    """

    data: Any
    weight: Any
    data_axes: tuple[int, ...]
    weight_axes: tuple[int, ...]
    weight_leads: bool

    def output_axes(self, data_ndim: int, weight_ndim: int) -> list[int]:
        """Where the output has the weight's free axes."""
        start = 0 if self.weight_leads else data_ndim - len(self.data_axes)
        return list(range(start, start + weight_ndim - len(self.weight_axes)))

    def apply(self) -> Array:
        """Compute the product."""
        data, weight = (self.data, self.data_axes), (self.weight, self.weight_axes)
        (a, a_axes), (b, b_axes) = (weight, data) if self.weight_leads else (data, weight)
        return jax.lax.dot_general(a, b, ((a_axes, b_axes), ((), ())))

    def then(self, second: Product) -> Product:
        """Return the product with the weight of this one times that of a second, which contracts all that it left."""
        weight = self.weight
        free = [a for a in range(weight.ndim) if a not in self.weight_axes]
        output_axes = self.output_axes(self.data.ndim, weight.ndim)
        contracted = tuple(free[output_axes.index(a)] for a in second.data_axes)
        merged = jax.lax.dot_general(weight, second.weight, ((contracted, second.weight_axes), ((), ())))
        kept = sorted(self.weight_axes)
        return replace(
            self,
            weight=merged,
            weight_axes=tuple(kept.index(a) for a in self.weight_axes),
            weight_leads=second.weight_leads,
        )


def merge_chains(step: StepFunction) -> StepFunction:
    """Return the step with every chain of products written as a product with one weight."""
    jaxpr = step.closed.jaxpr
    params = jaxpr.invars[step.num_args : step.num_args + len(step.params)]
    data = set(jaxpr.invars) - set(params)
    uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal))
    uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    products: dict[Any, Product] = {}
    absorbed: set[Any] = set()
    for eqn in jaxpr.eqns:
        product = _as_product(eqn, data)
        if any(not isinstance(v, Literal) and v in data for v in eqn.invars):
            data.update(eqn.outvars)
        if product is None:
            continue
        products[eqn.outvars[0]] = product
        first = products.get(product.data)
        if first is not None and uses[product.data] == 1 and _contracts_all(first, product):
            absorbed.add(product.data)
    return replace(step, closed=_rewrite(step.closed, products, absorbed)) if absorbed else step


def _as_product(eqn: JaxprEqn, data: set[Any]) -> Product | None:
    """Read a `dot_general` without batch axes, one of whose operands is data."""
    if eqn.primitive.name != "dot_general" or any(eqn.params["dimension_numbers"][1]):
        return None
    is_data = [not isinstance(v, Literal) and v in data for v in eqn.invars]
    if sum(is_data) != 1:
        return None
    x, w = is_data.index(True), is_data.index(False)
    axes = eqn.params["dimension_numbers"][0]
    return Product(eqn.invars[x], eqn.invars[w], tuple(axes[x]), tuple(axes[w]), w == 0)


def _contracts_all(first: Product, second: Product) -> bool:
    left = first.output_axes(aval(first.data).ndim, aval(first.weight).ndim)
    return sorted(second.data_axes) == left


def _rewrite(closed: ClosedJaxpr, products: dict[Any, Product], absorbed: set[Any]) -> ClosedJaxpr:
    jaxpr = closed.jaxpr

    def run(*inputs: Array) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))
        pending: dict[Any, Product] = {}
        read = lambda v: v.val if isinstance(v, Literal) else env[v]
        for eqn in jaxpr.eqns:
            (out, *rest), product = eqn.outvars, products.get(eqn.outvars[0])
            first = pending.get(product.data) if product else None
            if product and (first or out in absorbed):
                product = replace(product, weight=read(product.weight))
                merged = first.then(product) if first else replace(product, data=read(product.data))
                if out in absorbed:
                    pending[out] = merged
                else:
                    env[out] = merged.apply().astype(aval(out).dtype)
                continue
            env.update(zip((out, *rest), bind(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in jaxpr.invars))
