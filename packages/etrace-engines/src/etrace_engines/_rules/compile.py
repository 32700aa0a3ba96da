"""One call from a plain model to a compiled learner."""

from __future__ import annotations

from typing import Any

import brainstate

from etrace_config import ETraceConfig

from .._sequence.learner import ETraceLearner
from . import presets

ENGINES: dict[str, type[ETraceLearner]] = {
    "per_param": presets.ParamDimVjpAlgorithm,
    "io_factorized": presets.IODimVjpAlgorithm,
    "random_projection": presets.RandomProjectionVjpAlgorithm,
}
RULES: dict[str, type[ETraceLearner]] = {
    name: getattr(presets, name)
    for name in (
        "D_RTRL",
        "ES_D_RTRL",
        "EProp",
        "IODimVjpAlgorithm",
        "OSTLFeedforward",
        "OSTLRecurrent",
        "ParamDimVjpAlgorithm",
        "RandomProjectionVjpAlgorithm",
        "SnAp",
        "ThreeFactor",
        "UORO",
        "pp_prop",
    )
}


def compile(
    model: Any,
    rule: type[ETraceLearner] | str | ETraceConfig,
    *inputs: Any,
    batch_size: int | None = None,
    **options: Any,
) -> ETraceLearner:
    """Initialise a model's states, and return a compiled learner.

    Parameters
    ----------
    model : brainstate.nn.Module
        A plain model; it is not modified.
    rule : learner class, name of one, or ETraceConfig
        The learning rule.
    *inputs : pytrees of arrays
        Example inputs of one step, batch axis included.
    batch_size : int, optional
        Batch size of the states; None for an unbatched model.
    **options
        Options of the learner: `vjp_method`, `traced`, `decay_or_rank` of `pp_prop`, and so on.

    Returns
    -------
    ETraceLearner
        The learner, ready to be called.

    Raises
    ------
    ValueError
        If `rule` names no rule, or an option is not allowed.
    TypeError
        If `rule` is of another type.

    Examples
    --------
    >>> import brainstate, jax.numpy as jnp, etrace_engines
    >>> model = brainstate.nn.GRUCell(3, 4)
    >>> learner = etrace_engines.compile(model, "D_RTRL", jnp.zeros((2, 3)), batch_size=2)
    >>> learner(jnp.ones((2, 3))).shape
    (2, 4)
    """
    if not inputs:
        raise ValueError(
            "`compile` needs example inputs of one step, as positional arguments after the rule; got none."
        )
    batch = {} if batch_size is None else {"batch_size": batch_size}
    learner = _make(model, rule, options)
    brainstate.nn.init_all_states(model, **batch)
    return learner.compile_graph(*inputs, batch_size=batch_size)


def _make(model: Any, rule: Any, options: dict[str, Any]) -> ETraceLearner:
    if isinstance(rule, ETraceConfig):
        return ENGINES[rule.trace_factorization](model, rule, **options)
    if isinstance(rule, str):
        if rule not in RULES:
            raise ValueError(f"`rule={rule!r}` is not one of {sorted(RULES)}.")
        return RULES[rule](model, **options)
    if isinstance(rule, type) and issubclass(rule, ETraceLearner):
        return rule(model, **options)
    raise TypeError(f"`rule` must be a learner class, the name of one, or an ETraceConfig, got {type(rule).__name__}.")
