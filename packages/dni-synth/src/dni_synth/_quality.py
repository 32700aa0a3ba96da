"""How good the estimates are, and whether they help."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from ._fit.joint import joint_gradient
from ._fit.regression import masked_targets
from ._fit.separate import attached
from ._sequence import ContextFn, Windows, cut
from ._targets import Targets, carried, lambda_targets, preserved
from ._window import Boundary, Injection

Verdict = Literal["helps", "neutral", "harmful"]
# Below this relative difference a gradient counts as equal to the exact one; float32 sums over a sequence reach it.
EQUAL = 1e-4
# Change of the end-to-end cosine that counts.
MARGIN = 0.01
# Batch elements whose gradients are compared, one by one.
ELEMENTS = 32


@dataclass(frozen=True)
class BoundaryQuality:
    """Quality of the estimates of one hidden group at one boundary.

    Parameters
    ----------
    boundary : int
        Number of the window that ends here, from 0.
    group : str
        The hidden group.
    r2 : float
        Share of the true gradient's square that the estimate explains, ``1 - |M - G|^2 / |G|^2``: 1 for a
        perfect estimate, 0 for none, negative for one that is worse than none.
    cosine : float
        Cosine of estimate and true gradient.
    norm_ratio : float
        Norm of the estimate over that of the true gradient.
    """

    boundary: int
    group: str
    r2: float
    cosine: float
    norm_ratio: float


@dataclass(frozen=True)
class DNIReport:
    """What `dni_report` found; printing it gives a table with the verdict in the last line.

    Parameters
    ----------
    boundaries : tuple of BoundaryQuality
        One for each boundary that something follows, and hidden group.
    cosine : float
        Cosine of the gradients with the synthesiser and the exact ones, those of single batch elements end to end,
        over the parameters whose truncated gradient is not exact.
    truncated_cosine : float
        The same without the synthesiser.
    verdict : {'helps', 'neutral', 'harmful'}
        Whether the first exceeds the second by more than 0.01, or falls below it by more.
    estimates, gradients : dict of str to ndarray, shape (boundaries, *batch, *positions, features)
        For each group the estimates and the true gradients at all boundaries between windows, zero where an episode
        has ended.
    """

    boundaries: tuple[BoundaryQuality, ...]
    cosine: float
    truncated_cosine: float
    verdict: Verdict
    estimates: dict[str, np.ndarray] = field(repr=False)
    gradients: dict[str, np.ndarray] = field(repr=False)

    def __str__(self) -> str:
        width = max((len(row.group) for row in self.boundaries), default=5)
        lines = [f"{'boundary':>8}  {'group':<{width}}  {'R2':>8}  {'cosine':>7}  {'norm':>7}"]
        lines += [
            f"{row.boundary:>8}  {row.group:<{width}}  {row.r2:>8.3f}  {row.cosine:>7.3f}  {row.norm_ratio:>7.3f}"
            for row in self.boundaries
        ]
        lines.append(
            f"gradients against BPTT: cosine {self.cosine:.4f} with the synthesiser, "
            f"{self.truncated_cosine:.4f} without it: {self.verdict}"
        )
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw R2, cosine and norm ratio against the boundary, and estimates against true gradients.

        Parameters
        ----------
        path : path-like
            Image file to write; its suffix selects the format.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install "dni-synth[plot]"``.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError('`plot` needs matplotlib: pip install "dni-synth[plot]".') from error
        figure = Figure(figsize=(12, 3), layout="constrained")
        *curves, scatter = figure.subplots(1, 4)
        for axes, name in zip(curves, ("r2", "cosine", "norm_ratio"), strict=True):
            for group in dict.fromkeys(row.group for row in self.boundaries):
                rows = [row for row in self.boundaries if row.group == group]
                axes.plot([row.boundary for row in rows], [getattr(row, name) for row in rows], "o-", label=group)
            axes.set(xlabel="boundary", title=name.replace("_", " "))
        for group, estimate in self.estimates.items():
            scatter.plot(np.ravel(self.gradients[group]), np.ravel(estimate), ".", markersize=2, label=group)
        scatter.axline((0, 0), slope=1, color="gray", linewidth=0.8)
        scatter.set(xlabel="true gradient", ylabel="estimate", title="estimates")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right")
        figure.savefig(path)


def dni_report(
    learner: Any,
    *sequences: Any,
    step_fn: Callable[..., Any],
    chunk_size: int | None = None,
    mask: Any = None,
    context_fn: ContextFn | None = None,
    done: Any = None,
) -> DNIReport:
    """Compare the estimates with the true gradients, and the resulting gradient with BPTT.

    All states are afterwards as they were. It runs the sequence backwards window by window and as a whole, for each
    of the first 32 batch elements: meant for a small batch.

    Parameters
    ----------
    learner : DNI
        A compiled learner with a synthesiser attached.
    *sequences, step_fn, chunk_size, mask, context_fn, done
        As for `DNI.etrace_grad`; `chunk_size` must be given.

    Returns
    -------
    DNIReport
        Quality per boundary and group, the two end-to-end cosines, and a verdict.

    Raises
    ------
    RuntimeError
        If no synthesiser is attached.
    ValueError
        If the sequences cannot be cut, or `chunk_size` is missing.

    Notes
    -----
    The gradients of single batch elements are compared, not that of the batch: there elements may cancel, and what is
    left over tells more about the batch than about the estimates.
    """
    injection = attached(learner)
    if chunk_size is None:
        raise ValueError(
            "`chunk_size` must be given: the report compares windows of that length with the whole sequence."
        )
    windows = cut(
        sequences,
        step_fn,
        injection.batch_shape,
        chunk_size=chunk_size,
        mask=mask,
        done=done,
        context_fn=context_fn if injection.context_dim else None,
    )
    truth = lambda_targets(learner, windows, 1.0)
    cosine, truncated_cosine = cosines(gradient_products(learner, windows))
    live, estimates, gradients = estimates_and_truth(injection, truth)
    return DNIReport(
        boundaries=tuple(boundary_rows(live, estimates, gradients)),
        cosine=cosine,
        truncated_cosine=truncated_cosine,
        verdict=verdict_of(cosine - truncated_cosine),
        estimates=estimates,
        gradients=gradients,
    )


def verdict_of(gain: float) -> Verdict:
    """Return what a change of the cosine means."""
    if abs(gain) <= MARGIN:
        return "neutral"
    return "helps" if gain > 0 else "harmful"


def gradient_products(learner: Any, windows: Windows) -> list[np.ndarray]:
    """Return the inner products of each parameter's gradients, summed over those of single batch elements.

    Rows and columns are: with the synthesiser, without it, exact, and what truncation gets wrong.
    """
    injection: Injection = learner.injection

    def of_element(element: jax.Array) -> list[jax.Array]:
        own = dataclasses.replace(windows, live=windows.live * element)
        with injection.alone(element):
            used, truncated = (gradients(learner, own, injecting=injecting) for injecting in (True, False))
            exact = gradients(learner, windows.merged(), injecting=False)
        return [products((u, t, e, t - e)) for u, t, e in zip(used, truncated, exact, strict=True)]

    one_by_one = jnp.eye(math.prod(injection.batch_shape), dtype=bool)[:ELEMENTS]
    elements = one_by_one.reshape(-1, *injection.batch_shape)
    return [np.sum(found, axis=0) for found in brainstate.transform.for_loop(of_element, elements)]


def gradients(learner: Any, windows: Windows, *, injecting: bool) -> list[jax.Array]:
    """Return the gradient of the summed loss by each parameter, flat."""
    with preserved(carried(learner)):
        result = joint_gradient(learner, windows, learner.param_states, injecting=injecting, fitting=False)
    return [jnp.concatenate([jnp.ravel(g) for g in jax.tree.leaves(value)]) for value in result.gradients.values()]


def products(rows: Iterable[jax.Array]) -> jax.Array:
    """Return all inner products of some vectors."""
    stacked = jnp.stack(list(rows))
    return jnp.matmul(stacked, stacked.T, precision=jax.lax.Precision.HIGHEST)


def cosines(found: list[np.ndarray]) -> tuple[float, float]:
    """Return both cosines with the exact gradient, over the parameters that truncation gets wrong."""
    wrong = [table for table in found if table[3, 3] > EQUAL**2 * table[2, 2]]
    if not wrong:
        return 1.0, 1.0
    total = np.sum(wrong, axis=0)
    sizes = np.sqrt(np.diagonal(total))
    first, second = (float(total[row, 2] / size) if (size := sizes[row] * sizes[2]) else 0.0 for row in (0, 1))
    return first, second


def cosine_of(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of two arrays, 0 where one of them is zero."""
    norms = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(np.vdot(first, second)) / norms if norms else 0.0


