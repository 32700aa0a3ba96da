"""The learner: a model, its compiled rule, and the states of its traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from etrace_config import ETraceConfig

from .._compat import aval, is_float
from .._data import MultiStepData
from .._engine.build import build_engine, follow
from .._graph.graph import Graph, Traced, build_graph, current_inputs
from .._graph.groups import HiddenGroup
from .._graph.lift import Path, StateLeaf
from .._graph.report import Report, make_report
from .._sequence.evolve import etrace_evolve
from .._sequence.grad import etrace_grad
from .checks import check_call, check_options
from .recording import Recording, recorded_step, start_recording
from .signals import expand_modulator, feedback_matrices, project
from .states import read_states, write_states
from .step import Arrays, Result, Rule, Signal, make_rule, single_step
from .window import Estimator, window

VjpMethod = Literal["single-step", "multi-step"]
ExitEstimator = Callable[[dict[Path, Any]], dict[Path, Any] | None]


class TraceState(brainstate.ShortTermState):  # type: ignore[misc]  # brainstate is not typed
    """The eligibility traces of a learner."""


class ETraceLearner(brainstate.nn.Module):  # type: ignore[misc]  # brainstate is not typed
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

    Raises
    ------
    ValueError
        If a value is not allowed, or `vjp_method` does not fit the learning signal: 'modulatory' belongs to single
        steps, 'bootstrapped' to windows.

    References
    ----------
    Williams and Zipser (1989), doi:10.1162/neco.1989.1.2.270; Bellec et al. (2020), doi:10.1038/s41467-020-17236-y.
    """

    def __init__(
        self,
        model: Any,
        config: ETraceConfig | None = None,
        *,
        vjp_method: VjpMethod = "single-step",
        traced: Traced = None,
        hidden_groups: Literal["auto", "joint"] = "auto",
        trace_dtype: Any = None,
        random_feedback_key: Any = 0,
        projection_key: Any = 0,
    ) -> None:
        super().__init__()
        config = config if config is not None else ETraceConfig()
        check_options(config, vjp_method, hidden_groups)
        self.model = model
        self.config = config
        self.vjp_method = vjp_method
        self.exit_estimator: ExitEstimator | None = None
        self.exit_estimator_other: ExitEstimator | None = None
        self._traced = traced
        self._hidden_groups = hidden_groups
        self._trace_dtype = trace_dtype
        self._feedback_key = _as_key(random_feedback_key)
        self._projection_key = _as_key(projection_key)
        self._rule: Rule | None = None
        self._recording: Recording | None = None

    def compile_graph(self, *args: Any, batch_size: int | None = None) -> ETraceLearner:
        """Analyse the model on one step's example inputs and start the traces at zero.

        Parameters
        ----------
        *args : pytrees of arrays
            The inputs of one step; their shapes and dtypes are what counts.
        batch_size : int, optional
            Size of the leading axis of all hidden states, if that axis is a batch. Default None: there is no batch
            axis.

        Returns
        -------
        ETraceLearner
            The learner itself.

        Raises
        ------
        ValueError
            If a hidden state does not lead with `batch_size`, or `traced` names something that is not a parameter.
        """
        graph = build_graph(
            self.model,
            args,
            batch_size=batch_size,
            hidden_groups=self._hidden_groups,
            traced=self._traced,
            follow=follow(self.config),
        )
        inputs = current_inputs(graph.step, args)
        engine = build_engine(graph, inputs, self.config, key=self._projection_key, trace_dtype=self._trace_dtype)
        self._feedback = (
            feedback_matrices(graph.groups, self._feedback_key) if self._signal_is("random_feedback") else []
        )
        self._rule = make_rule(graph, engine, self._signal(graph))
        self._initial = (inputs.hidden, inputs.other)
        self._arg_avals = [jax.typeof(x) for x in inputs.args]
        self._step = single_step(self._rule)
        self._window = window(self._rule, self._estimator(graph))
        self.trace = TraceState(jax.jit(engine.init)())
        return self

    def _signal_is(self, name: str) -> bool:
        return bool(self.config.learning_signal == name)

    def _signal(self, graph: Graph) -> Signal | None:
        if self._signal_is("random_feedback"):
            return lambda signal, _: project(graph.groups, signal, self._feedback)
        if self._signal_is("modulatory"):
            return lambda signal, modulator: expand_modulator(modulator, graph.groups, signal)
        return None

    def _estimator(self, graph: Graph) -> Estimator | None:
        if not self._signal_is("bootstrapped"):
            return None

        def estimate(hidden: list[Array], other: list[Array]) -> tuple[list[Array], list[Array]]:
            return (
                _estimate(self.exit_estimator, graph.step.hidden, hidden),
                _estimate(self.exit_estimator_other, graph.step.other, other),
            )

        return estimate

    @property
    def rule(self) -> Rule:
        """The compiled rule.

        Raises
        ------
        ValueError
            If the learner is not compiled.
        """
        if self._rule is None:
            raise ValueError("The learner is not compiled; call `compile_graph(x0)` on it, or build it with `compile`.")
        return self._rule

    @property
    def groups(self) -> tuple[HiddenGroup, ...]:
        """Hidden groups of the compiled model."""
        return self.rule.graph.groups

    @property
    def param_states(self) -> dict[Path, Any]:
        """Parameters of the model, by path."""
        return {leaf.path: leaf.state for leaf in self.rule.graph.step.params}

    @property
    def hidden_states(self) -> dict[Path, Any]:
        """Hidden states of the model, by path."""
        return {leaf.path: leaf.state for leaf in self.rule.graph.step.hidden}

    @property
    def other_states(self) -> dict[Path, Any]:
        """Carried float states of the model that are neither parameters nor hidden states, by path."""
        step = self.rule.graph.step
        new = step.closed.jaxpr.outvars[step.num_outputs + len(step.hidden) :]
        old = step.closed.jaxpr.invars[len(step.closed.jaxpr.invars) - len(step.other) :]
        leaves = zip(step.other, old, new, strict=True)
        return {
            leaf.path: leaf.state for leaf, before, after in leaves if is_float(aval(after)) and before is not after
        }

    @property
    def carried_states(self) -> dict[Path, Any]:
        """Every state that a call writes: hidden and other states of the model, and the traces."""
        step = self.rule.graph.step
        return {leaf.path: leaf.state for leaf in (*step.hidden, *step.other)} | {("trace",): self.trace}

    def report(self) -> Report:
        """Tell how each parameter is learned: a table with one row per parameter."""
        return make_report(self.rule.graph)

    def init_etrace_state(self) -> None:
        """Start the traces at zero; the model's states stay."""
        self.trace.value = self.rule.engine.init()

    def reset_state(self) -> None:
        """Start a new sequence: the model's hidden and other states as they were at compile time, the traces at zero.

        Works in place: no state object is re-created.
        """
        step = self.rule.graph.step
        write_states(step.hidden, self._initial[0])
        write_states(step.other, self._initial[1])
        self.init_etrace_state()

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """Run the model one step, or one window on `MultiStepData`, and advance the traces.

        Parameters
        ----------
        *args : pytrees of arrays, or MultiStepData
            The inputs of one step, or of a window with time leading.
        modulator : array, optional
            The neuromodulator, for the learning signal 'modulatory': shape (), (batch,), the units' shape, or the full
            shape of the hidden states.

        Returns
        -------
        pytree of arrays
            The model's output; stacked over time for a window.

        Raises
        ------
        ValueError
            If the learner is not compiled, shapes differ from those at compile time, a window meets the method
            'single-step', or a modulator is missing or not used. States and traces are as before the call.
        """
        rule = self.rule
        is_window = any(isinstance(a, MultiStepData) for a in args)
        leaves = jax.tree.leaves(tuple(a.data if isinstance(a, MultiStepData) else a for a in args))
        compiled_for = self._arg_avals
        check_call(self.config, self.vjp_method, compiled_for, leaves, is_window=is_window, modulator=modulator)
        step = rule.graph.step
        arrays = self._arrays(leaves)
        if self._recording is not None:
            outs = recorded_step(rule, arrays, self._recording)
            write_states(step.hidden, outs.hidden)
            write_states(step.other, outs.other)
            return jax.tree.unflatten(step.out_tree, outs.outputs)
        if self.vjp_method == "single-step":
            result: Result = self._step(arrays, self.trace.value, modulator)
        elif is_window:
            result = self._window(arrays, self.trace.value, modulator)
        else:
            result = self._window(arrays._replace(args=[x[None] for x in arrays.args]), self.trace.value, modulator)
            result = result._replace(outputs=[y[0] for y in result.outputs])
        write_states(step.hidden, result.hidden)
        write_states(step.other, result.other)
        self.trace.value = result.traces
        return jax.tree.unflatten(step.out_tree, result.outputs)

    def parameter_leaves(self) -> list[Array]:
        """Return the parameters' arrays, in the order of the report."""
        return read_states(self.rule.graph.step.params)

    def _arrays(self, leaves: Sequence[Any]) -> Arrays:
        step = self.rule.graph.step
        params, hidden, other = map(read_states, (step.params, step.hidden, step.other))
        return Arrays(params, hidden, other, [jnp.asarray(x) for x in leaves])

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Turn calls into steps of the rule that record what a chunk needs; for sequence drivers."""
        self._recording = start_recording(
            self.rule, self._arrays([jnp.zeros(a.shape, a.dtype) for a in self._arg_avals]), self.trace.value
        )
        try:
            yield self._recording
        finally:
            self._recording = None

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


def _as_key(key: Any) -> Array:
    return jax.random.key(key) if isinstance(key, int) else key


def _estimate(estimator: ExitEstimator | None, leaves: Sequence[StateLeaf], values: Sequence[Array]) -> list[Array]:
    """Ask an estimator for cotangents, by path of single-array states; zero where it has none."""
    zeros = [jnp.zeros_like(v) if is_float(v) else _float0(v) for v in values]
    found = (estimator({leaf.path: v for leaf, v in zip(leaves, values, strict=True)}) or {}) if estimator else {}
    return [
        jax.lax.stop_gradient(jnp.asarray(found[leaf.path], v.dtype)) if leaf.path in found else zero
        for leaf, v, zero in zip(leaves, values, zeros, strict=True)
    ]


def _float0(x: Array) -> Any:
    return np.zeros(x.shape, jax.dtypes.float0)
