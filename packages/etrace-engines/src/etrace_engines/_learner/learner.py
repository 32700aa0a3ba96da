"""The learner: a model, its compiled rule, and the states of its traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from etrace_config import ETraceConfig

from .._compat import aval, is_float
from .._data import MultiStepData
from .._engine.build import build_engine, follow
from .._graph.graph import Graph, Traced, build_graph, current_inputs
from .._graph.groups import HiddenGroup
from .._graph.lift import Path
from .._graph.report import Report, make_report, warn_of_gaps
from .checks import check_call, check_options, check_trace_bytes
from .estimate import ExitEstimator, exit_cotangents
from .recording import Recording, recorded_step, start_recording
from .signals import ErrorSignal, make_signal
from .states import initialise_in_place, read_states, write_states
from .step import Arrays, Result, Rule, make_rule, single_step, steps_in_a_row
from .window import Estimator, window

VjpMethod = Literal["single-step", "multi-step"]


class TraceState(brainstate.ShortTermState):  # type: ignore[misc]  # brainstate is not typed
    """The eligibility traces of a learner."""


class StepLearner(brainstate.nn.Module):  # type: ignore[misc]  # brainstate is not typed
    """A learner, one call at a time; `ETraceLearner` adds whole sequences, and says what the options mean."""

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
        error_signal: ErrorSignal = "hidden",
        trace_limit: int | None = None,
    ) -> None:
        super().__init__()
        config = config if config is not None else ETraceConfig()
        check_options(config, vjp_method, hidden_groups, error_signal)
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
        self._error_signal = error_signal
        self._trace_limit = trace_limit
        self._rule: Rule | None = None
        self._recording: Recording | None = None

    def compile_graph(self, *args: Any, batch_size: int | None = None) -> Self:
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
        StepLearner
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
        self.trace_bytes = check_trace_bytes(engine, self._trace_limit)
        self._rule = make_rule(graph, engine, make_signal(graph, self.config, self._error_signal, self._feedback_key))
        self._batch_size = batch_size
        self._initial = (inputs.hidden, inputs.other)
        self._arg_avals = [jax.typeof(x) for x in inputs.args]
        self._step = single_step(self._rule)
        self._modulated = steps_in_a_row(self._step)
        self._window = window(self._rule, self._estimator(graph))
        self.trace = TraceState(jax.jit(engine.init)())
        warn_of_gaps(graph)
        return self

    def _signal_is(self, name: str) -> bool:
        return bool(self.config.learning_signal == name)

    def _estimator(self, graph: Graph) -> Estimator | None:
        if not self._signal_is("bootstrapped"):
            return None

        def estimate(hidden: list[Array], other: list[Array]) -> tuple[list[Array], list[Array]] | None:
            if self.exit_estimator is None and self.exit_estimator_other is None:
                return None
            return (
                exit_cotangents(self.exit_estimator, graph.step.hidden, hidden),
                exit_cotangents(self.exit_estimator_other, graph.step.other, other),
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

    def reset_state(self, batch_size: int | None = None) -> None:
        """Start a new sequence: the model's hidden and other states as they were at compile time, the traces at zero.

        Works in place: no state object is re-created.

        Parameters
        ----------
        batch_size : int, optional
            Another batch size; the model's states are initialised for it, and the learner is compiled again. Default:
            the one that the learner was compiled for.

        Raises
        ------
        ValueError
            If a batch size is given to a learner without a batch axis.
        """
        step = self.rule.graph.step
        if batch_size is not None and batch_size != self._batch_size:
            self._compile_for_batch(batch_size)
            return
        write_states(step.hidden, self._initial[0])
        write_states(step.other, self._initial[1])
        self.init_etrace_state()

    def _compile_for_batch(self, batch_size: int) -> None:
        old = self._batch_size
        if old is None:
            raise ValueError(
                f"`batch_size={batch_size}` was given to a learner that was compiled without a batch axis."
            )
        step = self.rule.graph.step
        initialise_in_place(self.model, (*step.hidden, *step.other), batch_size)
        resize = lambda shape: (batch_size, *shape[1:]) if shape[:1] == (old,) else shape
        leaves = [jnp.zeros(resize(a.shape), a.dtype) for a in self._arg_avals]
        self.compile_graph(*jax.tree.unflatten(step.args_tree, leaves), batch_size=batch_size)

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
            run = self._modulated if is_window else self._step
            result: Result = run(arrays, self.trace.value, modulator)
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


def _as_key(key: Any) -> Array:
    return jax.random.key(key) if isinstance(key, int) else key
