"""Experiment (a): one GRU, trained online by D-RTRL and pp-prop, and by backpropagation through time.

The three contenders differ in one thing only, how the gradient of a batch of sequences comes about; model,
starting weights, batches and optimizer are the same. Backpropagation keeps every step of the sequence in
memory, the online rules carry an eligibility trace forward instead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import brainstate
import braintools
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import etrace_config
import etrace_engines
from etrace_config import ETraceConfig

from .data import Digits, sequences

HIDDEN = 64
BATCH = 32
CLASSES = 10
SEED = 0

Gradient = Callable[[jax.Array, jax.Array], tuple[dict[Any, Any], jax.Array]]


@dataclass(frozen=True)
class Task:
    """How the digits are read, and how long each contender trains."""

    name: str
    steps: int
    epochs: int
    learning_rate: float
    smoothing: float  # pp-prop's decay of its two factors, in [0, 1)


ROWS = Task("rows", steps=8, epochs=25, learning_rate=4e-3, smoothing=0.6)
PIXELS = Task("pixels", steps=64, epochs=24, learning_rate=6e-3, smoothing=0.7)


@dataclass
class Run:
    """What one contender did on one task."""

    task: str
    method: str
    accuracy: float = 0.0
    curve: list[float] = field(default_factory=list)
    seconds: float = 0.0  # compilation included
    temporary_bytes: int = 0


class Reader(brainstate.nn.Module):
    """A plain GRU with a linear readout; it knows nothing of how it is trained."""

    def __init__(self, inputs: int):
        super().__init__()
        self.cell = brainstate.nn.GRUCell(inputs, HIDDEN)
        self.readout = brainstate.nn.Linear(HIDDEN, CLASSES)
        # An update gate that starts almost closed remembers for about 1/sigmoid(-2) = 8 steps.
        weight = self.cell.Wrz.weight
        weight.value = {**weight.value, "bias": weight.value["bias"].at[HIDDEN:].set(-2.0)}

    def update(self, x: jax.Array) -> jax.Array:
        """Return the class scores after one more piece of the image."""
        return self.readout(self.cell(x))


def new_reader(inputs: int, batch: int) -> Reader:
    """Return a reader with the seed's weights and its hidden state for `batch` images."""
    brainstate.random.seed(SEED)
    model = Reader(inputs)
    brainstate.nn.init_all_states(model, batch_size=batch)
    return model


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy over the batch."""
    return braintools.metric.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def by_backpropagation(task: Task) -> tuple[dict[Any, Any], Gradient]:
    """Return the parameters of a new reader and its gradient by backpropagation through time."""
    model = new_reader(64 // task.steps, BATCH)
    parameters = model.states(brainstate.ParamState)

    def gradient(xs: jax.Array, labels: jax.Array) -> tuple[dict[Any, Any], jax.Array]:
        def loss() -> jax.Array:
            model.cell.h.value = jnp.zeros_like(model.cell.h.value)
            return cross_entropy(brainstate.transform.for_loop(model, xs)[-1], labels)

        return brainstate.transform.grad(loss, parameters, return_value=True)()

    return parameters, gradient


def by_rule(rule: Callable[[Task], ETraceConfig]) -> Callable[[Task], tuple[dict[Any, Any], Gradient]]:
    """Return the same for a gradient that an online rule of `etrace_engines` accumulates while the model runs."""

    def build(task: Task) -> tuple[dict[Any, Any], Gradient]:
        inputs = 64 // task.steps
        model = new_reader(inputs, BATCH)
        learner = etrace_engines.compile(model, rule(task), jnp.zeros((BATCH, inputs)), batch_size=BATCH)

        def gradient(xs: jax.Array, labels: jax.Array) -> tuple[dict[Any, Any], jax.Array]:
            learner.reset_state()
            last = jnp.arange(len(xs)) == len(xs) - 1  # only the last score counts, as in the backpropagated loss
            return learner.etrace_grad(
                xs,
                step_fn=lambda x: cross_entropy(learner(x), labels),
                mask=last,
                loss_output="scalar",
                return_value=True,
            )

        return learner.param_states, gradient

    return build


METHODS: dict[str, Callable[[Task], tuple[dict[Any, Any], Gradient]]] = {
    "BPTT": by_backpropagation,
    "D-RTRL": by_rule(lambda task: etrace_config.d_rtrl()),
    "pp-prop": by_rule(lambda task: etrace_config.pp_prop(task.smoothing)),
}


def train(task: Task, method: str, progress: tqdm) -> Run:
    """Train one contender on one task and test it after every epoch."""
    digits = sequences(task.steps)
    parameters, gradient = METHODS[method](task)
    updates = task.epochs * (len(digits.train_y) // BATCH)
    rate = braintools.optim.CosineAnnealingLR(task.learning_rate, T_max=updates)
    optimizer = braintools.optim.Adam(rate, grad_clip_norm=1.0)
    optimizer.register_trainable_weights(parameters)
    train_x, train_y = jnp.asarray(digits.train_x), jnp.asarray(digits.train_y)

    @brainstate.transform.jit
    def epoch(batches: jax.Array) -> jax.Array:
        def step(batch: jax.Array) -> jax.Array:
            grads, loss = gradient(train_x[:, batch], train_y[batch])
            optimizer.update(grads)
            rate.step()
            return loss

        return brainstate.transform.for_loop(step, batches).mean()

    accuracy = tester(digits, task, parameters)
    run = Run(task.name, method)
    shuffle = np.random.default_rng(SEED)
    started = time.perf_counter()
    for _ in range(task.epochs):
        order = shuffle.permutation(len(train_y))
        loss = epoch(jnp.asarray(order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)))
        run.curve.append(accuracy())
        status = f"{task.name} by {method}: loss {float(loss):.3f}, test accuracy {run.curve[-1]:.3f}"
        progress.set_postfix_str(status, refresh=False)
        progress.update()
    run.seconds = time.perf_counter() - started
    run.accuracy = run.curve[-1]
    run.temporary_bytes = temporary_bytes(gradient, train_x[:, :BATCH], train_y[:BATCH])
    return run


def tester(digits: Digits, task: Task, parameters: dict[Any, Any]) -> Callable[[], float]:
    """Return a function that measures the test accuracy of `parameters` as they are, on a reader of its own."""
    model = new_reader(64 // task.steps, len(digits.test_y))
    copies = model.states(brainstate.ParamState)
    test_x, test_y = jnp.asarray(digits.test_x), jnp.asarray(digits.test_y)

    @brainstate.transform.jit
    def count_right() -> jax.Array:
        model.cell.h.value = jnp.zeros_like(model.cell.h.value)
        return (brainstate.transform.for_loop(model, test_x)[-1].argmax(-1) == test_y).sum()

    def accuracy() -> float:
        for path, state in copies.items():
            state.value = parameters[path].value
        return int(count_right()) / len(test_y)

    return accuracy


def temporary_bytes(function: Callable[..., Any], *args: jax.Array) -> int:
    """Return the scratch memory of the compiled function: what XLA allocates besides inputs and outputs."""
    pure = brainstate.transform.StatefulFunction(function)
    pure.make_jaxpr(*args)
    values = [state.value for state in pure.get_states(*args)]
    compiled = jax.jit(pure.jaxpr_call).lower(values, *args).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def memory_by_length(lengths: tuple[int, ...], progress: tqdm) -> dict[str, list[int]]:
    """Return each contender's scratch memory for a gradient over pixel streams of growing length."""
    measured: dict[str, list[int]] = {}
    for method, build in METHODS.items():
        _, gradient = build(PIXELS)
        measured[method] = []
        for length in lengths:
            measured[method].append(temporary_bytes(gradient, jnp.zeros((length, BATCH, 1)), jnp.zeros(BATCH, int)))
            progress.set_postfix_str(f"memory of {method} over {length} steps", refresh=False)
            progress.update()
    return measured
