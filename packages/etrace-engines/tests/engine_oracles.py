"""What gradients must be, written without the package: BPTT, finite differences, and the rules on dense matrices.

The rules are spelled out in NumPy, for one sample of a cell whose output is a hidden state. A cell is a pure function

    advance(params, h, x, mixed, cut, tap) -> new h,    h of shape (states, units),

that reads `mixed` in place of h wherever positions are joined, passes through `cut` what one parameter operation makes
and another joins, and every product through ``tap(name, carrier, y)``. Jacobians come from complex steps: f' at x is
Im f(x + i s) / s, exact to rounding for s = 1e-30; and what takes the real part only is a constant.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

# ---- measuring


def relative_error(found, expected):
    """Return the largest relative distance over the arrays of two gradients."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert [np.shape(a) for a in found] == [np.shape(b) for b in expected]
    distance = [np.linalg.norm(np.asarray(a) - np.asarray(b)) for a, b in zip(found, expected, strict=True)]
    size = [np.linalg.norm(np.asarray(b)) for b in expected]
    return max(d / s if s > 0 else d for d, s in zip(distance, size, strict=True))


# ---- any model: backpropagation through time


class Functional(NamedTuple):
    """A model as a pure step (params, state, x) -> (state, y), with its values now."""

    step: Any
    params: dict
    state: dict


def functional(model, *inputs):
    """Purify a model by brainstate's own means; call it where the states have their values at the sequence's start."""
    lifted = brainstate.transform.StatefulFunction(model, return_only_write=False)
    lifted.make_jaxpr(*inputs)
    states = list(lifted.get_states(*inputs))
    paths = {id(state): path for path, state in model.states().items()}
    keys = [paths.get(id(state), (i,)) for i, state in enumerate(states)]
    values = {key: state.value for key, state in zip(keys, states, strict=True)}
    is_param = {key: isinstance(state, brainstate.ParamState) for key, state in zip(keys, states, strict=True)}

    def step(params, state, *inputs):
        after, y = lifted.jaxpr_call([(params if is_param[key] else state)[key] for key in keys], *inputs)
        return {key: value for key, value in zip(keys, after, strict=True) if not is_param[key]}, y

    select = lambda wanted: {key: values[key] for key in keys if is_param[key] is wanted}
    return Functional(step, select(True), select(False))


def squared(y, target):
    """Return the loss of one step: the sum of squared differences."""
    return jnp.sum((y - target) ** 2)


def bptt(model, xs, targets, *, window=None, loss=squared, wrt="params"):
    """Return the exact gradient of the summed losses; with `window`, the one truncated at the windows' borders."""
    step = model.step

    def total(params, state):
        value = 0.0
        for t in range(len(jax.tree.leaves(xs)[0])):
            if window is not None and t % window == 0:
                state = {path: jax.lax.stop_gradient(value) for path, value in state.items()}
            state, y = step(params, state, jax.tree.map(lambda x, t=t: x[t], xs))
            value = value + loss(y, targets[t])
        return value

    argnum = 0 if wrt == "params" else 1
    return jax.grad(total, argnum, allow_int=True)(model.params, model.state)


# ---- cells, as pure functions of NumPy arrays


class Cell(NamedTuple):
    """A cell, its number of states, and which of them is its output."""

    advance: Any
    states: int
    output: int


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _linear(params, path, x, tap):
    return tap(path, x, x @ params[path]["weight"] + params[path].get("bias", 0.0))


def _join(*parts):
    return np.concatenate(parts, axis=-1)


def _tanh(params, h, x, mixed, cut, tap):
    return np.tanh(_linear(params, ("W", "weight"), _join(x, mixed[0]), tap))[None]


def _leaky(params, h, x, mixed, cut, tap):
    return 0.7 * h + 0.3 * np.tanh(_linear(params, ("W", "weight"), _join(x, mixed[0]), tap))[None]


def _gru(params, h, x, mixed, cut, tap):
    r, z = np.split(_sigmoid(_linear(params, ("Wrz", "weight"), _join(x, mixed[0]), tap)), 2)
    candidate = np.tanh(_linear(params, ("Wh", "weight"), _join(x, cut(r) * mixed[0]), tap))
    return ((1 - z) * h[0] + z * candidate)[None]


def _mgu(params, h, x, mixed, cut, tap):
    f = _sigmoid(_linear(params, ("Wf", "weight"), _join(x, mixed[0]), tap))
    candidate = np.tanh(_linear(params, ("Wh", "weight"), _join(x, cut(f) * mixed[0]), tap))
    return ((1 - f) * h[0] + f * candidate)[None]


def _lstm(params, h, x, mixed, cut, tap):
    i, g, f, o = np.split(_linear(params, ("W", "weight"), _join(x, mixed[1]), tap), 4)
    c = _sigmoid(f + 1) * h[0] + _sigmoid(i) * np.tanh(g)
    return np.stack([c, _sigmoid(o) * np.tanh(c)])


