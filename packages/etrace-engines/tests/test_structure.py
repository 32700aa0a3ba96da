"""The coupled D by structure is the block diagonal that a pull per position computes, and steps aside elsewhere."""

import brainstate
import jax.numpy as jnp
import pytest
from engine_models import INPUTS, UNITS, Net, data, make, normal
from engine_oracles import relative_error

import etrace_config
from etrace_engines._graph.graph import current_inputs

pytestmark = pytest.mark.usefixtures("double")
SLOW = pytest.mark.slow
QUICK = ("gru", "lstm", "units-before-samples", "layer-norm", "three-in-a-row")
HIDDEN = {"h": (UNITS,)}
SHAPES = {"w_in": (INPUTS, UNITS), "w": (UNITS, UNITS)}


def net(pre, **shapes):
    """Return the builder of a leaky tanh network from its preactivation."""

    def advance(p, h, x):
        new = 0.7 * h["h"] + jnp.tanh(pre(p, h["h"], x))
        return {"h": new}, new

    return lambda: Net(SHAPES | shapes, HIDDEN, advance)


def reset_gate(p, h, x):
    """Two products in a row."""
    return (h * jnp.tanh(h @ p["w"])) @ p["u"] + x @ p["w_in"]


PRODUCTS = {  # model: products on the way, and pairs of them in a row, over its groups
    "tanh": ("tanh", 1, 0),
    "gru": ("gru", 2, 1),
    "mgu": ("mgu", 2, 1),
    "lstm": ("lstm", 1, 0),
    "urlstm": ("urlstm", 1, 0),
    "units-before-samples": (net(lambda p, h, x: (p["w"] @ h.T).T), 1, 0),
    "two-uses": (net(lambda p, h, x: h @ p["w"] + jnp.tanh(h) @ p["u"] + x @ p["w_in"], u=(UNITS, UNITS)), 2, 0),
    "rolled-output": (net(lambda p, h, x: jnp.roll(jnp.tanh(h @ p["w"]), 1, axis=-1) * h), 1, 0),
    "rolled-carrier": (net(lambda p, h, x: jnp.roll(h, 1, axis=-1) @ p["w"]), 1, 0),
    "reset-gate": (net(reset_gate, u=(UNITS, UNITS)), 1, 1),
}
OTHER_FORMS = {
    "layer-norm": net(lambda p, h, x: (h - h.mean(-1, keepdims=True)) @ p["w"]),
    "roll": net(lambda p, h, x: x @ p["w_in"] + jnp.roll(h, 1, axis=-1)),
    "constant-matrix": net(lambda p, h, x: h @ jnp.ones((UNITS, UNITS)) + x @ p["w_in"]),
    "state-twice-in-a-carrier": net(lambda p, h, x: jnp.concatenate([h, h], -1) @ p["w2"], w2=(2 * UNITS, UNITS)),
    "three-in-a-row": net(lambda p, h, x: jnp.tanh(jnp.tanh(h @ p["w"]) @ p["w"]) @ p["w"]),
}


def analysed(build, batch):
    """Return what computes the dynamics of a model, at random states."""
    xs, _ = data()
    x = xs[0] if batch else xs[0, 0]
    learner, _ = make(build, etrace_config.snap(1), x, batch=batch)
    for k, state in enumerate(learner.hidden_states.values()):
        state.value = normal(k, *state.value.shape)
    return learner.rule.engine.dynamics, current_inputs(learner.rule.graph.step, (x,))


@pytest.mark.parametrize("batch", [2, pytest.param(None, marks=SLOW)], ids=["batched", "unbatched"])
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=SLOW) for n in PRODUCTS])
def test_structured_blocks_are_the_block_diagonal(name, batch):
    build, gains, chains = PRODUCTS[name]
    dynamics, inputs = analysed(build, batch)
    graph = dynamics.graph
    (structure,), (group,) = dynamics.structures, graph.groups
    weights = graph.weights(inputs.params)
    influence, (direct,) = dynamics._influence(inputs, weights)

    found = structure.blocks(inputs, weights, influence, direct)

    expected = dynamics._transition.blocks(inputs, weights, group)
    assert (len(structure.gains), len(structure.chains)) == (gains, chains)
    assert relative_error(found, expected) < 1e-13
    assert relative_error(direct, expected) > 1e-3


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=SLOW) for n in OTHER_FORMS])
def test_other_forms_have_no_structure(name):
    dynamics, _ = analysed(OTHER_FORMS[name], 2)

    assert dynamics.structures == [None]


@pytest.mark.slow
def test_stacked_cells_have_one_structure_each():
    class Stack(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = brainstate.nn.GRUCell(INPUTS, 3), brainstate.nn.LSTMCell(3, UNITS)

        def update(self, x):
            return self.high(self.low(x))

    dynamics, _ = analysed(Stack, 2)

    assert [len(s.chains) for s in dynamics.structures] == [1, 0]
