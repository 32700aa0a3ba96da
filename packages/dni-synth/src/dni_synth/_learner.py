"""The learner with a synthesiser: a window's gradient plus what the synthesiser predicts from its end on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

import etrace_engines as ee
from etrace_config import ETraceConfig

from ._check import Check, check_use, check_window_of, watched
from ._credit import Credit, check_names, traced_by
from ._fit.joint import joint_gradient
from ._fit.regression import GradientRegressor, Optimizer, Regressor
from ._fit.separate import attached, compiled
from ._groups import Path
from ._options import check_options, mixing_of, packed
from ._protocol import Synthesizer
from ._sequence import ContextFn, cut, window_length
from ._signature import Signature, record_signature
from ._synthesisers.zero import Zero
from ._window import Boundary, Injection, Schedule, warn_uncovered


class DNI(ee.ParamDimVjpAlgorithm):
    r"""Learn in windows, with a synthetic gradient for everything that follows a window.

    For a window from step a to b with loss L and exit state h^b the gradient of a *plain* parameter p is

    .. math:: \frac{\partial}{\partial p} [ L + \langle c, h^b \rangle ], \qquad c = \mathrm{stopgrad}(M(h^b))

    where the synthesiser M predicts the gradient of all later loss with respect to h^b. The gradient of a *traced*
    parameter is that of the rule without c, bit for bit: its trace carries the credit of earlier windows already.

    Parameters
    ----------
    model : brainstate.nn.Module
        An unmodified model.
    config : ETraceConfig, optional
        The rule, with ``learning_signal='bootstrapped'``; by default D-RTRL with that signal.
    synthesizer : Synthesizer, optional
        Attached once the learner is compiled.
    vjp_method : str, default 'multi-step'
        'single-step' is refused: it has no window whose end could be credited.
    traced : optional
        Which parameters are traced, as for every learner of ``etrace_engines``; ``traced=()`` is classical DNI.
    credit : {'trace', 'synthetic'} or mapping of path to these, optional
        Where the credit of a parameter across window boundaries comes from: its trace (the default), or the
        synthesiser alone, which drops the trace. Not together with `traced`.
    include_other_states : bool, default False
        Whether carried float states that are not hidden states get an estimate too. Otherwise a warning names them.
    check : {'error', 'warn', 'off'}, default 'error'
        What happens when the synthesiser is used for another loss or window length than it was fitted for. Moved
        parameters are a warning unless it is 'off'.
    **options
        Passed on to ``etrace_engines.ParamDimVjpAlgorithm``.

    Raises
    ------
    ValueError
        If `vjp_method` is 'single-step', `config` has another learning signal, `credit` is unknown, or both `credit`
        and `traced` are given.

    Notes
    -----
    `etrace_grad` compares the loss and the window length with those of the fit wherever it is called, also while a
    program is traced. A gradient taken around a plain call shows its loss only as values: it is compared outside
    compiled programs, with the fit of `train_synthetic_gradient`. Moved parameters are noticed at the next use outside.

    References
    ----------
    Jaderberg et al. (2017), Decoupled Neural Interfaces using Synthetic Gradients, arXiv:1608.05343, section 2.1.
    Deviation: parameters with an eligibility trace do not receive the estimate, which would credit them twice.

    Examples
    --------
    >>> import brainstate, jax.numpy as jnp, etrace_engines, dni_synth
    >>> model = brainstate.nn.ValinaRNNCell(2, 4)
    >>> learner = etrace_engines.compile(model, dni_synth.DNI, jnp.ones((1, 2)), batch_size=1)
    >>> learner.attach(dni_synth.Affine())
    >>> sorted(learner.synthesizer.states_dict())
    ['h/bias', 'h/weight']
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        config: ETraceConfig | None = None,
        *,
        synthesizer: Synthesizer | None = None,
        vjp_method: str = "multi-step",
        traced: Any = None,  # whatever the engines accept as a filter
        credit: Credit | Mapping[Path, Credit] | None = None,
        include_other_states: bool = False,
        check: Check = "error",
        **options: Any,
    ) -> None:
        if vjp_method == "single-step":
            raise ValueError(
                "`vjp_method` must be 'multi-step', got 'single-step': a single-step gradient has no window end at "
                "which an estimate could be injected, so a synthesiser would change nothing."
            )
        config = ETraceConfig(learning_signal="bootstrapped") if config is None else config
        if config.learning_signal != "bootstrapped":
            raise ValueError(
                f"`config` must have learning_signal='bootstrapped', got '{config.learning_signal}'. Use "
                "`config.replace(learning_signal='bootstrapped')`."
            )
        check_options(check=check)
        self._credit = credit
        super().__init__(model, config, vjp_method=vjp_method, traced=traced_by(credit, traced), **options)
        self._include_other_states = include_other_states
        self.check = check
        self.injection: Injection | None = None
        self._pending = synthesizer

    def compile_graph(self, *inputs: Any, **options: Any) -> DNI:
        """Compile the model's step, then attach the synthesiser given at construction.

        Parameters
        ----------
        *inputs : array
            Example inputs of one step.
        **options
            Passed on, such as ``batch_size``.

        Returns
        -------
        DNI
            The learner itself.
        """
        before = self.injection
        super().compile_graph(*inputs, **options)
        check_names(self._credit, self.param_states)
        if before is not None and before.attached:  # compiled again, such as for another batch size
            self._install(before.renewed(self))
            return self
        self.injection = Injection(self, Zero(), attached=False)
        if self._pending is not None:
            self.attach(self._pending)
        return self

    def _install(self, injection: Injection) -> None:
        self.injection = injection
        self.exit_estimator = injection.estimate_hidden
        self.exit_estimator_other = injection.estimate_other if injection.kinds[1] else None

    @property
    def synthesizer(self) -> Synthesizer | None:
        """The attached synthesiser, or None."""
        return self.injection.synthesizer if self.injection is not None and self.injection.attached else None

    @property
    def signature(self) -> Signature | None:
        """What the synthesiser was fitted for, or None before a fit."""
        return None if self.injection is None or self.injection.fitted is None else self.injection.fitted.signature

    @property
    def fit_error(self) -> jax.Array:
        """Mean error of the last joint fit, each boundary's taken before its regression step, shape ()."""
        error: jax.Array = attached(self).fit_error.value
        return error

    @property
    def synthesizer_states(self) -> dict[str, brainstate.State]:
        """Every state of the synthesiser and of its fit by name, but an optimizer's own: what to map in an ensemble."""
        return attached(self).own_states()

    def attach(
        self,
        synthesizer: Synthesizer,
        *,
        context_dim: int = 0,
        optimizer: Optimizer | Regressor | None = None,
        lr: float = 0.01,
        schedule: Schedule | None = None,
        key: jax.Array | None = None,
    ) -> None:
        """Attach a synthesiser, in place of the one there is.

        Its parameters are created for the learner's hidden groups, starting at an estimate of zero, so nothing changes
        before it is fitted. They stay out of the model's states: an optimizer of the model never moves them.

        Parameters
        ----------
        synthesizer : Synthesizer
            What predicts. One that holds parameters already keeps them, if they fit.
        context_dim : int, default 0
            Number of context features that it gets besides the hidden state.
        optimizer : braintools.optim.Optimizer or RecursiveLeastSquares, optional
            Fits the synthesiser in ``etrace_grad(..., synth='fit')``; it is registered on its parameters here.
        lr : float, default 0.01
            Rate of the plain gradient descent that is used without `optimizer`.
        schedule : Schedule, optional
            Warm-up, ramp and freeze, counted in joint-fit calls; by default none of them.
        key : Array, optional
            Random key of the synthesiser's parameters, by default ``jax.random.key(0)``.

        Raises
        ------
        TypeError
            If `synthesizer` lacks a method of the protocol.
        RuntimeError
            If the learner is not compiled.
        ValueError
            If the synthesiser holds parameters for other hidden groups; both sides are named.
        """
        if not isinstance(synthesizer, Synthesizer):
            raise TypeError(
                f"`synthesizer` must have the methods init, apply and states_dict, got {type(synthesizer).__name__}."
            )
        compiled(self)
        injection = Injection(
            self,
            synthesizer,
            regressor=optimizer if isinstance(optimizer, Regressor) else GradientRegressor(optimizer, lr),
            context_dim=context_dim,
            schedule=schedule,
            include_other_states=self._include_other_states,
            key=key,
        )
        injection.regressor.prepare(injection)
        self._install(injection)
        warn_uncovered(injection, self)

    def update(self, *args: Any, modulator: None = None) -> Any:
        """Run one step or one window.

        Parameters
        ----------
        *args : array or MultiStepData
            Inputs of one step, or of a window of steps.
        modulator : None
            Of other learning signals; there is none here.

        Returns
        -------
        pytree
            What the model returns, for a window stacked over its steps.
        """
        injection = self.injection
        if injection is None:
            return super().update(*args, modulator=modulator)
        if injection.answer is not None:
            return injection.answer[0]
        steps = window_length(args)
        check_window_of(injection, steps, self.check)
        outputs = injection.isolated(super().update(*args, modulator=modulator), windowed=steps is not None)
        injection.note_outputs(outputs, windowed=steps is not None)
        return watched(self, outputs, steps, self.check)

    def reset_state(self, *args: Any, **options: Any) -> None:
        """Give the model's states and the traces their values from compilation, in place.

        Parameters
        ----------
        *args, **options
            Passed on.
        """
        super().reset_state(*args, **options)
        if self.injection is not None:
            self.injection.entry.value = self.injection.no_entry()

    @contextlib.contextmanager
    def boundary(self, *, context: jax.Array | None = None, done: jax.Array | None = None) -> Iterator[None]:
        """Tell what is known at the exit of the windows called in this block.

        Parameters
        ----------
        context : Array, shape (*batch, context_dim), optional
            The synthesiser's context.
        done : Array of bool, shape (*batch), optional
            Where the episode ends with the window, so that nothing is injected.

        Yields
        ------
        None
        """
        injection = attached(self)
        live = None if done is None else 1 - jnp.asarray(done, injection.dtype)
        with injection.at(Boundary(context, live)):
            yield

    def etrace_grad(  # type: ignore[override]  # windows always carry the trace as a whole: no `trace_update`
        self,
        *sequences: Any,
        step_fn: Callable[..., Any],
        mask: Any = None,
        chunk_size: int | None = None,
        weights: Mapping[Path, brainstate.State] | None = None,
        reduction: str = "mean",
        loss_output: str = "per_step",
        has_aux: bool = False,
        return_value: bool = False,
        synth: str = "use",
        context_fn: ContextFn | None = None,
        done: Any = None,
        target: str = "bootstrap",
        lam: float | None = None,
        check: Check | None = None,
    ) -> Any:
        r"""Return the gradient over a sequence of windows, and fit the synthesiser in the same pass if asked to.

        Parameters
        ----------
        *sequences : pytree of array, shape (time, ...)
            Cut into windows of `chunk_size` steps.
        step_fn : callable
            ``step_fn(*slices)`` calls this learner once. For a `chunk_size` above 1 it gets slices of that many steps,
            wraps the model's input in ``etrace_engines.MultiStepData`` and returns a loss for each step; otherwise it
            gets slices of one step and returns a scalar.
        mask : array, shape (time,), optional
            Weights of the steps' losses. Model and trace advance at every step.
        chunk_size : int, optional
            Steps per window; None is 1.
        weights : mapping of path to State, optional
            What to differentiate, by default ``param_states``.
        reduction : {'mean', 'sum'}, default 'mean'
            'mean' divides losses and gradients once by ``max(sum(mask), 1)``. The synthesiser always predicts the
            gradient of the sum, so that it does not depend on the length of a sequence.
        loss_output : {'per_step', 'masked', 'scalar'}, default 'per_step'
            Form of the returned losses: raw, times their weights, or reduced.
        has_aux : bool, default False
            Whether `step_fn` returns a pair of losses and auxiliary data.
        return_value : bool, default False
            Whether to return the losses.
        synth : {'use', 'fit', 'off'}, default 'use'
            'use' injects the estimates; 'fit' also takes one regression step at every window's entry, towards the
            entry state's gradient from the same backward pass; 'off' is truncation.
        context_fn : callable, optional
            ``context_fn(*slices)`` returns the context at a window's exit from its slices, shape (*batch, context_dim).
        done : array of bool, shape (windows,) or (windows, *batch), optional
            Where an episode ends with a window: its estimate is zero, in use and in the fit. By default the exits
            after which no step has a weight; so in any case the last one. A continuing stream passes ``False`` there.
        target : {'bootstrap', 'lambda', 'mc'}, default 'bootstrap'
            What a fit regresses on: gradient of the window plus the synthesiser's own estimate at its end; the mixture

            .. math:: G_k = \partial_{h^{a_k}} [L_k + \langle (1-\lambda) M(h^{b_k}) + \lambda G_{k+1}, h^{b_k} \rangle]

            with `lam`; or the exact gradient (lambda = 1). The latter two take one more pass in each direction.
        lam : float, optional
            In [0, 1], with ``target='lambda'``.
        check : {'error', 'warn', 'off'}, optional
            For this call instead of the learner's.

        Returns
        -------
        gradients, or a tuple
            ``gradients`` | ``(gradients, losses)`` | ``(gradients, aux)`` | ``(gradients, losses, aux)``, with
            gradients by path as in ``param_states``.

        Raises
        ------
        RuntimeError
            If `synth` is 'fit' and no synthesiser is attached.
        ValueError
            If an option is unknown, `chunk_size` does not divide the sequences, or the synthesiser is used for
            another loss or window length than it was fitted for.

        References
        ----------
        Pemberton and Costa (2024), BP(lambda): Online learning via synthetic gradients, arXiv:2401.07044.
        """
        injection = compiled(self)
        check_options(synth=synth, target=target, reduction=reduction, loss_output=loss_output)
        check = self.check if check is None else check
        check_options(check=check)
        mixing = mixing_of(target, lam)
        if synth == "fit":
            attached(self)
        windows = cut(
            sequences,
            step_fn,
            injection.batch_shape,
            chunk_size=chunk_size,
            mask=mask,
            done=done,
            context_fn=context_fn if injection.context_dim else None,
            has_aux=has_aux,
        )
        if synth == "use":
            check_use(self, windows, check)
        result = joint_gradient(
            self,
            windows,
            self.param_states if weights is None else weights,
            injecting=synth != "off",
            fitting=synth == "fit",
            mixing=mixing,
        )
        if synth == "fit":
            injection.fit_error.value = result.error
            record_signature(self, windows)
        return packed(result, windows, reduction, loss_output, return_value)
