"""What a learner refuses, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from etrace_config import ETraceConfig


def check_options(config: ETraceConfig, vjp_method: str, hidden_groups: str) -> None:
    """Check a learner's options against each other."""
    if vjp_method not in ("single-step", "multi-step"):
        raise ValueError(f"`vjp_method={vjp_method!r}` is not one of 'single-step', 'multi-step'.")
    if hidden_groups not in ("auto", "joint"):
        raise ValueError(f"`hidden_groups={hidden_groups!r}` is not one of 'auto', 'joint'.")
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
    if is_window and vjp_method == "single-step":
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
