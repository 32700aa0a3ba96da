"""What a synthesiser was fitted for, and whether it is used for the same."""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from collections.abc import Callable
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from ._sequence import Windows, numpy_for

Check = Literal["error", "warn", "off"]
CHECKS = ("error", "warn", "off")
# Two float32 evaluations of one loss differ by far less; two reductions or objectives by far more.
RATIO_TOLERANCE = 1e-2
COSINE_TOLERANCE = 1e-3
# Parameters that move by a hundredth change gradients by about as much, which is less than most synthesisers' error.
MOVEMENT_TOLERANCE = 1e-2
PROJECTIONS = 4

logger = logging.getLogger("dni_synth")
logger.addHandler(logging.NullHandler())


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a synthesiser was fitted for.

    Parameters
    ----------
    chunk_size : int
        Window length in steps.
    batch_shape : tuple of int
        Batch axes of the learner: ``(batch,)``, or ``()`` for an unbatched one.
    groups : tuple of str
        The hidden groups.
    additive : bool or None
        Whether a window's loss is the sum of its steps' losses; None if that could not be found out.
    window_probe, step_probe : ndarray or None
        How the loss reacts to a fixed change of the output of one batch element: the change of its cotangent, over a
        whole window and over a single step. None where the loss could not be evaluated while tracing.
    """

    chunk_size: int
    batch_shape: tuple[int, ...]
    groups: tuple[str, ...]
    additive: bool | None
    window_probe: np.ndarray | None = dataclasses.field(repr=False)
    step_probe: np.ndarray | None = dataclasses.field(repr=False)

    def to_json(self) -> str:
        """Return the signature without its arrays, as JSON."""
        return json.dumps(
            {
                "chunk_size": self.chunk_size,
                "batch_shape": self.batch_shape,
                "groups": self.groups,
                "additive": self.additive,
            }
        )

    @classmethod
    def from_json(cls, text: str, window_probe: np.ndarray | None, step_probe: np.ndarray | None) -> Signature:
        """Return the signature that `to_json` and its arrays describe."""
        data = json.loads(text)
        return cls(
            int(data["chunk_size"]),
            tuple(data["batch_shape"]),
            tuple(data["groups"]),
            data["additive"],
            window_probe,
            step_probe,
        )


def parameter_digest(leaves: list[Any]) -> Any:
    """Return the norm and some fixed projections of each array, shape (arrays, 1 + PROJECTIONS)."""
    rows = []
    for leaf in leaves:
        xp = numpy_for(leaf)  # on the host where it can be: nothing to compile
        flat = xp.ravel(xp.asarray(leaf)).astype(np.float32)
        waves = xp.cos(xp.outer(np.arange(1, PROJECTIONS + 1), xp.arange(1, flat.size + 1)).astype(np.float32))
        rows.append(xp.concatenate([xp.linalg.norm(flat)[None], waves @ flat]))
    return numpy_for(rows[0]).stack(rows)


def current_digest(learner: Any) -> Any:
    """Return the digest of the model's parameters."""
    return parameter_digest(jax.tree.leaves([state.value for state in learner.param_states.values()]))


def movement(then: np.ndarray, now: np.ndarray) -> float:
    """Return by how much the parameters have moved, the largest share of an array's norm."""
    # A fixed projection with elements of mean square 1/2 measures a change of size d as about d / sqrt(2).
    moved = np.sqrt(2 * np.mean((now[:, 1:] - then[:, 1:]) ** 2, axis=1))
    return float(np.max(moved / np.maximum(then[:, 0], np.finfo(np.float32).tiny)))


@dataclasses.dataclass
class Fitted:
    """A signature with the state of the parameters at the fit, and whether a warning said that they have moved."""

    signature: Signature
    digest: brainstate.State
    warned: bool = False


def record_signature(learner: Any, windows: Windows) -> None:
    """Remember on the learner what its synthesiser has just been fitted for."""
    digest = current_digest(learner)
    injection = learner.injection
    signature = signature_of(learner, windows)
    if injection.fitted is None:
        injection.fitted = Fitted(signature, brainstate.ShortTermState(digest))
    else:
        injection.fitted.signature = signature
        injection.fitted.warned = False
        injection.fitted.digest.value = digest


def signature_of(learner: Any, windows: Windows) -> Signature:
    """Return the signature that a fit over these windows gives."""
    injection = learner.injection
    steps = windows.steps or 1
    window, step = probes(learner, windows, (steps, 1))
    additive = None
    if window is not None and step is not None:
        additive = bool(np.allclose(window[0], step[0], rtol=1e-4, atol=1e-6 * np.abs(step).max(initial=0)))
    return Signature(
        steps,
        tuple(injection.batch_shape),
        tuple(group.name for group in injection.groups),
        additive,
        window,
        step,
    )


