"""The sum of single-step gradients, a chunk of steps at a time.

Under fixed parameters the steps of a rule are tied to each other by hidden states and traces only. So a chunk runs in
three parts: the states, step after step; the steps' own gradients, for all steps at once, as one batch over time; and
the recursions of the trace, on small arrays. Each weight's gradient is then one matrix product, and the large trace is
touched once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
from jax import Array

from .._learner.learner import StepLearner
from .._learner.recording import Recording, Taps
from .drive import PureStep, Task, add_trees, first_slices, purify

PREFERRED = 16  # steps: above, the products no longer gain, and the chunk's activations fall out of the cache


def chunk_length(length: int) -> int:
    """Choose the steps of a chunk: the divisor of the length closest to `PREFERRED`, unless all are far from it.

    A length without a divisor between half and twice `PREFERRED` is cut into chunks of `PREFERRED` and a shorter last
    one.
    """
    near = [k for k in range(PREFERRED // 2, 2 * PREFERRED + 1) if length % k == 0]
    return min(near, key=lambda k: abs(k - PREFERRED), default=min(PREFERRED, length))


def runs_chunkwise(learner: StepLearner, weights: Mapping[Any, Any]) -> bool:
    """Whether the rule has a chunkwise form, and only parameters are differentiated."""
    rule = learner.rule
    pure = all(r.params <= rule.graph.traced_params for r in rule.graph.traced)
    only_params = all(isinstance(state, brainstate.ParamState) for state in weights.values())
    return learner.vjp_method == "single-step" and rule.signal is None and rule.engine.chunks and pure and only_params


def chunkwise_sum(learner: StepLearner, task: Task) -> tuple[dict[Any, Any], Array, Any]:
    """Return summed gradients, losses of shape (time,), and stacked auxiliary outputs; states and traces advance."""
    length = task.mask.shape[0]
    size = chunk_length(length)
    with learner.recording() as recording:
        extra = [*task.weights.values(), recording.taps, recording.local]
        pure = purify(task.step_fn, first_slices(task.sequences), extra)
    chunk = Chunk(learner, task, pure, recording)
    start = [jax.tree.map(jnp.zeros_like, state.value) for state in task.weights.values()]
    carry = (chunk.carried(pure.values()), learner.trace.value, start)
    data = (task.sequences, task.mask)
    whole = length - length % size
    cut = lambda x: jnp.reshape(x[:whole], (-1, size, *x.shape[1:]))
    carry, (losses, aux) = jax.lax.scan(chunk, carry, jax.tree.map(cut, jax.tree.map(jnp.asarray, data)))
    losses, aux = jax.tree.map(lambda y: y.reshape(whole, *y.shape[2:]), (losses, aux))
    if whole < length:
        carry, rest = chunk(carry, jax.tree.map(lambda x: jnp.asarray(x)[whole:], data))
        losses, aux = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), (losses, aux), rest)
    values, traces, total = carry
    chunk.write(values, traces)
    return dict(zip(task.weights, total, strict=True)), losses, aux


class Chunk:
    """The body of the scan over chunks."""

    def __init__(self, learner: StepLearner, task: Task, pure: PureStep, recording: Recording) -> None:
        self.learner = learner
        self.task = task
        self.pure = pure
        self.weights = [pure.states.index(s) for s in task.weights.values()]
        self.taps = pure.states.index(recording.taps)
        self.local = pure.states.index(recording.local)
        fixed = {*self.weights, self.taps, self.local}
        self.written = [i for i, w in enumerate(pure.written) if w and i not in fixed]
        self.at_rest = pure.values()

    def carried(self, values: list[Any]) -> list[Any]:
        """Select the states that steps write."""
        return [values[i] for i in self.written]

    def write(self, values: list[Any], traces: Any) -> None:
        """Set the states after the last chunk."""
        for i, value in zip(self.written, values, strict=True):
            self.pure.states[i].value = value
        self.learner.trace.value = traces

    def _call(self, carried: list[Any], weights: list[Any], taps: Taps, slices: Any) -> tuple[list[Any], Any]:
        values = list(self.at_rest)
        for i, value in zip([*self.written, *self.weights, self.taps], [*carried, *weights, taps], strict=True):
            values[i] = value
        return self.pure.call(values, slices)

    def __call__(self, carry: Any, data: Any) -> Any:
        """Run one chunk: (carry, slices) -> (carry, losses and auxiliary outputs)."""
        carried, traces, total = carry
        slices, mask = data
        weights = [self.at_rest[i] for i in self.weights]
        after, entries = self._run_states(carried, weights, slices)
        zeros = self.at_rest[self.taps]
        taps = jax.tree.map(lambda z: jnp.zeros((mask.shape[0], *z.shape), z.dtype), zeros)

        def objective(weights: list[Any], taps: Taps) -> Any:
            def step(carried: list[Any], taps: Taps, slices: Any) -> Any:
                values, out = self._call(carried, weights, taps, slices)
                return *self.task.split(out), values[self.local]

            losses, aux, local = jax.vmap(step)(entries, taps, slices)
            return jnp.sum(losses * mask), (losses, aux, local)

        gradients, (losses, aux, local) = jax.grad(objective, argnums=(0, 1), has_aux=True)(weights, taps)
        plain, cotangents = gradients
        traced, traces = self._meet_traces(traces, local, cotangents, weights)
        return (after, traces, add_trees(total, add_trees(plain, traced))), (losses, aux)

    def _run_states(self, carried: list[Any], weights: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
        """Advance the states through the chunk; also return them at the entry of each step."""
        taps = self.at_rest[self.taps]

        def body(carried: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            values, _ = self._call(carried, weights, taps, slices)
            return self.carried(values), carried

        return jax.lax.scan(body, carried, slices)

    def _meet_traces(self, traces: Any, local: Any, cotangents: Taps, weights: list[Any]) -> tuple[list[Any], Any]:
        """Return the gradients through traced weights, by parameter, and the traces after the chunk."""
        rule = self.learner.rule
        rows = lambda hidden: [jax.vmap(g.rows)([hidden[m] for m in g.members]) for g in rule.graph.groups]
        outputs = [r.operation.output(cotangents.equations[r.equation]) for r in rule.graph.traced]
        signal, read = rows(cotangents.slabs), rows(cotangents.entries)
        gradient, after = rule.engine.chunk(traces, local, signal, read, outputs)
        return self._to_weights(gradient, weights), after

    def _to_weights(self, gradient: list[Array], weights: list[Any]) -> list[Any]:
        """Carry gradients of effective weights back to the states that are differentiated."""
        leaves = self.learner.rule.graph.step.params
        _, pull = jax.vjp(self.learner.rule.graph.weights, self.learner.parameter_leaves())
        (by_leaf,) = pull(gradient)
        found = {(id(leaf.state), leaf.index): g for leaf, g in zip(leaves, by_leaf, strict=True)}
        result = []
        for state, value in zip(self.task.weights.values(), weights, strict=True):
            flat, tree = jax.tree.flatten(value)
            zeros = [found.get((id(state), i), jnp.zeros_like(v)) for i, v in enumerate(flat)]
            result.append(jax.tree.unflatten(tree, zeros))
        return result
