"""Recording: inside a sequence driver, a learner's call is the rule's step, and leaves what the chunk needs.

The driver differentiates the step with respect to three kinds of taps (zeros that are added): at the outputs of traced
relations, at the new hidden states as the rest of the step sees them, and at the hidden states at entry as outputs read
them directly. Traced weights are detached: their gradient is formed from carriers and output cotangents, one product a
chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from .._compat import aval, is_float
from .._graph.evaluate import Outputs
from .step import Arrays, Rule, observe, rule_step


class Taps(NamedTuple):
    """Zeros like relation outputs, new hidden states, and hidden states at entry; None for integer states."""

    equations: dict[int, Array]
    slabs: list[Array | None]
    entries: list[Array | None]


class Recording(NamedTuple):
    """The states through which driver and learner meet, whatever transformations lie between them."""

    taps: Any  # brainstate.ShortTermState of Taps
    local: Any  # brainstate.ShortTermState of the engine's local dynamics


def start_recording(rule: Rule, arrays: Arrays, traces: Any) -> Recording:
    """Return fresh states for a recording."""
    local = jax.eval_shape(lambda arrays, traces: observe(rule, arrays, traces)[1], arrays, traces)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), local)
    return Recording(brainstate.ShortTermState(zero_taps(rule)), brainstate.ShortTermState(zeros))


def zero_taps(rule: Rule) -> Taps:
    """Return the taps at zero."""
    jaxpr, step = rule.graph.step.closed.jaxpr, rule.graph.step
    first = step.num_args + len(step.params)
    old = jaxpr.invars[first : first + len(step.hidden)]
    zero = lambda v: jnp.zeros(aval(v).shape, aval(v).dtype)
    hidden = [zero(v) if is_float(aval(v)) else None for v in old]
    return Taps({e: zero(jaxpr.eqns[e].outvars[0]) for e in sorted(rule.recorded)}, hidden, list(hidden))


def recorded_step(rule: Rule, arrays: Arrays, recording: Recording) -> Outputs:
    """Evaluate the rule's step with the taps, and leave the local dynamics."""
    taps: Taps = recording.taps.value
    fixed = jax.lax.stop_gradient(arrays)
    recording.local.value = jax.lax.stop_gradient(observe(rule, fixed, None)[1])
    entry = [h if tap is None else h + tap for h, tap in zip(arrays.hidden, taps.entries, strict=True)]
    weights = jax.lax.stop_gradient(rule.graph.weights(arrays.params))
    return rule_step(rule, arrays._replace(hidden=entry), weights, None, taps.slabs, taps.equations)
