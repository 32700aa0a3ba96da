"""Whether a synthesiser is used for what it was fitted for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from ._concrete import is_traced
from ._digest import current_digest, movement, parameter_digest
from ._sequence import Windows
from ._signature import Fitted, Signature, probes
from ._window import Injection

Check = Literal["error", "warn", "off"]
# Two float32 evaluations of one loss differ by far less; two reductions or objectives by far more.
RATIO_TOLERANCE = 1e-2
COSINE_TOLERANCE = 1e-3
# Parameters that move by a hundredth change gradients by about as much, which is less than most synthesisers' error.
MOVEMENT_TOLERANCE = 1e-2


def check_use(learner: Any, windows: Windows, check: Check) -> None:
    """Compare what the synthesiser was fitted for with what it is about to be used for."""
    signature: Signature | None = learner.signature
    if signature is None or check == "off":
        return
    find_output_structure(learner, windows)
    complain = warn if check == "warn" else fail
    steps = windows.steps or 1
    check_window(signature, steps, complain)
    same = steps == signature.chunk_size
    fitted = signature.window_probe if same else signature.step_probe if signature.additive else None
    if fitted is not None:
        (found,) = probes(learner, windows, (steps if same else 1,))
        if found is not None:
            check_loss(fitted, found, signature, learner.injection.batch_shape, complain)
    digests = learner.injection.digest.value, current_digest(learner)
    if not is_traced(digests):
        check_stale(learner.injection.fitted, *map(np.asarray, digests))


def find_output_structure(learner: Any, windows: Windows) -> None:
    """Trace one window, without running it, unless a call has shown already what the learner returns."""
    if learner.injection.output_structure is not None:
        return
    first = jax.tree.map(lambda a: a[0], windows.slices)

    def body() -> None:
        windows.step_fn(*first)

    with learner.injection.recording():
        brainstate.transform.make_jaxpr(body)()


def check_window_of(injection: Injection, steps: int | None, check: Check) -> None:
    """Compare window lengths before a plain call."""
    if is_checked(injection, check):
        check_window(injection.fitted.signature, steps or 1, warn if check == "warn" else fail)


def is_checked(injection: Injection, check: Check) -> bool:
    """Return whether a plain call, outside the package's own drivers, is compared with the fit."""
    return injection.fitted is not None and injection.injecting and injection.recorded is None and check != "off"


def watched(learner: Any, outputs: Any, steps: int | None, check: Check) -> Any:
    """Return the outputs of a plain call; a gradient through them shows what the synthesiser is used for.

    What it shows are values, so nothing is compared while a program is traced. The loss can be compared if the
    synthesiser was fitted on a function of the output alone.
    """
    injection: Injection = learner.injection
    if not is_checked(injection, check):
        return outputs
    fitted: Fitted = injection.fitted
    same = steps == (None if fitted.signature.chunk_size == 1 else fitted.signature.chunk_size)

    @jax.custom_vjp
    def watch(outputs: Any, parameters: Any, digest: Any) -> Any:
        return outputs

    def forward(*given: Any) -> Any:
        return given[0], given

    def backward(given: Any, cotangents: Any) -> Any:
        outputs, parameters, digest = given
        if not is_traced((given, cotangents)):
            check_stale(fitted, np.asarray(digest), parameter_digest(jax.tree.leaves(parameters)))
            if same and fitted.loss is not None:
                expected = jax.grad(fitted.loss, allow_int=True)(outputs)
                complain = warn if check == "warn" else fail
                check_loss(flat(expected), flat(cotangents), fitted.signature, injection.batch_shape, complain)
        return cotangents, None, None

    watch.defvjp(forward, backward)
    return watch(outputs, [state.value for state in learner.param_states.values()], injection.digest.value)


def flat(cotangents: Any) -> np.ndarray:
    """Return all real cotangents in one row."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(cotangents) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return np.concatenate([np.zeros(0), *map(np.ravel, leaves)])


def check_window(signature: Signature, steps: int, complain: Callable[[str], None]) -> None:
    """Compare window lengths."""
    if steps == signature.chunk_size:
        return
    text = (
        f"the synthesiser was fitted for windows of {signature.chunk_size} steps and is used with windows of {steps}. "
    )
    if signature.additive:
        warn(text + "Its estimates belong to other boundaries; fit it with this window length if they are poor.")
    else:
        complain(
            text + "The loss it was fitted on is not a sum over steps, so its scale depends on the window length. "
            "Fit it with this window length, or pass `check='warn'` or `check='off'`."
        )


def check_loss(
    fitted: np.ndarray,
    found: np.ndarray,
    signature: Signature,
    batch_shape: tuple[int, ...],
    complain: Callable[[str], None],
) -> None:
    """Compare losses by the size and the direction of their cotangents."""
    if fitted.shape != found.shape:
        complain(f"the synthesiser was fitted for outputs of shape {fitted.shape} and is used with {found.shape}.")
        return
    norms = float(np.linalg.norm(fitted)), float(np.linalg.norm(found))
    if not all(norms):
        return
    ratio = norms[1] / norms[0]
    cosine = float(np.vdot(fitted, found)) / (norms[0] * norms[1])
    if abs(ratio - 1) <= RATIO_TOLERANCE and cosine >= 1 - COSINE_TOLERANCE:
        return
    batches = (
        ""
        if signature.batch_shape == batch_shape
        else f" It was fitted with batch {signature.batch_shape}, now {batch_shape}."
    )
    complain(
        f"the loss differs from the one that the synthesiser was fitted on: the scale ratio of their output gradients "
        f"is {ratio:.4g} and their cosine {cosine:.4g}, both should be 1.{batches} Fit it on this loss, or pass "
        "`check='warn'` or `check='off'`."
    )


def check_stale(fitted: Fitted, then: np.ndarray, now: np.ndarray) -> None:
    """Warn once for each fit when the model's parameters have moved since."""
    if then.shape != now.shape or (fitted.warned_at is not None and np.array_equal(fitted.warned_at, then)):
        return
    share = movement(then, now)
    if share > MOVEMENT_TOLERANCE:
        fitted.warned_at = then
        warn(
            f"the model's parameters have moved by {share:.0%} since the synthesiser was fitted: it is stale. Use "
            "`synth='fit'` to keep it up to date, or fit it again from time to time."
        )


def fail(message: str) -> None:
    """Raise a ValueError that starts with a capital-free sentence."""
    raise ValueError(message)


def warn(message: str) -> None:
    """Warn at the caller's caller."""
    warnings.warn(message, UserWarning, stacklevel=4)
