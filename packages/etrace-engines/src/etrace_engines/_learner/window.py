"""A window of steps as one differentiable function: exact inside, and the trace for what came before.

gradient = reverse-mode gradient inside the window, for every parameter, + (dL/dh_entry) . (trace at entry) for the
traced ones. A whole-sequence window is backpropagation through time for every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._graph.evaluate import Inputs, evaluate_step
from .step import Arrays, Result, Rule, _to_groups, observe, to_params

Estimator = Callable[[list[Array], list[Array]], tuple[list[Array], list[Array]] | None]


def window(rule: Rule, estimate: Estimator | None = None) -> Callable[[Arrays, Any, Any], Result]:
    """Return the differentiable window ``(arrays, traces, modulator) -> result``, with time leading the arguments.

    `estimate` maps the hidden and other states at exit to cotangents of the loss that comes after the window, or None.
    They reach plain uses of parameters, arguments and entry states, and no traced use: the trace carries that credit.
    """

    @jax.custom_vjp
    def run(arrays: Arrays, traces: Any, modulator: Any) -> Result:
        return forward(arrays, traces, modulator)[0]

    def forward(arrays: Arrays, traces: Any, modulator: Any) -> tuple[Result, Any]:
        def body(carry: Any, args: list[Array]) -> Any:
            hidden, other, traces = carry
            outs, local = observe(rule, Arrays(arrays.params, hidden, other, args), traces)
            return (outs.hidden, outs.other, rule.engine.advance(traces, local)), outs.outputs

        (hidden, other, after), outputs = jax.lax.scan(body, (arrays.hidden, arrays.other, traces), arrays.args)
        future = None if estimate is None else estimate(hidden, other)
        return Result(outputs, hidden, other, after), (arrays, traces, modulator, future)

    def backward(residual: Any, cotangent: Result) -> tuple[Arrays, None, None]:
        arrays, traces, modulator, future = residual
        _, pull = jax.vjp(_steps(rule), *arrays, rule.graph.weights(arrays.params))
        wanted = (list(cotangent.outputs), list(cotangent.hidden), list(cotangent.other))
        params, hidden, other, args, weights = pull(wanted)
        signal = _to_groups(rule.graph, hidden)
        past = rule.engine.entry(traces, signal if rule.signal is None else rule.signal(signal, modulator, []))
        if future is not None:
            silent = jax.tree.map(_zero_cotangent, cotangent.outputs)
            extra = pull((list(silent), *future))
            params, hidden, other, args = (
                jax.tree.map(_add_cotangents, a, b)
                for a, b in zip((params, hidden, other, args), extra[:4], strict=True)
            )
        return Arrays(to_params(rule.graph, arrays.params, params, weights, past), hidden, other, args), None, None

    run.defvjp(forward, backward)
    return run


def _steps(rule: Rule) -> Callable[..., Any]:
    def steps(
        params: list[Array], hidden: list[Array], other: list[Array], args: list[Array], weights: list[Array]
    ) -> Any:
        swap = rule.graph.swap(weights)

        def body(carry: Any, x: list[Array]) -> Any:
            outs = evaluate_step(rule.graph.step, Inputs(x, params, *carry), swap)
            return (outs.hidden, outs.other), outs.outputs

        (hidden, other), outputs = jax.lax.scan(body, (hidden, other), args)
        return outputs, hidden, other

    return steps


def _zero_cotangent(x: Any) -> Any:
    return x if x.dtype == jax.dtypes.float0 else jnp.zeros_like(x)


def _add_cotangents(a: Any, b: Any) -> Any:
    return a if a.dtype == jax.dtypes.float0 else a + b