def probes(learner: Any, windows: Windows, lengths: tuple[int, ...]) -> list[np.ndarray | None]:
    """Return how the cotangent of the loss changes between two fixed outputs, for windows of several lengths.

    The slices are constants and both outputs the same for every batch element, so the answer, of shape (steps, units),
    does not depend on data or on the batch size, unless the loss does. The *change* makes targets that enter like
    those of a square or a cross entropy drop out; where nothing changes, as for a linear loss, the cotangent itself is
    returned.
    """

    def cotangents() -> list[tuple[jax.Array, jax.Array]]:
        found = []
        for steps in lengths:
            lead = () if windows.steps is None else (steps,)
            slices = jax.tree.map(lambda a, lead=lead: constant_slice(a, lead, len(lead) + 1), windows.slices)
            low, high = (cotangent(learner, windows, slices, lead, seed) for seed in (1, 2))
            found.append((low, high))
        return found

    if isinstance(jnp.zeros(()), jax.core.Tracer):
        # Inside a trace, evaluate now what depends on constants alone; a loss that closes over traced values stays so.
        with jax.ensure_compile_time_eval():
            pairs = cotangents()
    else:
        pairs = jax.jit(cotangents)()
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(pairs)):
        return [None for _ in lengths]
    arrays = [(np.asarray(low), np.asarray(high)) for low, high in pairs]
    return [high - low if np.any(high != low) else high for low, high in arrays]


def constant_slice(array: Any, lead: tuple[int, ...], skip: int) -> jax.Array:
    """Return a constant shaped like one slice: zeros for integers, ones otherwise."""
    shape = (*lead, *array.shape[skip:])
    integers = jnp.issubdtype(array.dtype, jnp.integer)
    return jnp.zeros(shape, array.dtype) if integers else jnp.ones(shape, array.dtype)


def cotangent(learner: Any, windows: Windows, slices: Any, lead: tuple[int, ...], seed: int) -> jax.Array:
    """Return the gradient of the window's loss by the first batch element's output, shape (steps, units)."""
    batch = len(learner.injection.batch_shape)
    structure = learner.injection.output_structure
    outputs = jax.tree.map(lambda s: fixed_output(s, lead, batch, seed), structure)

    def loss(values: Any) -> jax.Array:
        with learner.injection.answering(values):
            result = windows.step_fn(*slices)
        losses = result[0] if windows.has_aux else result
        return jnp.sum(losses)

    gradient = jax.grad(loss)(outputs)
    steps = lead[0] if lead else 1
    first = [jnp.reshape(leaf_first(leaf, len(lead), batch), (steps, -1)) for leaf in jax.tree.leaves(gradient)]
    return jnp.concatenate(first, axis=1)


def leaf_first(array: jax.Array, lead: int, batch: int) -> jax.Array:
    """Return the first batch element of an output."""
    return array[(slice(None),) * lead + (0,) * batch]


def fixed_output(structure: Any, lead: tuple[int, ...], batch: int, seed: int) -> jax.Array:
    """Return a fixed output, the same for all batch elements, that differs between steps, units, and seeds."""
    own = structure.shape[batch:]
    values = np.random.default_rng(seed).standard_normal((*(lead or (1,)), *own))
    values = values.reshape(*lead, *(1 for _ in range(batch)), *own)
    return jnp.broadcast_to(jnp.asarray(values, structure.dtype), (*lead, *structure.shape))


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
    check_stale(learner)


def find_output_structure(learner: Any, windows: Windows) -> None:
    """Trace one window, without running it, unless a call has shown already what the learner returns."""
    if learner.injection.output_structure is not None:
        return
    first = jax.tree.map(lambda a: a[0], windows.slices)

    def body() -> None:
        windows.step_fn(*first)

    with learner.injection.recording():
        brainstate.transform.make_jaxpr(body)()


def check_direct_use(injection: Any, steps: int, check: Check) -> None:
    """Compare window lengths in a call outside the package's own drivers."""
    if injection.fitted is not None and injection.injecting and check != "off":
        check_window(injection.fitted.signature, steps, warn if check == "warn" else fail)


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


def check_stale(learner: Any) -> None:
    """Warn once for each fit when the model's parameters have moved since; not inside a trace."""
    now = current_digest(learner)
    fitted: Fitted = learner.injection.fitted
    then = fitted.digest.value
    if fitted.warned or isinstance(now, jax.core.Tracer) or isinstance(then, jax.core.Tracer):
        return
    share = movement(np.asarray(then), np.asarray(now))
    if share > MOVEMENT_TOLERANCE:
        fitted.warned = True
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
