"""What unmodified models may do: an exact rule in single steps meets BPTT, and the report says what is traced."""

from typing import NamedTuple

import brainstate
import brainunit
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import BATCH, INPUTS, STEPS, UNITS, Net, data, make, normal, sequence_gradient
from engine_oracles import bptt, relative_error

import etrace_config
import etrace_engines

SLOW = pytest.mark.slow
HIDDEN = {"h": (UNITS,)}
PLAIN = {"w_in": (INPUTS, UNITS), "w": (UNITS, UNITS)}


def mask_like(w):
    """Return a mask of connections: none to units that lie two or more below."""
    return np.tril(np.ones((UNITS, UNITS), w.dtype), 1).T


class Row(NamedTuple):
    """A model: its network, its rule (None: an exact sparse_n on joint groups), what is not traced, and its inputs."""

    build: object
    rule: object = None
    in_step: tuple = ()
    xs: object = None
    quick: bool = False


def recurrent(pre, shapes=PLAIN, **row):
    """Return a row of a tanh network from its preactivation (params, hidden, x)."""

    def advance(p, h, x):
        new = jnp.tanh(pre(p, h["h"], x))
        return {"h": new}, new

    return Row(lambda: Net(shapes, HIDDEN, advance), **row)


def elementwise(advance, params, hidden=("h",), **row):
    """Return a row of a network without recurrent weights, on which D-RTRL is exact."""
    shapes = {"w_in": (INPUTS, UNITS)} | params
    return Row(lambda: Net(shapes, dict.fromkeys(hidden, (UNITS,)), advance), etrace_config.d_rtrl(), **row)


@jax.custom_vjp
def spike(v):
    """A step with a surrogate gradient, on a smooth forward value so that BPTT is not flat."""
    return jnp.tanh(v)


spike.defvjp(lambda v: (jnp.tanh(v), v), lambda v, g: (g / (1 + v**2),))


def adaptive(p, h, x):
    """Membrane and adaptation, coupled at each unit; one equation reads both."""
    v = 0.8 * h["v"] - 0.3 * h["a"] + x @ p["w_in"]
    y = spike(v - h["a"])
    return {"v": v - 0.5 * y, "a": 0.9 * h["a"] + 0.1 * y}, y


def gated_leak(p, h, x):
    """A trainable leak per unit, and a threshold."""
    leak = jax.nn.sigmoid(p["tau"])
    new = leak * h["h"] + (1 - leak) * jnp.tanh(x @ p["w_in"] - p["threshold"])
    return {"h": new}, new


def after_and_inside(p, h, x):
    """A parameter used in the recurrence and once more after it."""
    new = jnp.tanh(x @ p["w_in"] + h["h"] @ p["w"])
    return {"h": new}, new @ p["w"]


def substeps(p, h, x):
    """Three substeps by a scan that holds the parameter."""
    drive = x @ p["w_in"]
    new, _ = jax.lax.scan(lambda h, _: (0.5 * h + 0.5 * jnp.tanh(drive + h @ p["w"]), None), h["h"], None, length=3)
    return {"h": new}, new


def conditional(p, h, x):
    """One of two recurrences, chosen by the input."""
    new = jnp.tanh(x @ p["w_in"] + jax.lax.cond(x.sum() > 0, lambda h: h @ p["w"], lambda h: h * p["b"], h["h"]))
    return {"h": new}, new


def two_shapes(p, h, x):
    """Two hidden states of different shapes that read each other."""
    narrow = jnp.tanh(x @ p["w1"] + h["wide"] @ p["v1"])
    wide = jnp.tanh(narrow @ p["w2"] + 0.5 * h["wide"])
    return {"narrow": narrow, "wide": wide}, wide


def grouped(p, h, x):
    """Groups of two units, each with its own weights, by einsum."""
    state = h["h"].reshape(*h["h"].shape[:-1], -1, 2)
    new = jnp.tanh(x @ p["w_in"] + jnp.einsum("...gi,gij->...gj", state, p["w"]).reshape(h["h"].shape))
    return {"h": new}, new


def transposed(p, h, x):
    """The recurrent product with units before samples."""
    new = jnp.tanh(x @ p["w_in"] + (p["w"] @ h["h"].T).T)
    return {"h": new}, new


def convolutional(p, h, x):
    """A convolutional recurrent network on a line of 5 places."""
    conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    new = jnp.tanh(conv(x, p["w_in"]) + conv(h["h"], p["w"]))
    return {"h": new}, new.reshape(*new.shape[:-2], -1)


def embedded(p, h, x):
    """Tokens looked up in a table."""
    new = jnp.tanh(p["table"][x] + h["h"] @ p["w"])
    return {"h": new}, new


def weighted_sum(p, h, x):
    """A low-rank product, and a plain weight beside it."""
    new = jnp.tanh(x @ p["w_in"] + h["h"] @ (p["a"] @ p["b"] + p["w"]))
    return {"h": new}, new


