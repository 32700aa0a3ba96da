"""Recurrence scopes: `sparse_n` is exact at and above the diameter, and keeps what lies within n steps below it."""

import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import BATCH, INPUTS, UNITS, Net, data, make, sequence_gradient
from engine_oracles import Cell, bptt, relative_error, rule_gradient

import etrace_config

pytestmark = pytest.mark.usefixtures("double")
SLOW = pytest.mark.slow
ORDER = np.array([2, 0, 3, 1])
TAILS = {
    "roll": lambda h: jnp.roll(h, 1, axis=-1),
    "flip": lambda h: jnp.flip(h, axis=-1),
    "gather": lambda h: h[..., ORDER],
    "layer-norm": lambda h: (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 0.1),
    "softmax": lambda h: jnp.exp(h) / jnp.exp(h).sum(-1, keepdims=True),
}


def with_tail(name):
    """Build a tanh network whose new state is permuted or normalised."""

    def advance(p, h, x):
        new = TAILS[name](jnp.tanh(x @ p["w_in"] + h["h"] @ p["w"] + p["b"]))
        return {"h": new}, new

    return lambda: Net({"w_in": (INPUTS, UNITS), "w": (UNITS, UNITS), "b": (UNITS,)}, {"h": (UNITS,)}, advance)


def two_layers():
    """Build two tanh layers, the lower of other width."""

    def advance(p, h, x):
        low = jnp.tanh(x @ p["w1"] + h["low"] @ p["v1"])
        high = jnp.tanh(low @ p["w2"] + h["high"] @ p["v2"])
        return {"low": low, "high": high}, high

    shapes = {"w1": (INPUTS, 2), "v1": (2, 2), "w2": (2, UNITS), "v2": (UNITS, UNITS)}
    return Net(shapes, {"low": (2,), "high": (UNITS,)}, advance)


MODELS = {"tanh": "tanh", "gru": "gru", "lstm": "lstm"} | {name: with_tail(name) for name in TAILS}


def models(names, quick=()):
    """Return models as parameters; all but the quick ones are slow."""
    marks = lambda name: [] if name in quick else [SLOW]
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in names])


@models(MODELS, quick=("roll",))
def test_saturated_single_steps_are_exact(name):
    xs, targets = data()
    learner, model = make(MODELS[name], etrace_config.snap(4), xs[0])

    found = sequence_gradient(learner, xs, targets)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 1e-12
    assert relative_error(bptt(model, xs, targets, window=1), expected) > 1e-2


@models(["tanh", "gru", "lstm", "roll", "flip", "gather", "layer-norm"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_saturated_windows_are_exact(name, window):
    xs, targets = data()
    learner, model = make(MODELS[name], etrace_config.snap(4), xs[0], vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=window)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 1e-12
    assert relative_error(bptt(model, xs, targets, window=window), expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 2, 3])
def test_joint_groups_make_two_layers_exact(window):
    xs, targets = data()
    options = {"vjp_method": "multi-step", "hidden_groups": "joint"}
    learner, model = make(two_layers, etrace_config.snap(6), xs[0], **options)

    found = sequence_gradient(learner, xs, targets, window=window)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 1e-12
    assert relative_error(bptt(model, xs, targets, window=window), expected) > 1e-2


@pytest.mark.slow
def test_separate_groups_leave_two_layers_inexact():
    xs, targets = data()
    learner, model = make(two_layers, etrace_config.snap(6), xs[0], vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=2)

    assert relative_error(found, bptt(model, xs, targets)) > 1e-3


# A ring: unit q reads units q - 1 and q only, so that its influence spreads by one unit a step.
RING = np.eye(6) + np.roll(np.eye(6), 1, axis=1)


def ring():
    def advance(p, h, x):
        new = jnp.tanh(x @ p["w_in"] + h["h"] @ (p["w"] * RING))
        return {"h": new}, new

    return Net({"w_in": (INPUTS, 6), "w": (6, 6)}, {"h": (6,)}, advance)


def _ring_cell(params, h, x, mixed, cut, tap):
    return np.tanh(x @ params[("params", "w_in")] + mixed[0] @ (params[("params", "w")] * RING))[None]


@pytest.mark.parametrize("order", [2, pytest.param(3, marks=SLOW), pytest.param(5, marks=SLOW)])
def test_unsaturated_order_keeps_what_lies_within_its_steps(order):
    xs, targets = data(units=6)
    rule = etrace_config.snap(order)
    learner, model = make(ring, rule, xs[0])

    found = sequence_gradient(learner, xs, targets)

    params = {path: state.value for path, state in learner.param_states.items()}
    oracle = lambda n: rule_gradient(
        Cell(_ring_cell, 1, 0), params, etrace_config.snap(n), jnp.zeros((1, BATCH, 6)), xs, targets
    )
    assert relative_error(found, oracle(order)) < 1e-12
    assert relative_error(oracle(order - 1), oracle(order)) > 1e-4
    assert relative_error(bptt(model, xs, targets), oracle(6)) < 1e-12


@pytest.mark.slow
def test_order_one_is_coupled():
    learner, _ = make("lstm", etrace_config.snap(1), data()[0][0])

    assert learner.config == etrace_config.ostl_recurrent()
