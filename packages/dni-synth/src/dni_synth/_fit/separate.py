"""The fit by itself: the synthesiser learns while the model's parameters stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import etrace_engines as ee

from .._concrete import is_traced
from .._sequence import Windows, check_chunks, run_window
from .._signature import record_signature
from .._targets import carried, preserved
from .._window import Boundary, Injection
from .regression import GradientRegressor, Optimizer, Regressor, regress


def sum_of_squares(output: Any) -> jax.Array:
    """Return the sum of the squares of everything in an output."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(output)), start=jnp.zeros(()))


def train_synthetic_gradient(
    learner: Any,
    inputs: Any,
    *,
    chunk_size: int = 1,
    loss_fn: Callable[[Any], jax.Array] | None = None,
    optimizer: Optimizer | None = None,
    lr: float = 0.01,
    epochs: int = 1,
    reset: bool = True,
    batch_size: int | None = None,
) -> list[float]:
    r"""Fit the synthesiser against the learner's own returned hidden cotangent.

    For every window from step a to b, in order, the gradient of its loss with respect to the hidden state at a is

    .. math:: G = \partial_{h^a} [ L + \langle M(h^b), h^b \rangle ]

    and the synthesiser takes one step towards it on :math:`|M(h^a) - G|^2`, with G detached. The model's parameters
    do not move. After the last window it takes one more step at the final state, whose future gradient is zero.

    Parameters
    ----------
    learner : DNI
        A compiled learner with a synthesiser attached.
    inputs : array, shape (time, ...)
        The sequence, consumed one window at a time. Its length must be a multiple of `chunk_size`.
    chunk_size : int, default 1
        Steps per window. It must be the window length that the learner will be driven with: boundaries move with it.
    loss_fn : callable, optional
        ``loss_fn(output) -> scalar`` of a window's output, with a leading axis of steps if `chunk_size` is above 1. It
        must be the objective that the learner will be trained on: the synthesiser predicts a derivative of this
        function. Default: sum of squares.
    optimizer : braintools.optim.Optimizer, optional
        Already registered on ``learner.synthesizer.states_dict()``. If None, plain gradient descent with rate `lr`.
    lr : float, default 0.01
        Learning rate of the plain gradient descent; ignored when `optimizer` is given.
    epochs : int, default 1
        Passes over `inputs`.
    reset : bool, default True
        Whether to give model states and traces their values from compilation before each epoch.
    batch_size : int, optional
        Checked against the learner's own batch size, to which the states are reset.

    Returns
    -------
    list of float
        For each epoch the mean of the errors at all window entries and at the final state, each taken before its
        regression step: the sum over hidden groups of the mean squared difference.

    Raises
    ------
    RuntimeError
        If no synthesiser is attached to `learner`.
    ValueError
        If `chunk_size` is below 1 or does not divide the length of `inputs`, or `batch_size` is not the learner's.

    Notes
    -----
    All windows and all epochs run as one compiled program. The learner's states are afterwards as they were before.
    Inside a jitted function the errors are traced scalars.

    References
    ----------
    Jaderberg et al. (2017), Decoupled Neural Interfaces using Synthetic Gradients, arXiv:1608.05343, section 2.1.

    Examples
    --------
    >>> import brainstate, jax, jax.numpy as jnp, etrace_engines, dni_synth
    >>> brainstate.random.seed(0)
    >>> model = brainstate.nn.ValinaRNNCell(2, 4)
    >>> learner = etrace_engines.compile(model, dni_synth.DNI, jnp.ones((1, 2)), batch_size=1)
    >>> learner.attach(dni_synth.Affine())
    >>> inputs = jax.random.normal(jax.random.key(0), (8, 1, 2))
    >>> errors = dni_synth.train_synthetic_gradient(learner, inputs, chunk_size=2, epochs=20, lr=0.05)
    >>> errors[-1] < errors[0]
    True
    """
    injection = attached(learner)
    length = int(np.shape(jax.tree.leaves(inputs)[0])[0])
    check_chunks(length, chunk_size)
    check_batch(injection, batch_size)
    if injection.context_dim:
        raise ValueError(
            f"the synthesiser takes {injection.context_dim} context features, which `train_synthetic_gradient` cannot "
            "supply. Fit it with `learner.etrace_grad(..., synth='fit', context_fn=...)`."
        )
    loss_fn = sum_of_squares if loss_fn is None else loss_fn
    windows = windows_of(learner, inputs, length, chunk_size, loss_fn)
    regressor = GradientRegressor(optimizer, lr)
    states = carried(learner)
    with preserved(states):
        errors = brainstate.transform.for_loop(
            lambda _: fit_epoch(learner, windows, regressor, reset=reset), jnp.arange(epochs)
        )
    record_signature(learner, windows, loss_fn)
    if is_traced(errors):
        return list(errors)
    return [float(error) for error in np.asarray(errors)]


def compiled(learner: Any) -> Injection:
    """Return the learner's injection, which exists once it is compiled."""
    injection: Injection | None = getattr(learner, "injection", None)
    if injection is None:
        raise RuntimeError(
            "`learner` must be a compiled dni_synth.DNI. Call `learner.compile_graph(x0)`, or make one with "
            "`etrace_engines.compile(model, dni_synth.DNI, x0)`."
        )
    return injection


def attached(learner: Any) -> Injection:
    """Return the learner's injection if a synthesiser is attached."""
    injection = compiled(learner)
    if not injection.attached:
        raise RuntimeError(
            "no synthesiser is attached to `learner`. Call `learner.attach(dni_synth.Affine())` after compiling it."
        )
    return injection


def check_batch(injection: Injection, batch_size: int | None) -> None:
    """Refuse a batch size that the learner was not compiled for."""
    if batch_size is not None and (batch_size,) != injection.batch_shape:
        raise ValueError(
            f"`batch_size` must be that of the compiled learner, got {batch_size}, and its states have the batch axes "
            f"{injection.batch_shape}. Leave it out, or compile the learner for this batch size."
        )


def windows_of(learner: Any, inputs: Any, length: int, chunk_size: int, loss_fn: Callable[[Any], jax.Array]) -> Windows:
    """Cut the inputs into windows whose loss is one number."""
    count = length // chunk_size
    single = chunk_size == 1
    slices = inputs
    if not single:
        slices = jax.tree.map(lambda a: jnp.reshape(a, (count, chunk_size, *jnp.shape(a)[1:])), inputs)

    def step_fn(window: Any) -> jax.Array:
        return loss_fn(learner(window if single else ee.MultiStepData(window)))

    live = jnp.ones((count, *learner.injection.batch_shape))
    weights = jnp.ones((count, 1))
    return Windows((slices,), weights, live, step_fn, None, None if single else chunk_size, scalar=True)


def fit_epoch(learner: Any, windows: Windows, regressor: Regressor, *, reset: bool) -> jax.Array:
    """Fit over all windows once and return the mean error."""
    injection: Injection = learner.injection
    boundary = Boundary()
    if reset:
        learner.reset_state()

    def fit_window(slices: tuple[Any, ...], weights: jax.Array) -> jax.Array:
        values = injection.values()
        result = run_window(learner, windows, slices, weights, injection.states)
        return regress(injection, regressor, values, boundary, result.gradients)

    errors = brainstate.transform.for_loop(fit_window, windows.slices, windows.weights)
    final = injection.values()
    nothing = jax.tree.map(jnp.zeros_like, final)
    last = regress(injection, regressor, final, boundary, nothing)
    mean: jax.Array = (jnp.sum(errors) + last) / (errors.shape[0] + 1)
    return mean