def chained(p, h, x):
    """Low-rank products one after the other; the second writes units before samples."""
    new = 0.8 * h["h"] + jnp.tanh(x @ p["a"] @ p["b"] + (p["d"] @ (p["c"] @ x.T)).T)
    return {"h": new}, new


ROWS, COLUMNS = np.array([0, 0, 1, 3, 3, 3]), np.array([1, 3, 0, 0, 2, 3])  # six connections among four units
MATRICES = {
    "compressed-rows": lambda w: brainunit.sparse.CSR((w, COLUMNS, np.array([0, 2, 3, 3, 6])), shape=(UNITS, UNITS)),
    "coordinates": lambda w: brainunit.sparse.COO((w, ROWS, COLUMNS), shape=(UNITS, UNITS)),
    "dense": lambda w: jnp.zeros((UNITS, UNITS)).at[ROWS, COLUMNS].set(w),
}


def connected(matrix):
    """Return the step of a network with recurrent weights given connection by connection."""

    def advance(p, h, x):
        new = jnp.tanh(x @ p["w_in"] + h["h"] @ MATRICES[matrix](p["w"]))
        return {"h": new}, new

    return net(advance, w=ROWS.shape)


def tied(p, h, x):
    """One weight for inputs and state."""
    new = jnp.tanh(jnp.concatenate([x, x[..., :1]], -1) @ p["w"] + 0.5 * h["h"] @ p["w"].T)
    return {"h": new}, new


def readout(p, h, x):
    """A readout, and a skip connection, which no trace follows."""
    new = jnp.tanh(x @ p["w_in"] + h["h"] @ p["w"])
    return {"h": new}, new @ p["w_out"] + x @ p["skip"]


def net(advance, **shapes):
    """Return the builder of a network with one hidden state."""
    return lambda: Net(PLAIN | shapes, HIDDEN, advance)


IMAGE = (5, 2)
ZOO = {
    "transformed-weights": recurrent(
        lambda p, h, x: x @ jax.nn.softplus(p["w_in"]) + h @ (p["w"].T * mask_like(p["w"]) + jnp.exp(p["u"])),
        PLAIN | {"u": (UNITS, UNITS)},
        quick=True,
    ),
    "tied": Row(lambda: Net({"w": (UNITS, UNITS)}, HIDDEN, tied)),
    "low-rank": Row(net(weighted_sum, a=(UNITS, 2), b=(2, UNITS))),
    "low-rank-chain": Row(
        lambda: Net({"a": (INPUTS, 2), "b": (2, UNITS), "c": (2, INPUTS), "d": (UNITS, 2)}, HIDDEN, chained),
        etrace_config.d_rtrl(),
        quick=True,
    ),
    "scattered-weights": Row(connected("dense")),
    "constant-bias": recurrent(lambda p, h, x: x @ p["w_in"] + h @ p["w"] + 0.3 * jnp.arange(UNITS)),
    "constant-recurrence": recurrent(lambda p, h, x: x @ p["w_in"] + h @ mask_like(h), {"w_in": (INPUTS, UNITS)}),
    "checkpoint": recurrent(lambda p, h, x: jax.checkpoint(lambda h, w: h @ w)(h, p["w"]) + x @ p["w_in"]),
    "vmap-inside": recurrent(lambda p, h, x: jax.vmap(lambda x, h: x @ p["w_in"] + h @ p["w"])(x, h)),
    "einsum-groups": Row(lambda: Net({"w_in": (INPUTS, 6), "w": (3, 2, 2)}, {"h": (6,)}, grouped)),
    "einsum-as-many-groups-as-samples": Row(net(grouped, w=(BATCH, 2, 2))),
    "transposed-layout": Row(net(transposed, w=(UNITS, UNITS))),
    "convolution": Row(
        lambda: Net({"w_in": (3, 1, 2), "w": (3, 2, 2)}, {"h": IMAGE}, convolutional),
        xs=lambda: normal(1, STEPS, BATCH, 5, 1),
    ),
    "embedding": Row(
        lambda: Net({"table": (7, UNITS), "w": (UNITS, UNITS)}, HIDDEN, embedded),
        xs=lambda: jnp.asarray(np.random.default_rng(1).integers(0, 7, (STEPS, BATCH))),
    ),
    "short-scan": Row(net(substeps)),
    "cond": Row(net(conditional, b=(UNITS,))),
    "two-shapes": Row(
        lambda: Net(
            {"w1": (INPUTS, 3), "v1": (UNITS, 3), "w2": (3, UNITS)}, {"narrow": (3,), "wide": (UNITS,)}, two_shapes
        )
    ),
    "readout-and-skip": Row(
        net(readout, w_out=(UNITS, UNITS), skip=(INPUTS, UNITS)), in_step=("w_out", "skip"), quick=True
    ),
    "inside-and-after": Row(net(after_and_inside)),
    "two-states-in-one-equation": elementwise(adaptive, {}, ("v", "a"), quick=True),
    "trainable-leak": elementwise(gated_leak, {"tau": (UNITS,), "threshold": (UNITS,)}),
    "not-reaching-state": elementwise(
        lambda p, h, x: ({"h": 0.9 * h["h"] + x @ p["w_in"]}, h["h"] * p["gain"] + p["offset"]),
        {"gain": (UNITS,), "offset": (UNITS,)},
        in_step=("gain", "offset"),
    ),
}
every_model = pytest.mark.parametrize("name", [n if r.quick else pytest.param(n, marks=SLOW) for n, r in ZOO.items()])


