"""A leaky tanh network twice: as a brainstate model, and as plain JAX formulas that know nothing of the package."""

import functools

import brainstate
import jax
import jax.numpy as jnp

import dni_synth
import etrace_engines as ee

MEMORY_UNITS = 8
INPUTS, UNITS, BATCH, TIME, WINDOW = 2, 5, 3, 12, 3


def start_params(seed=0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = {"win": (INPUTS, UNITS), "w": (UNITS, UNITS), "wout": (UNITS, 1)}
    return {name: jax.random.normal(key, shapes[name], dtype) * 0.6 for key, name in zip(keys, shapes, strict=True)}


def sequence(seed=1, time=TIME, batch=(BATCH,), dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), (time, *batch, INPUTS), dtype)


class Leaky(brainstate.nn.Module):
    """h' = .8 h + .4 tanh(x win + h w), y = h' wout."""

    def __init__(self, seed=0, dtype=jnp.float32):
        super().__init__()
        self.dtype = dtype
        params = start_params(seed, dtype)
        self.win, self.w, self.wout = (brainstate.ParamState(params[name]) for name in ("win", "w", "wout"))

    def init_state(self, batch_size=None, **kwargs):
        lead = () if batch_size is None else (batch_size,)
        self.h = brainstate.HiddenState(jnp.zeros((*lead, UNITS), self.dtype))

    def update(self, x):
        h = self.h.value
        self.h.value = 0.8 * h + 0.4 * jnp.tanh(x @ self.win.value + h @ self.w.value)
        return self.h.value @ self.wout.value


class Memory(brainstate.nn.Module):
    """h' = .95 h + .05 tanh(x win + h w), y = h' wout; the cue's weights `win` start at zero unless `deaf` is false."""

    def __init__(self, seed, *, deaf=True):
        super().__init__()
        first, second, third = jax.random.split(jax.random.key(seed), 3)
        self.win = brainstate.ParamState(jax.random.normal(third, (1, MEMORY_UNITS)) * (not deaf))
        self.w = brainstate.ParamState(jax.random.normal(first, (MEMORY_UNITS, MEMORY_UNITS)) / MEMORY_UNITS**0.5)
        self.wout = brainstate.ParamState(jax.random.normal(second, (MEMORY_UNITS, 1)) / MEMORY_UNITS**0.5)

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, MEMORY_UNITS)))

    def update(self, x):
        self.h.value = 0.95 * self.h.value + 0.05 * jnp.tanh(x @ self.win.value + self.h.value @ self.w.value)
        return self.h.value @ self.wout.value


def make_learner(*, batch_size=BATCH, traced=(), seed=0, dtype=jnp.float32, model=None, **options):
    model = Leaky(seed, dtype) if model is None else model
    lead = () if batch_size is None else (batch_size,)
    x0 = jnp.zeros((*lead, INPUTS), dtype)
    return ee.compile(model, dni_synth.DNI, x0, batch_size=batch_size, traced=traced, **options)


def run(params, h, xs, kicks=None):
    """Return the final hidden state and the outputs of all steps; kick t is added to h after step t."""
    kicks = jnp.zeros((len(xs), *h.shape), h.dtype) if kicks is None else kicks

    def step(h, x):
        x, kick = x
        h = 0.8 * h + 0.4 * jnp.tanh(x @ params["win"] + h @ params["w"])
        return h + kick, h @ params["wout"]

    return jax.lax.scan(step, h, (xs, kicks))


def squares(ys):
    """The loss of each step: (time, batch, 1) -> (time,)."""
    return jnp.sum(ys**2, axis=tuple(range(1, ys.ndim)))


def zero_hidden(xs):
    return jnp.zeros((*xs.shape[1:-1], UNITS), xs.dtype)


@functools.partial(jax.jit, static_argnames=("losses", "run"))
def bptt(params, xs, losses=squares, run=run):
    """Gradient of the summed loss over the whole sequence."""
    return jax.grad(lambda p: jnp.sum(losses(run(p, zero_hidden(xs), xs)[1])))(params)


@jax.jit
def truncated(xs):
    """Gradient of the summed loss over windows that each start from a constant."""
    params, h = start_params(), zero_hidden(xs)
    total = jax.tree.map(jnp.zeros_like, params)
    for xw in xs.reshape(-1, WINDOW, *xs.shape[1:]):
        loss = lambda p, h=h, xw=xw: jnp.sum(squares(run(p, h, xw)[1]))
        total = jax.tree.map(jnp.add, total, jax.grad(loss)(params))
        h = run(params, h, xw)[0]
    return total


@functools.partial(jax.jit, static_argnames=("losses", "window", "run"))
def future_gradients(params, xs, losses=squares, window=WINDOW, run=run):
    """Exact gradient of all later loss with respect to h at each boundary, (windows, batch, units); the last is 0.

    A kick after step t changes what comes later and nothing else, so the gradient by the kick is the one wanted.
    """
    kicks = jnp.zeros((len(xs), *zero_hidden(xs).shape), xs.dtype)
    by_kick = jax.grad(lambda kicks: jnp.sum(losses(run(params, zero_hidden(xs), xs, kicks)[1])))(kicks)
    return by_kick[window - 1 :: window]


class Oracle(dni_synth.AbstractSynthesizer):
    """Takes the estimate from the context: a test supplies the exact one."""

    def initial(self, group_shapes, context_dim, key):
        return {}

    def apply(self, params, hiddens, context):
        return {name: context.reshape(hidden.shape) for name, hidden in hiddens.items()}


class Constant(dni_synth.AbstractSynthesizer):
    """Estimates one in every place."""

    def initial(self, group_shapes, context_dim, key):
        return {}

    def apply(self, params, hiddens, context):
        return {name: jnp.ones_like(hidden) for name, hidden in hiddens.items()}


def window_losses(learner):
    """The package's view of `squares`."""

    def step_fn(xs, *rest):
        return squares(learner(ee.MultiStepData(xs)))

    return step_fn


def per_window(c, window=WINDOW):
    """Repeat a value of each window for its steps, so that it can travel as a sequence."""
    return jnp.repeat(c, window, axis=0)


def last(xs, *rest):
    """A context function: the last sequence's value at the window's last step."""
    return rest[-1][-1]


def by_name(gradients):
    return {path[-1]: value for path, value in gradients.items()}


def gap(a, b):
    """Relative difference."""
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