def _urlstm(params, h, x, mixed, cut, tap):
    f, r, u, o = np.split(_linear(params, ("W", "weight"), _join(x, mixed[1]), tap), 4)
    bias = params[("bias",)]
    f, r = _sigmoid(f + bias), _sigmoid(r - bias)
    g = 2 * r * f + (1 - 2 * r) * f**2
    c = g * h[0] + (1 - g) * np.tanh(u)
    return np.stack([c, _sigmoid(o) * np.tanh(c)])


CELLS = {
    "tanh": Cell(_tanh, 1, 0),
    "leaky": Cell(_leaky, 1, 0),
    "gru": Cell(_gru, 1, 0),
    "mgu": Cell(_mgu, 1, 0),
    "lstm": Cell(_lstm, 2, 1),
    "urlstm": Cell(_urlstm, 2, 1),
}


# ---- rules, on dense matrices


def complex_jacobian(f, x):
    """Return df/dx of shape (f(x).size, x.size), exact to rounding, for an analytic f."""
    columns = []
    for k in range(x.size):
        at = x.astype(complex).ravel()
        at[k] += 1e-30j
        columns.append(f(at.reshape(x.shape)).imag.ravel() / 1e-30)
    return np.stack(columns, axis=-1)


class Flat:
    """The parameters of a cell as one vector."""

    def __init__(self, params):
        leaves, self.tree = jax.tree.flatten(params)
        self.leaves = [np.asarray(leaf, float) for leaf in leaves]
        self.vector = np.concatenate([leaf.ravel() for leaf in self.leaves])

    def unravel(self, vector):
        """Return a vector in the parameters' form."""
        parts = np.split(vector, np.cumsum([leaf.size for leaf in self.leaves])[:-1])
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, self.leaves, strict=True)]
        return jax.tree.unflatten(self.tree, shaped)


class Local(NamedTuple):
    """The Jacobians of one step that a rule reads.

    Of the past, what the rule keeps; what a trace gathers of the parameters, and all of it; per product its carrier,
    and the influence of its output.
    """

    transition: Any  # (S n, S n)
    gathered: Any  # (S n, P)
    exact: Any  # (S n, P)
    carriers: dict
    influence: dict  # (S n, outputs)


@dataclass
class FullTrace:
    """e' = R e + M on a dense matrix (hidden elements, parameters), and its low-pass."""

    plain: Any
    filtered: Any
    kappa: float
    mask: Any

    def advance(self, local):
        plain = self.mask * (local.transition @ self.plain + local.gathered)
        return FullTrace(plain, self.kappa * self.filtered + plain, self.kappa, self.mask)

    def entry(self, signal):
        return signal.ravel() @ self.filtered

    def past(self, local, signal):
        return signal.ravel() @ (self.mask * (local.transition @ self.plain) + self.kappa * self.filtered)


@dataclass
class FactoredTrace:
    """ex' = a_x ex + x and ef' = a_f R ef + (1 - a_f) Df per product; bias-corrected by the number of steps."""

    inputs: dict  # carriers, with a 1 for the bias at the end
    outputs: dict
    steps: int
    config: Any
    params: Flat

    def advance(self, local):
        a_x, a_f = self.config.decay_x, self.config.decay_f
        inputs = {k: a_x * self.inputs[k] + np.append(x, 1.0) for k, x in local.carriers.items()}
        outputs = {k: a_f * local.transition @ self.outputs[k] + (1 - a_f) * df for k, df in local.influence.items()}
        return FactoredTrace(inputs, outputs, self.steps + 1, self.config, self.params)

    def entry(self, signal):
        correction = 1 - self.config.decay_f**self.steps
        return self._meet(self.inputs, self.outputs, signal) / correction if self.steps else 0.0

    def past(self, local, signal):
        now = {k: np.append(x, 1.0) for k, x in local.carriers.items()}
        return self.advance(local).entry(signal) - self._meet(now, local.influence, signal)

    def _meet(self, inputs, outputs, signal):
        products = {k: np.outer(inputs[k], signal.ravel() @ ef) for k, ef in outputs.items()}
        named = {k: {"weight": v[:-1], "bias": v[-1]} for k, v in products.items()}
        return Flat({k: {n: named[k][n] for n in v} for k, v in self.params.unravel(self.params.vector).items()}).vector


