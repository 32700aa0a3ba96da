"""The learner that users hold: calls, and whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from jax import Array

from .._learner.learner import StepLearner
from .evolve import etrace_evolve
from .fit import etrace_fit
from .grad import etrace_grad


class ETraceLearner(StepLearner):
    """Online learning of an unmodified model by eligibility traces.

    Calling the learner runs the model one step (or, on `MultiStepData`, one window) and advances the traces. The call
    is differentiable: under `brainstate.transform.grad` the parameters get the rule's gradient, in single-step mode

        dL/dw = L^t . e^t + what the step's exact gradient holds beyond the trace,

    in multi-step mode

        dL/dw = exact gradient inside the window + dL/dh_entry . e_entry,

    with e the trace of the rule, L^t = dL^t/dh^t (or what the configuration puts in its place), h the hidden states.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model, initialised; any callable module over `ParamState` and `HiddenState`.
    config : ETraceConfig, optional
        The rule. Default: the default coordinate, D-RTRL.
    vjp_method : {'single-step', 'multi-step'}
        What a call is; windows need 'multi-step'. Default 'single-step'.
    traced : sequence of paths, or callable, optional
        Parameters that may have traces: their paths, or a predicate of path and state. The others are learned by the
        gradient inside the window only. Default: all.
    hidden_groups : {'auto', 'joint'}
        'joint' makes all hidden states one group, so that stacked layers get exact credit; for the scope 'sparse_n' and
        the factorization 'random_projection'. Default 'auto'.
    trace_dtype : dtype, optional
        Dtype of the traces. Default: that of the operations' outputs.
    random_feedback_key, projection_key : jax key or int, optional
        Seeds of the feedback matrices and of UORO's signs. Default 0.
    error_signal : {'hidden', 'output'}
        What random feedback projects: 'hidden', dL/dh through a square matrix; 'output', the error dL/dy at the model's
        output through a matrix of shape (hidden, output), as in direct feedback alignment; single steps only. Default
        'hidden'.
    trace_limit : int, optional
        Bytes that the traces may take; a larger need is refused before anything is allocated. Default: no limit.

    Raises
    ------
    ValueError
        If a value is not allowed, or `vjp_method` does not fit the learning signal: 'modulatory' belongs to single
        steps, 'bootstrapped' to windows.

    References
    ----------
    Williams and Zipser (1989), doi:10.1162/neco.1989.1.2.270; Bellec et al. (2020), doi:10.1038/s41467-020-17236-y.
    """

    def etrace_grad(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        mask: Any = None,
        chunk_size: int | None = None,
        weights: Any = None,
        reduction: str = "mean",
        loss_output: str = "per_step",
        has_aux: bool = False,
        return_value: bool = False,
        trace_update: Literal["chunkwise", "per_step"] = "chunkwise",
    ) -> Any:
        """Accumulate the rule's gradient of a loss over a sequence, while the model runs.

        Parameters
        ----------
        *sequences : pytrees of arrays, shape (time, ...)
            Sliced in step along time and handed to `step_fn`.
        step_fn : callable
            Called with one slice of each sequence; calls this learner exactly once, and returns the loss: a scalar, or
            shape (chunk_size,) for windows, whose inputs it wraps in `MultiStepData`.
        mask : array, shape (time,), optional
            Weights of the losses; the model and the traces advance at every step. Default: ones.
        chunk_size : int, optional
            Steps per window, for a 'multi-step' learner. Default None: single steps.
        weights : dict of path to ParamState, optional
            What to differentiate. Default: `param_states`.
        reduction : {'mean', 'sum'}
            'mean' divides once by ``max(sum(mask), 1)``.
        loss_output : {'per_step', 'masked', 'scalar'}
            What `return_value` returns: losses of shape (time,) before or after the mask, or the reduced objective.
        has_aux : bool
            Whether `step_fn` returns ``(loss, aux)``; aux is stacked over calls.
        return_value : bool
            Whether to return the losses too.
        trace_update : {'chunkwise', 'per_step'}
            'chunkwise' forms the same gradient a chunk of steps at a time, where the rule allows; see `chunk_length`.

        Returns
        -------
        gradients, or tuple of gradients, losses, aux
            Arranged as by `brainstate.transform.grad`; gradients are a dict like `weights`.

        Raises
        ------
        TypeError
            If `step_fn` is missing, `chunk_size` is not an int, or a sequence is wrapped in `MultiStepData`.
        ValueError
            If lengths or shapes do not fit, or a value is not allowed.

        Examples
        --------
        >>> import brainstate, jax.numpy as jnp, etrace_engines
        >>> model = brainstate.nn.GRUCell(3, 4)
        >>> learner = etrace_engines.compile(model, "D_RTRL", jnp.zeros((2, 3)), batch_size=2)
        >>> gradients, loss = learner.etrace_grad(
        ...     jnp.ones((5, 2, 3)), step_fn=lambda x: (learner(x) ** 2).mean(), return_value=True, loss_output="scalar"
        ... )
        >>> loss.shape, sorted(gradients) == sorted(learner.param_states)
        ((), True)
        """
        return etrace_grad(
            self,
            sequences,
            step_fn=step_fn,
            mask=mask,
            chunk_size=chunk_size,
            weights=weights,
            reduction=reduction,
            loss_output=loss_output,
            has_aux=has_aux,
            return_value=return_value,
            trace_update=trace_update,
        )

    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> Any:
        """Run over a sequence without a loss: states and traces (and their filters) advance.

        Parameters
        ----------
        *sequences : pytrees of arrays, shape (time, ...)
            Sliced along time; the learner's inputs, unless `step_fn` makes them.
        step_fn : callable, optional
            Called with one slice of each sequence; calls this learner once. Default: the learner.
        chunk_size : int, optional
            Steps per window, for a 'multi-step' learner.
        return_outputs : bool
            Whether to return the outputs, stacked over time (of `step_fn`: over calls).

        Returns
        -------
        pytree of arrays, or None
            The outputs, if asked for.

        Raises
        ------
        TypeError, ValueError
            As `etrace_grad`.
        """
        return etrace_evolve(self, sequences, step_fn=step_fn, chunk_size=chunk_size, return_outputs=return_outputs)

    def etrace_fit(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        optimizer: Any,
        mask: Any = None,
        chunk_size: int | None = None,
        epochs: int = 1,
        reset: bool = True,
        progress: bool = False,
    ) -> Array:
        """Train on a sequence: gradients as by `etrace_grad`, applied when `config.update_schedule` says so.

        Parameters
        ----------
        *sequences, step_fn, mask, chunk_size
            As for `etrace_grad`.
        optimizer : optax.GradientTransformation, or an object with ``update(gradients)`` such as
        braintools.optim.Optimizer
            Applied to the mean gradient since the last update: after every step ('per_step'), every
            `config.window_size` steps ('window'), or once a sequence ('sequence_end'). A braintools optimizer must be
            registered on `param_states`.
        epochs : int
            Passes over the sequences. Default 1.
        reset : bool
            Whether each pass starts with `reset_state`. Default True.
        progress : bool
            Whether to show a progress bar over the passes; needs `tqdm`. Default False.

        Returns
        -------
        array, shape (epochs, time)
            The losses.

        Raises
        ------
        TypeError, ValueError
            As `etrace_grad`; a ValueError too if the schedule's window does not divide the sequence.

        Examples
        --------
        >>> import brainstate, jax, jax.numpy as jnp, etrace_engines
        >>> model = brainstate.nn.GRUCell(3, 4)
        >>> learner = etrace_engines.compile(model, "D_RTRL", jnp.zeros((2, 3)), batch_size=2)
        >>> class Descent:
        ...     def update(self, gradients):
        ...         for path, state in learner.param_states.items():
        ...             state.value = jax.tree.map(lambda p, g: p - 0.1 * g, state.value, gradients[path])
        >>> losses = learner.etrace_fit(
        ...     jnp.ones((5, 2, 3)), step_fn=lambda x: ((learner(x) - 1) ** 2).mean(), optimizer=Descent(), epochs=3
        ... )
        >>> losses.shape, bool(losses[-1].mean() < losses[0].mean())
        ((3, 5), True)
        """
        return etrace_fit(
            self,
            sequences,
            step_fn=step_fn,
            optimizer=optimizer,
            mask=mask,
            chunk_size=chunk_size,
            epochs=epochs,
            reset=reset,
            progress=progress,
        )
