"""From a configuration to the engine that runs it: the only place that reads the axes."""

from __future__ import annotations

from typing import Any

from jax import Array

from etrace_config import ETraceConfig

from .._graph.evaluate import Inputs
from .._graph.graph import Follow, Graph
from .._jacobian.dynamics import Dynamics
from .base import AbstractEngine
from .factorised import FactorisedEngine
from .per_parameter import PerParameterEngine
from .random_projection import RandomProjectionEngine


def build_engine(graph: Graph, inputs: Inputs, config: ETraceConfig, *, key: Array, trace_dtype: Any) -> AbstractEngine:
    """Return the engine of a configuration on a graph; `inputs` are the arrays at compile time."""
    if config.trace_factorization == "random_projection":
        return RandomProjectionEngine(graph, key, trace_dtype)
    recursion = config.recursion_f if config.is_factorized else config.temporal_recursion
    dynamics = Dynamics(
        graph, inputs, scope=config.recurrence_scope, order=config.sparse_n or 1, leak=_leak(config, str(recursion))
    )
    if config.is_factorized:
        return FactorisedEngine(graph, dynamics, config.decay_x or 0.0, config.decay_f or 0.0, trace_dtype)
    kappa = config.kappa if config.trace_filter == "kappa" else None
    return PerParameterEngine(graph, dynamics, kappa, trace_dtype)


def follow(config: ETraceConfig) -> Follow:
    """Return how far a rule follows influence within a step."""
    if config.trace_factorization == "random_projection":
        return "reach"
    return "mixing" if config.recurrence_scope == "sparse_n" else "local"


def _leak(config: ETraceConfig, recursion: str) -> float | None:
    """Return the multiple of the identity that replaces the Jacobian, or None where it stays.

    Under io_factorized the factor a_f multiplies the transition anyway, so a leak is the identity there.
    """
    if recursion == "jacobian":
        return None
    if recursion == "none":
        return 0.0
    if config.is_factorized:
        return 1.0
    return float(config.decay)  # type: ignore[arg-type]  # a number, by rule 5 of the matrix