@dataclass
class DenseRule:
    """A coordinate of the space of rules, for one sample of a cell; `feedback` is the matrix of random feedback."""

    cell: Cell
    params: Flat
    config: Any  # an ETraceConfig, read as data
    feedback: Any = None

    def gradient(self, h, xs, targets, window=None, modulators=None):
        """Return the sum of the rule's gradients over a sequence: of single steps, or of windows."""
        trace, total = self._start(h, xs[0]), np.zeros_like(self.params.vector)
        for start in range(0, len(xs), window or 1):
            span = range(start, start + (window or 1))
            entry, entry_trace = h, trace
            for t in span:
                local, old = self.local(h, xs[t]), trace
                h, trace = self._step(self.params.vector, h, xs[t]), trace.advance(local)
            if window is None:
                signal = self._signal(self._loss_slope(h, targets[start]), modulators, start)
                total += signal.ravel() @ local.exact + old.past(local, signal)
            else:
                inside = complex_jacobian(
                    lambda p, h=entry, span=span: self._loss(p, h, xs, targets, span), self.params.vector
                )
                at_entry = complex_jacobian(
                    lambda h, span=span: self._loss(self.params.vector, h, xs, targets, span), entry
                )
                total += inside[0] + entry_trace.entry(self._signal(at_entry.reshape(h.shape), modulators, start))
        return self.params.unravel(total)

    def local(self, h, x):
        """Return the Jacobians of one step."""
        keep = self.config.recurrence_scope == "sparse_n"
        cut = (lambda v: v) if keep else np.real
        exact = complex_jacobian(lambda p: self._step(p, h, x), self.params.vector)
        gathered = exact if keep else complex_jacobian(lambda p: self._step(p, h, x, cut=cut), self.params.vector)
        carriers, sizes = {}, {}

        def note(name, carrier, y):
            carriers[name], sizes[name] = carrier, y.size
            return y

        self._step(self.params.vector, h, x, tap=note)
        add = lambda name, tap: lambda key, carrier, y: y + tap if key == name else y
        influence = {
            name: complex_jacobian(
                lambda tap, name=name: self._step(self.params.vector, h, x, cut=cut, tap=add(name, tap)), np.zeros(size)
            )
            for name, size in sizes.items()
        }
        return Local(self._transition(h, x), gathered, exact, carriers, influence)

    def _step(self, vector, h, x, mixed=None, cut=lambda v: v, tap=lambda name, carrier, y: y):
        return self.cell.advance(self.params.unravel(vector), h, x, h if mixed is None else mixed, cut, tap)

    def _transition(self, h, x):
        config = self.config
        recursion = config.recursion_f if config.is_factorized else config.temporal_recursion
        if recursion == "none":
            return np.zeros((h.size, h.size))
        if recursion == "scalar_leak":  # a factor has its decay outside of the transition
            return (1.0 if config.is_factorized else config.decay) * np.eye(h.size)
        mixed = h if config.recurrence_scope == "diagonal" else None
        full = complex_jacobian(lambda entry: self._step(self.params.vector, entry, x, mixed=mixed), h)
        if config.recurrence_scope != "sparse_n":  # the states' blocks at equal positions
            full = full * np.tile(np.eye(h.shape[1]), (h.shape[0], h.shape[0]))
        return full

    def _start(self, h, x):
        if self.config.is_factorized:
            local = self.local(h, x)
            zeros = {k: np.zeros(v.size + 1) for k, v in local.carriers.items()}
            none = {k: np.zeros_like(df) for k, df in local.influence.items()}
            return FactoredTrace(zeros, none, 0, self.config, self.params)
        nothing = np.zeros((h.size, self.params.vector.size))
        return FullTrace(nothing, nothing, self.config.kappa or 0.0, self._mask(h, x))

    def _mask(self, h, x):
        """Return which hidden elements a trace keeps under sparse_n: those within n steps, on generic values."""
        if self.config.recurrence_scope != "sparse_n":
            return 1.0
        local = self.local(np.random.default_rng(0).uniform(0.2, 0.7, h.shape), np.ones_like(x))
        steps = (np.abs(local.transition) > 0) | np.eye(h.size, dtype=bool)
        near = np.abs(local.gathered) > 0
        for _ in range(self.config.sparse_n - 1):
            near = steps.astype(float) @ near > 0
        return near.astype(float)

    def _loss_slope(self, h, target):
        slope = np.zeros_like(h)
        slope[self.cell.output] = 2 * (h[self.cell.output] - target)
        return slope

    def _loss(self, vector, h, xs, targets, span):
        value = np.zeros(1)
        for t in span:
            h = self._step(vector, h, xs[t])
            value = value + np.sum((h[self.cell.output] - targets[t]) ** 2)
        return value

    def _signal(self, signal, modulators, start):
        if self.config.learning_signal == "random_feedback":
            return signal @ self.feedback.T
        if self.config.learning_signal == "modulatory":
            return np.broadcast_to(modulators[start], signal.shape)
        return signal


def rule_gradient(cell, params, config, h, xs, targets, *, window=None, feedback=None, modulators=None):
    """Return the gradient of a rule, summed over a batch: h (states, batch, n), xs and targets (time, batch, n)."""
    h, xs, targets = (np.asarray(v, float) for v in (h, xs, targets))
    rule = DenseRule(cell, Flat(params), config, feedback)
    per_sample = [rule.gradient(h[:, b], xs[:, b], targets[:, b], window, modulators) for b in range(xs.shape[1])]
    return jax.tree.map(lambda *g: sum(g), *per_sample)
