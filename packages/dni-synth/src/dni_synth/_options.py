"""Options of a call over a sequence, and the form of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ._concrete import numpy_for
from ._groups import Path
from ._sequence import Windows

CHOICES = {
    "synth": ("use", "fit", "off"),
    "target": ("bootstrap", "lambda", "mc"),
    "reduction": ("mean", "sum"),
    "loss_output": ("per_step", "masked", "scalar"),
    "check": ("error", "warn", "off"),
}


@dataclass(frozen=True)
class JointResult:
    """Gradients of the summed loss by path, raw losses of all steps, auxiliary data, mean error of the fit."""

    gradients: dict[Path, Any]
    losses: jax.Array
    aux: Any
    error: jax.Array


def check_options(**given: str) -> None:
    """Refuse an unknown choice."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            raise ValueError(f"`{name}` must be one of {', '.join(map(repr, CHOICES[name]))}, got {value!r}.")


def mixing_of(target: str, lam: float | None) -> float:
    """Return lambda: the share of the later target, against the estimate, in a target."""
    if target != "lambda":
        if lam is not None:
            raise ValueError(f"`lam={lam}` is set but `target` is {target!r}. Pass `target='lambda'`.")
        return 0.0 if target == "bootstrap" else 1.0
    if lam is None or not 0 <= lam <= 1:
        raise ValueError(f"`lam` must be in [0, 1] with `target='lambda'`, got {lam}.")
    return float(lam)


def packed(result: JointResult, windows: Windows, reduction: str, loss_output: str, return_value: bool) -> Any:
    """Return what the caller of `etrace_grad` asked for."""
    weights = windows.weights.reshape(-1)
    divisor = numpy_for(weights).maximum(weights.sum(), 1)
    gradients = result.gradients
    if reduction == "mean":
        gradients = jax.tree.map(lambda g: g / divisor.astype(g.dtype), gradients)
    else:
        divisor = 1
    losses = result.losses
    if loss_output != "per_step":
        losses = losses * weights.astype(losses.dtype)
    if loss_output == "scalar":
        losses = jnp.sum(losses) / divisor
    extras = (*((losses,) if return_value else ()), *((result.aux,) if windows.has_aux else ()))
    return (gradients, *extras) if extras else gradients