def estimates_and_truth(
    injection: Injection, truth: Targets
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the live mask, the estimates and the true gradients at the boundaries between windows."""
    boundary = Boundary(truth.records["context"] if injection.context_dim else None, truth.records["live"])
    estimates = injection.predict(injection.params(), truth.entries, boundary)
    gradients = masked_targets(injection, truth.gradients, boundary)
    between = lambda values: {name: np.asarray(value)[1:] for name, value in values.items()}
    return np.asarray(truth.records["live"])[1:], between(estimates), between(gradients)


def boundary_rows(
    live: np.ndarray, estimates: dict[str, np.ndarray], gradients: dict[str, np.ndarray]
) -> list[BoundaryQuality]:
    """Return one row for each boundary that something follows, and group."""
    rows = []
    for boundary, alive in enumerate(live > 0):
        if alive.any():
            rows += [quality(boundary, name, estimates[name][boundary], g[boundary]) for name, g in gradients.items()]
    return rows


def quality(boundary: int, group: str, estimate: np.ndarray, target: np.ndarray) -> BoundaryQuality:
    """Return how well one estimate matches one true gradient."""
    size = float(np.linalg.norm(target))
    missing = float(np.linalg.norm(estimate - target))
    return BoundaryQuality(
        boundary=boundary,
        group=group,
        r2=1 - (missing / size) ** 2 if size else float("nan"),
        cosine=cosine_of(estimate, target),
        norm_ratio=float(np.linalg.norm(estimate)) / size if size else float("nan"),
    )
