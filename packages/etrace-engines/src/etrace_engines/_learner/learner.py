"""The learner: a model, its compiled rule, and the states of its traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
from etrace_config import ETraceConfig
from jax import Array

from .._compat import is_float
from .._engine.build import build_engine
from .._graph.graph import Graph, Traced, build_graph, current_inputs
from .._graph.groups import HiddenGroup
from .._graph.lift import Path, StateLeaf
from .._graph.report import Report, make_report
from .data import MultiStepData
from .signals import expand_modulator, feedback_matrices, project
from .step import Arrays, Result, Rule, Signal, make_rule, single_step
from .window import Estimator, window

VjpMethod = Literal["single-step", "multi-step"]
ExitEstimator = Callable[[dict[Path, Any]], dict[Path, Any] | None]


class TraceState(brainstate.ShortTermState):  # type: ignore[misc]  # brainstate is not typed
    """The eligibility traces of a learner."""


class ETraceLearner(brainstate.nn.Module):  # type: ignore[misc]  # brainstate is not typed
    """Online learning of an unmodified model by eligibility traces.

    Calling the learner runs the model one step (or, on `MultiStepData`, one window) and advances the traces. The call is
    differentiable: under `brainstate.transform.grad` the parameters get the rule's gradient, in single-step mode

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
        Parameters that may have traces: their paths, or a predicate of path and state. The others are learned by the gradient
        inside the window only. Default: all.
    hidden_groups : {'auto', 'joint'}
        'joint' makes all hidden states one group, so that stacked layers get exact credit; for the scope 'sparse_n' and the
        factorization 'random_projection'. Default 'auto'.
    trace_dtype : dtype, optional
        Dtype of the traces. Default: that of the operations' outputs.
    random_feedback_key, projection_key : jax key or int, optional
        Seeds of the feedback matrices and of UORO's signs. Default 0.

    Raises
    ------
    ValueError
        If a value is not allowed, or `vjp_method` does not fit the learning signal: 'modulatory' belongs to single steps,
        'bootstrapped' to windows.

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
        _check_options(config, vjp_method, hidden_groups)
        self.model = model
        self.config = config
        self.vjp_method = vjp_method
        self.exit_estimator: ExitEstimator | None = None
        self.exit_estimator_other: ExitEstimator | None = None
        self._options = {"traced": traced, "hidden_groups": hidden_groups}
        self._trace_dtype = trace_dtype
        self._feedback_key = _as_key(random_feedback_key)
        self._projection_key = _as_key(projection_key)
        self._rule: Rule | None = None

    def compile_graph(self, *args: Any, batch_size: int | None = None) -> ETraceLearner:
        """Analyse the model on one step's example inputs and start the traces at zero.

        Parameters
        ----------
        *args : pytrees of arrays
            The inputs of one step; their shapes and dtypes are what counts.
        batch_size : int, optional
            Size of the leading axis of all hidden states, if that axis is a batch. Default None: there is no batch axis.

        Returns
        -------
        ETraceLearner
            The learner itself.

        Raises
        ------
        ValueError
            If a hidden state does not lead with `batch_size`, or `traced` names something that is not a parameter.
        """
        graph = build_graph(self.model, args, batch_size=batch_size, **self._options)
        inputs = current_inputs(graph.step, args)
        engine = build_engine(graph, inputs, self.config, key=self._projection_key, trace_dtype=self._trace_dtype)
        self._feedback = feedback_matrices(graph.groups, self._feedback_key) if self._signal_is("random_feedback") else []
        self._rule = make_rule(graph, engine, self._signal(graph))
        self._initial = (inputs.hidden, inputs.other)
        self._arg_avals = [jax.typeof(x) for x in inputs.args]
        self._step = single_step(self._rule)
        self._window = window(self._rule, self._estimator(graph))
        self.trace = TraceState(engine.init())
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
        _write(step.hidden, self._initial[0])
        _write(step.other, self._initial[1])
        self.init_etrace_state()

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """Run the model one step, or one window on `MultiStepData`, and advance the traces.

        Parameters
        ----------
        *args : pytrees of arrays, or MultiStepData
            The inputs of one step, or of a window with time leading.
        modulator : array, optional
            The neuromodulator, for the learning signal 'modulatory': shape (), (batch,), the units' shape, or the full shape of
            the hidden states.

        Returns
        -------
        pytree of arrays
            The model's output; stacked over time for a window.

        Raises
        ------
        ValueError
            If the learner is not compiled, shapes differ from those at compile time, a window meets the method 'single-step',
            or a modulator is missing or not used. States and traces are as before the call.
        """
        rule = self.rule
        is_window = any(isinstance(a, MultiStepData) for a in args)
        leaves = jax.tree.leaves(tuple(a.data if isinstance(a, MultiStepData) else a for a in args))
        self._check_call(leaves, is_window, modulator)
        step = rule.graph.step
        arrays = Arrays(_read(step.params), _read(step.hidden), _read(step.other), [jnp.asarray(x) for x in leaves])
        if self.vjp_method == "single-step":
            result: Result = self._step(arrays, self.trace.value, modulator)
        elif is_window:
            result = self._window(arrays, self.trace.value, modulator)
        else:
            result = self._window(arrays._replace(args=[x[None] for x in arrays.args]), self.trace.value, modulator)
            result = result._replace(outputs=[y[0] for y in result.outputs])
        _write(step.hidden, result.hidden)
        _write(step.other, result.other)
        self.trace.value = result.traces
        return jax.tree.unflatten(step.out_tree, result.outputs)

    def _check_call(self, leaves: Sequence[Any], is_window: bool, modulator: Any) -> None:
        if is_window and self.vjp_method == "single-step":
            raise ValueError("`MultiStepData` needs `vjp_method='multi-step'`; this learner has 'single-step'.")
        if (modulator is not None) != self._signal_is("modulatory"):
            raise ValueError(
                "`modulator` is needed, as a keyword of the call, by `learning_signal='modulatory'`, and only there; "
                f"this learner has {self.config.learning_signal!r}, and `modulator` is {'missing' if modulator is None else 'given'}."
            )
        shapes = [jnp.shape(x)[1:] if is_window else jnp.shape(x) for x in leaves]
        expected = [aval.shape for aval in self._arg_avals]
        if shapes != expected:
            raise ValueError(
                f"The learner was compiled for inputs of shapes {expected}{' per step' if is_window else ''}, got {shapes}; "
                "call `compile_graph` again for other shapes."
            )