def compiled(name, **options):
    """Compile a model of the zoo with its exact rule."""
    row = ZOO[name]
    xs = data()[0] if row.xs is None else row.xs()
    joint = {"hidden_groups": "joint"} if row.rule is None else {}
    learner, model = make(row.build, row.rule or etrace_config.snap(8), xs[0], **joint, **options)
    return learner, model, xs, normal(2, STEPS, BATCH, np.size(learner.model(xs[0])) // BATCH)


@pytest.mark.usefixtures("double")
@every_model
def test_exact_rule_meets_bptt_step_by_step(name):
    learner, model, xs, targets = compiled(name)
    learner.reset_state()

    found = sequence_gradient(learner, xs, targets)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 1e-11
    assert relative_error(bptt(model, xs, targets, window=1), expected) > 1e-3


@pytest.mark.usefixtures("double")
@pytest.mark.slow
@every_model
def test_windows_meet_bptt(name):
    learner, model, xs, targets = compiled(name, vjp_method="multi-step")
    learner.reset_state()

    assert relative_error(sequence_gradient(learner, xs, targets, window=2), bptt(model, xs, targets)) < 1e-11


@every_model
def test_report_says_what_is_traced(name):
    learner, *_ = compiled(name)

    treatments = {row.parameter: row.treatment for row in learner.report()}

    paths = {".".join(path): path[-1] for path in learner.param_states}
    assert treatments == {path: "in-step" if key in ZOO[name].in_step else "traced" for path, key in paths.items()}


def test_report_prints_one_line_per_parameter_with_its_reason():
    learner, *_ = compiled("readout-and-skip")

    lines = str(learner.report()).splitlines()

    assert lines[0].split() == ["parameter", "treatment", "relations", "groups", "reason"]
    assert len(lines) == 1 + len(learner.param_states)
    assert any("w_out" in line and "in-step" in line and "reaches no hidden state" in line for line in lines)


def test_excluded_parameter_is_learned_in_step_only():
    learner, *_ = compiled("readout-and-skip", traced=[("params", "w_in")])

    rows = {row.parameter: row for row in learner.report()}

    assert rows["params.w_in"].treatment == "traced"
    assert (rows["params.w"].treatment, rows["params.w"].reason) == ("in-step", "excluded by `traced`")


@pytest.mark.usefixtures("double")
def test_excluded_parameters_get_the_truncated_gradient():
    learner, model, xs, targets = compiled("two-states-in-one-equation", traced=())
    learner.reset_state()

    found = sequence_gradient(learner, xs, targets)

    assert relative_error(found, bptt(model, xs, targets, window=1)) < 1e-12
    assert relative_error(found, bptt(model, xs, targets)) > 1e-2


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("matrix", ["compressed-rows", "coordinates"])
def test_sparse_weights_learn_as_the_dense_matrix_they_are(matrix):
    # Against the dense model, since JAX's own gradient of these products is wrong before 0.12.
    xs, targets = data()
    learner, _ = make(connected(matrix), etrace_config.snap(8), xs[0])
    _, dense = make(connected("dense"), etrace_config.snap(8), xs[0])

    found = sequence_gradient(learner, xs, targets)

    assert learner.report().rows[1].treatment == "traced"
    assert relative_error(found, bptt(dense, xs, targets)) < 1e-11
    assert relative_error(bptt(dense, xs, targets, window=1), bptt(dense, xs, targets)) > 1e-2


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_bptt_oracle_agrees_with_finite_differences():
    learner, model, xs, targets = compiled("transformed-weights")
    learner.reset_state()
    direction = jax.tree.map(lambda p: normal(9, *p.shape), model.params)

    def loss(params):
        state, value = model.state, 0.0
        for x, target in zip(xs, targets, strict=True):
            state, y = model.step(params, state, x)
            value += ((y - target) ** 2).sum()
        return value

    numeric = (loss(_moved(model.params, direction, 1e-5)) - loss(_moved(model.params, direction, -1e-5))) / 2e-5
    exact = sum(jnp.vdot(g, direction[path]) for path, g in bptt(model, xs, targets).items())
    np.testing.assert_allclose(exact, numeric, rtol=1e-7)


def _moved(params, direction, size):
    return jax.tree.map(lambda p, d: p + size * d, params, direction)


def test_model_is_left_as_it_was():
    model = brainstate.nn.GRUCell(INPUTS, UNITS)
    before = {**vars(model)}

    etrace_engines.compile(model, "D_RTRL", jnp.zeros((BATCH, INPUTS)), batch_size=BATCH)

    after = {**vars(model)}
    del after["h"]  # the hidden state that the model's own `init_state` makes
    assert after == before
    assert type(model) is brainstate.nn.GRUCell
