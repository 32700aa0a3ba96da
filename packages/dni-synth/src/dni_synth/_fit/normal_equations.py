"""Closed-form fits of the affine synthesiser: ridge regression and recursive least squares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from .._groups import Values
from .._options import mixing_of
from .._sequence import ContextFn, cut
from .._signature import record_signature
from .._synthesisers.affine import Affine
from .._synthesisers.features import conditional
from .._targets import lambda_targets
from .._window import Boundary, Injection, align
from .regression import masked_targets, squared_error
from .separate import attached

Moments = dict[str, tuple[jax.Array, jax.Array]]


def moments(injection: Injection, values: Values, boundary: Boundary, targets: dict[str, jax.Array]) -> Moments:
    """Return X'X and X'G of each group, X the features and a one, over the batch elements that go on."""
    found = {}
    for name, hidden in injection.gather(values).items():
        features = conditional(hidden, boundary.context)
        design = jnp.concatenate([features, jnp.ones_like(features[..., :1])], axis=-1)
        if boundary.live is not None:
            design = design * align(boundary.live, design)
        rows = design.reshape(-1, design.shape[-1])
        found[name] = rows.T @ rows, rows.T @ targets[name].reshape(rows.shape[0], -1)
    return found


def solve(injection: Injection, sums: Moments, regularization: float) -> None:
    """Write the minimiser of |X W - G|^2 + regularization |W|^2 into the synthesiser."""
    states = injection.synthesizer.states_dict()
    for name, (gram, cross) in sums.items():
        # Rounding may make the smallest eigenvalues negative by more than the regularization; a Cholesky factor fails.
        eigenvalues, basis = jnp.linalg.eigh(gram)
        solution = basis @ ((basis.T @ cross) / (jnp.maximum(eigenvalues, 0) + regularization)[:, None])
        states[f"{name}/weight"].value = solution[:-1].astype(cross.dtype)
        states[f"{name}/bias"].value = solution[-1].astype(cross.dtype)


def check_affine(synthesizer: Any, user: str) -> None:
    """Refuse a synthesiser that is not linear in its parameters."""
    if not isinstance(synthesizer, Affine):
        raise TypeError(f"`{user}` needs an Affine synthesiser, got {type(synthesizer).__name__}.")


class RecursiveLeastSquares:
    r"""Fit an affine synthesiser in closed form at every boundary of a joint fit.

    .. math:: W_n = (A_n + \rho I)^{-1} B_n, \qquad A_n = f A_{n-1} + X_n^T X_n, \qquad B_n = f B_{n-1} + X_n^T G_n

    With a forgetting factor of 1 the result after any number of boundaries is the ridge regression on all of them.
    Pass it as `optimizer` to `attach`.

    Parameters
    ----------
    forgetting : float, default 0.99
        ``f``, in (0, 1]: weight of the past at each boundary. Below 1 it follows a model that learns.
    regularization : float, default 1e-3
        ``rho``, positive.

    Raises
    ------
    ValueError
        If a number is out of range.

    Notes
    -----
    It keeps the normal equations rather than their inverse: the cost is one solve of size (inputs + 1) for each
    boundary, and there is no drift of a recursively updated inverse in float32.

    References
    ----------
    Haykin (2002), Adaptive Filter Theory, 4th edition, chapter 9.

    Examples
    --------
    >>> import dni_synth
    >>> dni_synth.RecursiveLeastSquares(forgetting=0.95).forgetting
    0.95
    """

    def __init__(self, forgetting: float = 0.99, regularization: float = 1e-3) -> None:
        if not 0 < forgetting <= 1:
            raise ValueError(f"`forgetting` must be in (0, 1], got {forgetting}.")
        if regularization <= 0:
            raise ValueError(f"`regularization` must be positive, got {regularization}.")
        self.forgetting = forgetting
        self.regularization = regularization
        self._sums: brainstate.State | None = None

    def prepare(self, injection: Injection) -> None:
        """Create the sums for an attached synthesiser; `attach` calls it.

        Parameters
        ----------
        injection : Injection
            What applies the synthesiser.

        Raises
        ------
        TypeError
            If the synthesiser is not `Affine`.
        """
        check_affine(injection.synthesizer, "RecursiveLeastSquares")
        states = injection.synthesizer.states_dict()
        sums = {}
        for group in injection.groups:
            inputs, outputs = states[f"{group.name}/weight"].value.shape
            sums[group.name] = jnp.zeros((inputs + 1,) * 2, group.dtype), jnp.zeros((inputs + 1, outputs), group.dtype)
        self._sums = brainstate.ShortTermState(sums)

    def states_dict(self) -> dict[str, brainstate.State]:
        """Return the sums of the normal equations.

        Returns
        -------
        dict of str to State
            One state, or none before `prepare`.
        """
        return {} if self._sums is None else {"normal_equations": self._sums}

    def fit_boundary(
        self, injection: Injection, values: Values, boundary: Boundary, targets: dict[str, jax.Array]
    ) -> None:
        """Add one boundary and solve.

        Parameters
        ----------
        injection : Injection
            What applies the synthesiser.
        values : mapping of path to Array
            The states at the boundary.
        boundary : Boundary
            Context and live mask.
        targets : mapping of str to Array
            The gradients to predict, by group.
        """
        if self._sums is None:
            raise RuntimeError("`RecursiveLeastSquares` must be passed to `attach` before a fit.")
        new = moments(injection, values, boundary, targets)
        self._sums.value = jax.tree.map(lambda old, add: self.forgetting * old + add, self._sums.value, new)
        solve(injection, self._sums.value, self.regularization)


def fit_ridge(
    learner: Any,
    *sequences: Any,
    step_fn: Callable[..., Any],
    chunk_size: int | None = None,
    mask: Any = None,
    context_fn: ContextFn | None = None,
    done: Any = None,
    target: str = "mc",
    lam: float | None = None,
    regularization: float = 1e-6,
) -> jax.Array:
    r"""Fit an affine synthesiser in closed form to all boundaries of a sequence.

    .. math:: \min_W \; |X W - G|^2 + \rho |W|^2

    X has a row for each batch element, position and boundary that goes on: the features of `Affine` and a one. G holds
    the gradients of all later loss, exact ones by default. All states but the synthesiser's stay as they are.

    Parameters
    ----------
    learner : DNI
        A compiled learner with an `Affine` synthesiser attached.
    *sequences, step_fn, chunk_size, mask, context_fn, done
        As for `DNI.etrace_grad`.
    target : {'mc', 'bootstrap', 'lambda'}, default 'mc'
        What to regress on; see `DNI.etrace_grad`.
    lam : float, optional
        In [0, 1], with ``target='lambda'``.
    regularization : float, default 1e-6
        ``rho``, positive.

    Returns
    -------
    Array, shape ()
        The error after the fit: sum over groups of the mean squared difference.

    Raises
    ------
    RuntimeError
        If no synthesiser is attached.
    TypeError
        If the synthesiser is not `Affine`.
    ValueError
        If the sequences cannot be cut or the options are unknown.
    """
    injection = attached(learner)
    check_affine(injection.synthesizer, "fit_ridge")
    windows = cut(
        sequences,
        step_fn,
        injection.batch_shape,
        chunk_size=chunk_size,
        mask=mask,
        done=done,
        context_fn=context_fn if injection.context_dim else None,
    )
    targets = lambda_targets(learner, windows, mixing_of(target, lam))
    context = targets.records["context"] if injection.context_dim else None
    boundary = Boundary(context, targets.records["live"])
    # The windows' axis is one more batch axis: the maps are shared over both.
    gradients = masked_targets(injection, targets.gradients, boundary)
    solve(injection, moments(injection, targets.entries, boundary, gradients), regularization)
    record_signature(learner, windows)
    return squared_error(injection.predict(injection.params(), targets.entries, boundary), gradients, boundary)