def _check_options(config: ETraceConfig, vjp_method: str, hidden_groups: str) -> None:
    if vjp_method not in ("single-step", "multi-step"):
        raise ValueError(f"`vjp_method={vjp_method!r}` is not one of 'single-step', 'multi-step'.")
    if hidden_groups not in ("auto", "joint"):
        raise ValueError(f"`hidden_groups={hidden_groups!r}` is not one of 'auto', 'joint'.")
    if hidden_groups == "joint" and config.recurrence_scope != "sparse_n" and config.trace_factorization != "random_projection":
        raise ValueError(
            f"`hidden_groups='joint'` needs `recurrence_scope='sparse_n'` or the factorization 'random_projection', which follow "
            f"influence between states; the scope is {config.recurrence_scope!r}."
        )
    if config.learning_signal == "modulatory" and vjp_method == "multi-step":
        raise ValueError(
            "`learning_signal='modulatory'` replaces the signal of a step, so it needs `vjp_method='single-step'`, got 'multi-step'."
        )
    if config.learning_signal == "bootstrapped" and vjp_method == "single-step":
        raise ValueError(
            "`learning_signal='bootstrapped'` acts at the end of a window, so it needs `vjp_method='multi-step'`, got 'single-step'."
        )


def _as_key(key: Any) -> Array:
    return jax.random.key(key) if isinstance(key, int) else key


def _read(leaves: Sequence[StateLeaf]) -> list[Array]:
    return [jnp.asarray(jax.tree.leaves(leaf.state.value)[leaf.index]) for leaf in leaves]


def _write(leaves: Sequence[StateLeaf], values: Sequence[Array]) -> None:
    """Set states from their arrays; the leaves of one state are adjacent."""
    by_state: dict[int, tuple[Any, list[Array]]] = {}
    for leaf, value in zip(leaves, values, strict=True):
        by_state.setdefault(id(leaf.state), (leaf.state, []))[1].append(value)
    for state, arrays in by_state.values():
        state.value = jax.tree.unflatten(jax.tree.structure(state.value), arrays)


def _estimate(estimator: ExitEstimator | None, leaves: Sequence[StateLeaf], values: Sequence[Array]) -> list[Array]:
    """Ask an estimator for cotangents, by path of single-array states; zero where it has none."""
    zeros = [jnp.zeros_like(v) if is_float(v) else _float0(v) for v in values]
    found = (estimator({leaf.path: v for leaf, v in zip(leaves, values, strict=True)}) or {}) if estimator else {}
    return [
        jax.lax.stop_gradient(jnp.asarray(found[leaf.path], v.dtype)) if leaf.path in found else zero
        for leaf, v, zero in zip(leaves, values, zeros, strict=True)
    ]


def _float0(x: Array) -> Any:
    import numpy as np

    return np.zeros(x.shape, jax.dtypes.float0)
