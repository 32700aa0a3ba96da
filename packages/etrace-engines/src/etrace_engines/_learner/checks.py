"""What a learner refuses, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from etrace_config import ETraceConfig

from .._engine.base import AbstractEngine


def check_options(config: ETraceConfig, vjp_method: str, hidden_groups: str, error_signal: str) -> None:
    """Check a learner's options against each other."""
    if vjp_method not in ("single-step", "multi-step"):
        raise ValueError(f"`vjp_method={vjp_method!r}` is not one of 'single-step', 'multi-step'.")
    if hidden_groups not in ("auto", "joint"):
        raise ValueError(f"`hidden_groups={hidden_groups!r}` is not one of 'auto', 'joint'.")
    if error_signal not in ("hidden", "output"):
        raise ValueError(f"`error_signal={error_signal!r}` is not one of 'hidden', 'output'.")
    if error_signal == "output" and (config.learning_signal != "random_feedback" or vjp_method != "single-step"):
        raise ValueError(
            "`error_signal='output'` needs `learning_signal='random_feedback'` and `vjp_method='single-step'`, got "
            f"{config.learning_signal!r} and {vjp_method!r}."
        )
    follows = config.recurrence_scope == "sparse_n" or config.trace_factorization == "random_projection"
    if hidden_groups == "joint" and not follows:
        raise ValueError(
            "`hidden_groups='joint'` needs `recurrence_scope='sparse_n'` or `trace_factorization='random_projection'`, "
            f"which follow influence between states; the scope is {config.recurrence_scope!r}."
        )
    if config.learning_signal == "modulatory" and vjp_method == "multi-step":
        raise ValueError(
            "`learning_signal='modulatory'` replaces the signal of a step, so it needs `vjp_method='single-step'`, "
            "got 'multi-step'."
        )
    if config.learning_signal == "bootstrapped" and vjp_method == "single-step":
        raise ValueError(
            "`learning_signal='bootstrapped'` acts at the end of a window, so it needs `vjp_method='multi-step'`, "
            "got 'single-step'."
        )


def check_call(
    config: ETraceConfig,
    vjp_method: str,
    compiled_for: Sequence[Any],
    leaves: Sequence[Any],
    *,
    is_window: bool,
    modulator: Any,
) -> None:
    """Check a call against what the learner was compiled for, before anything changes."""
    signal = config.learning_signal
    if is_window and vjp_method == "single-step" and signal != "modulatory":
        raise ValueError("`MultiStepData` needs `vjp_method='multi-step'`; this learner has 'single-step'.")
    if (modulator is not None) != (signal == "modulatory"):
        raise ValueError(
            "`modulator` is needed, as a keyword of the call, by `learning_signal='modulatory'`, and only there; this "
            f"learner has {signal!r}, and `modulator` is {'missing' if modulator is None else 'given'}."
        )
    shapes = [jnp.shape(x)[1:] if is_window else jnp.shape(x) for x in leaves]
    expected = [aval.shape for aval in compiled_for]
    if shapes != expected:
        raise ValueError(
            f"The learner was compiled for inputs of shapes {expected}{' per step' * is_window}, got {shapes}; "
            "call `compile_graph` again for other shapes."
        )


def check_trace_bytes(engine: AbstractEngine, limit: int | None) -> int:
    """Return the bytes that the traces take, before any is allocated.

    Raises
    ------
    ValueError
        If they exceed `limit`.
    """
    leaves = jax.tree.leaves(jax.eval_shape(engine.init))
    needed = sum(
        leaf.size * leaf.dtype.itemsize for leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    )
    if limit is not None and needed > limit:
        raise ValueError(
            f"The traces need {needed} bytes, more than `trace_limit={limit}`; use a smaller batch, fewer `traced` "
            "parameters, a smaller `trace_dtype`, or the factorization 'io_factorized'."
        )
    return int(needed)
