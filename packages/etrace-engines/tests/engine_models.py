"""The models and data that the tests share, and how a learner is driven over a sequence."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from engine_oracles import CELLS, functional, squared

import etrace_engines

INPUTS, UNITS, BATCH, STEPS = 3, 4, 2, 6


class Leaky(brainstate.nn.Module):
    """A leaky tanh network; with a transition of 0.7 that even the diagonal scope keeps."""

    def __init__(self, inputs=INPUTS, units=UNITS, w_init=None):
        super().__init__()
        self.units = units
        self.W = brainstate.nn.Linear(inputs + units, units, **({} if w_init is None else {"w_init": w_init}))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(zeros(self.units, batch_size))

    def update(self, x):
        pre = self.W(jnp.concatenate([x, self.h.value], axis=-1))
        self.h.value = 0.7 * self.h.value + 0.3 * jnp.tanh(pre)
        return self.h.value


def zeros(units, batch_size=None):
    """Return a hidden state's initial value."""
    shape = units if isinstance(units, tuple) else (units,)
    return jnp.zeros(shape if batch_size is None else (batch_size, *shape), brainstate.environ.dftype())


def tanh_network(inputs=INPUTS, units=UNITS):
    """Return the stock vanilla network with tanh units."""
    return brainstate.nn.ValinaRNNCell(inputs, units, activation="tanh")


BUILDERS = {
    "tanh": tanh_network,
    "leaky": Leaky,
    "gru": lambda: brainstate.nn.GRUCell(INPUTS, UNITS),
    "mgu": lambda: brainstate.nn.MGUCell(INPUTS, UNITS),
    "lstm": lambda: brainstate.nn.LSTMCell(INPUTS, UNITS),
    "urlstm": lambda: brainstate.nn.URLSTMCell(INPUTS, UNITS),
}


def normal(seed, *shape):
    """Return normal numbers in the current default precision."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), brainstate.environ.dftype())


def data(units=UNITS, inputs=INPUTS, batch=BATCH, steps=STEPS):
    """Return inputs and targets of a sequence, time first; without a batch axis where `batch` is None."""
    lead = (steps,) if batch is None else (steps, batch)
    return normal(1, *lead, inputs), normal(2, *lead, units)


def randomize(model, seed=3, scale=0.5):
    """Set all float parameters of a model to normal numbers, so that no bias is zero by accident."""
    for i, state in enumerate(model.states(brainstate.ParamState).values()):
        leaves, tree = jax.tree.flatten(state.value)
        drawn = [scale * normal(100 * seed + 10 * i + k, *np.shape(leaf)) for k, leaf in enumerate(leaves)]
        state.value = jax.tree.unflatten(tree, drawn)
    return model


def make(builder, rule, x0, *, batch=BATCH, **options):
    """Compile a randomized model; return the learner and the pure model at the sequence's start."""
    brainstate.random.seed(0)
    model = randomize(builder() if callable(builder) else BUILDERS[builder]())
    learner = etrace_engines.compile(model, rule, x0, batch_size=batch, **options)
    return learner, functional(model, x0)


def cell_of(name, learner):
    """Return the pure cell, its parameters, and hidden states (states, batch, units) as they are now."""
    values = {path[-1]: state.value for path, state in learner.hidden_states.items()}
    rows = [values[key] for key in (("c", "h") if CELLS[name].states == 2 else ("h",))]
    return CELLS[name], {path: state.value for path, state in learner.param_states.items()}, jnp.stack(rows)


def batch_loss(y, target):
    """Return one loss per step of a window: squared differences, summed over all other axes."""
    return ((y - target) ** 2).reshape(y.shape[0], -1).sum(1)


def sequence_gradient(learner, xs, targets, *, window=None, modulators=None):
    """Return the summed gradient of a sequence from its start by `etrace_grad`, compiled as one program."""
    data = (xs, targets) if modulators is None else (xs, targets, modulators)

    def one(x, target, *modulator):
        return squared(learner(x, **({"modulator": modulator[0]} if modulator else {})), target)

    def many(x, target):
        return batch_loss(learner(etrace_engines.MultiStepData(x)), target)

    @brainstate.transform.jit
    def run(*data):
        learner.reset_state()
        step_fn = one if window is None or window == 1 else many
        return learner.etrace_grad(*data, step_fn=step_fn, chunk_size=window, reduction="sum")

    return run(*data)


def call_gradients(learner, xs, targets):
    """Return the gradient of every step, (time, ...), by differentiating the learner's call as a user would."""

    @brainstate.transform.jit
    def run(xs, targets):
        learner.reset_state()

        def one(x, target):
            return brainstate.transform.grad(lambda: squared(learner(x), target), learner.param_states)()

        return brainstate.transform.for_loop(one, xs, targets)

    return run(xs, targets)


class Net(brainstate.nn.Module):
    """A model from shapes of parameters and hidden states and (params, hidden, x) -> (new hidden, output)."""

    def __init__(self, params, hidden, advance):
        super().__init__()
        self.hidden_shapes, self.advance = hidden, advance
        self.params = {name: brainstate.ParamState(zeros(shape)) for name, shape in params.items()}

    def init_state(self, batch_size=None, **kwargs):
        self.hidden = {
            name: brainstate.HiddenState(zeros(shape, batch_size)) for name, shape in self.hidden_shapes.items()
        }

    def update(self, x):
        read = lambda states: {name: state.value for name, state in states.items()}
        new, y = self.advance(read(self.params), read(self.hidden), x)
        for name, value in new.items():
            self.hidden[name].value = value
        return y
