"""What the injection changes in the gradient, and what it must not change."""

import functools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import (
    BATCH,
    TIME,
    UNITS,
    WINDOW,
    Constant,
    Leaky,
    Oracle,
    bptt,
    by_name,
    future_gradients,
    gap,
    last,
    make_learner,
    per_window,
    sequence,
    squares,
    start_params,
    truncated,
    window_losses,
)

import dni_synth
import etrace_engines as ee

PLAIN, TRACED = (), None


def gradient(synthesizer, traced, **options):
    learner = make_learner(traced=traced)
    if synthesizer is not None:
        learner.attach(synthesizer)
    found = learner.etrace_grad(
        sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, reduction="sum", **options
    )
    return by_name(found)


@functools.cache
def without(traced):
    """The gradients of a learner that has no synthesiser."""
    return gradient(None, traced)


@pytest.mark.parametrize(
    ("synthesizer", "traced"),
    [
        pytest.param(dni_synth.Zero(), PLAIN, id="zero-plain"),
        pytest.param(dni_synth.Affine(), PLAIN, id="unfitted affine-plain", marks=pytest.mark.slow),
        pytest.param(dni_synth.Zero(), TRACED, id="zero-traced", marks=pytest.mark.slow),
        pytest.param(dni_synth.Affine(), TRACED, id="unfitted affine-traced", marks=pytest.mark.slow),
    ],
)
def test_a_zero_estimate_changes_no_bit(synthesizer, traced):
    found = gradient(synthesizer, traced)

    for name, value in found.items():
        np.testing.assert_array_equal(value, without(traced)[name], err_msg=name)


def test_a_live_estimate_moves_plain_parameters_but_not_the_readout():
    found = gradient(Constant(), PLAIN)

    assert gap(found["win"], without(PLAIN)["win"]) > 1e-2
    assert gap(found["w"], without(PLAIN)["w"]) > 1e-2
    np.testing.assert_array_equal(found["wout"], without(PLAIN)["wout"])


def test_a_live_estimate_moves_no_bit_of_traced_parameters():
    found = gradient(Constant(), TRACED)

    for name, value in found.items():
        np.testing.assert_array_equal(value, without(TRACED)[name], err_msg=name)


@pytest.mark.slow
def test_switched_off_a_live_estimate_changes_no_bit():
    found = gradient(Constant(), PLAIN, synth="off")

    for name, value in found.items():
        np.testing.assert_array_equal(value, without(PLAIN)[name], err_msg=name)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 1e-5), pytest.param(jnp.float64, 1e-12, marks=pytest.mark.slow)]
)
def test_the_exact_estimate_gives_the_gradient_of_bptt(dtype, tolerance):
    with jax.enable_x64(dtype == jnp.float64):
        params, xs = start_params(dtype=dtype), sequence(dtype=dtype)
        learner = make_learner(dtype=dtype)
        learner.attach(Oracle(), context_dim=UNITS)
        exact = per_window(future_gradients(params, xs))
        options = {"step_fn": window_losses(learner), "chunk_size": WINDOW, "reduction": "sum", "context_fn": last}

        found = by_name(learner.etrace_grad(xs, exact, **options))
        learner.reset_state()
        cut = by_name(learner.etrace_grad(xs, exact, synth="off", **options))

        for name, value in bptt(params, xs).items():
            assert gap(found[name], value) < tolerance
            if name != "wout":
                assert gap(cut[name], value) > 1e-3


def test_the_estimate_after_the_last_step_is_zero():
    learner = make_learner()
    learner.attach(Constant())

    found = learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=TIME, reduction="sum")

    for name, value in bptt(start_params(), sequence()).items():
        assert gap(by_name(found)[name], value) < 1e-5


@pytest.mark.slow
def test_a_stream_that_goes_on_keeps_the_last_estimate():
    learner = make_learner()
    learner.attach(Constant())

    found = learner.etrace_grad(
        sequence(), step_fn=window_losses(learner), chunk_size=TIME, reduction="sum", done=[False]
    )

    assert gap(by_name(found)["win"], bptt(start_params(), sequence())["win"]) > 1e-3


@pytest.mark.slow
def test_scaling_the_loss_does_not_scale_the_injection():
    learner = make_learner()
    learner.attach(Constant())
    xs = sequence()[:WINDOW]

    def loss(scale):
        learner.reset_state()
        return scale * jnp.sum(squares(learner(ee.MultiStepData(xs))))

    def found(scale):
        return by_name(brainstate.transform.grad(lambda: loss(scale), learner.param_states)())["win"]

    once, twice, nothing = found(1.0), found(2.0), found(0.0)

    assert gap(twice - once, once - nothing) < 1e-5
    assert float(jnp.linalg.norm(nothing)) > 1e-2


@pytest.mark.slow
def test_a_window_whose_loss_ignores_the_output_still_gets_the_estimate():
    learner = make_learner()
    learner.attach(Constant())

    def no_loss(xs):
        learner(ee.MultiStepData(xs))
        return jnp.zeros(WINDOW)

    found = learner.etrace_grad(sequence(), step_fn=no_loss, chunk_size=WINDOW, done=[False] * 4)

    assert float(jnp.linalg.norm(by_name(found)["win"])) > 1e-2


@pytest.mark.slow
def test_only_batch_elements_that_go_on_get_the_estimate():
    done = jnp.zeros((TIME // WINDOW, BATCH), bool).at[:, 0].set(True).at[-1].set(True)
    params, xs = start_params(), sequence()
    exact = future_gradients(params, xs)
    learner = make_learner()
    learner.attach(Oracle(), context_dim=UNITS)

    found = learner.etrace_grad(
        xs,
        per_window(exact),
        step_fn=window_losses(learner),
        chunk_size=WINDOW,
        reduction="sum",
        context_fn=last,
        done=done,
    )

    ended, others = truncated(xs[:, :1]), bptt(params, xs[:, 1:])
    assert gap(by_name(found)["w"], ended["w"] + others["w"]) < 1e-5
    assert gap(ended["w"], bptt(params, xs[:, :1])["w"]) > 1e-3


@pytest.mark.slow
def test_steps_without_later_weight_end_the_episode_by_themselves():
    learner = make_learner()
    learner.attach(Constant())
    mask = jnp.arange(TIME) < WINDOW

    found = learner.etrace_grad(
        sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, reduction="sum", mask=mask
    )

    assert gap(by_name(found)["win"], bptt(start_params(), sequence()[:WINDOW])["win"]) < 1e-5


class TwoUses(Leaky):
    """`win` drives the hidden state through a product, which is traced, and through an angle, for which no rule is."""

    def update(self, x):
        angle = jnp.arctan2(self.win.value[0], 1 + x[..., :1] ** 2)
        self.h.value = 0.8 * self.h.value + 0.4 * jnp.tanh(x @ self.win.value) + 0.3 * angle @ self.w.value
        return self.h.value @ self.wout.value


def two_uses_run(params, h, xs, kicks=None):
    kicks = jnp.zeros((len(xs), *h.shape), h.dtype) if kicks is None else kicks

    def step(h, x):
        x, kick = x
        angle = jnp.arctan2(params["win"][0], 1 + x[..., :1] ** 2)
        h = 0.8 * h + 0.4 * jnp.tanh(x @ params["win"]) + 0.3 * angle @ params["w"]
        return h + kick, h @ params["wout"]

    return jax.lax.scan(step, h, (xs, kicks))


@pytest.mark.slow
def test_a_parameter_used_both_traced_and_plainly_equals_bptt():
    params, xs = start_params(), sequence()
    learner = make_learner(traced=TRACED, model=TwoUses())
    learner.attach(Oracle(), context_dim=UNITS)
    exact = per_window(future_gradients(params, xs, run=two_uses_run))
    options = {"step_fn": window_losses(learner), "chunk_size": WINDOW, "reduction": "sum", "context_fn": last}

    found = by_name(learner.etrace_grad(xs, exact, **options))
    learner.reset_state()
    cut = by_name(learner.etrace_grad(xs, exact, synth="off", **options))

    truth = bptt(params, xs, run=two_uses_run)
    for name, value in truth.items():
        assert gap(found[name], value) < 1e-5, name
    assert gap(cut["win"], truth["win"]) > 1e-3


class Filtered(Leaky):
    """The hidden state reads a low-pass filter, which is carried but is not a hidden state."""

    def init_state(self, batch_size=None, **kwargs):
        super().init_state(batch_size)
        self.m = brainstate.ShortTermState(jnp.zeros((batch_size, UNITS)))

    def update(self, x):
        self.m.value = 0.7 * self.m.value + 0.3 * jnp.tanh(self.h.value @ self.w.value)
        self.h.value = 0.8 * self.h.value + 0.4 * jnp.tanh(x @ self.win.value + self.m.value)
        return self.h.value @ self.wout.value


def filtered_run(params, h, xs, kicks=None):
    kicks = jnp.zeros((len(xs), *h.shape[:-1], 2 * UNITS)) if kicks is None else kicks

    def step(carry, x):
        (h, m), (x, kick) = carry, x
        m = 0.7 * m + 0.3 * jnp.tanh(h @ params["w"])
        h = 0.8 * h + 0.4 * jnp.tanh(x @ params["win"] + m)
        return (h + kick[..., :UNITS], m + kick[..., UNITS:]), h @ params["wout"]

    return jax.lax.scan(step, (h, jnp.zeros_like(h)), (xs, kicks))


# Of the engine, for whoever does not learn in windows.
UNTRACED = pytest.mark.filterwarnings("ignore:States m carry influence:UserWarning")


class PairOracle(Oracle):
    """The exact estimates of both states side by side in the context."""

    def apply(self, params, hiddens, context):
        parts = {"h": context[..., :UNITS], "m": context[..., UNITS:]}
        return {name: parts[name] for name in hiddens}


@jax.jit
def filtered_future(params, xs):
    kicks = jnp.zeros((TIME, BATCH, 2 * UNITS))
    h = jnp.zeros((BATCH, UNITS))
    by_kick = jax.grad(lambda kicks: jnp.sum(squares(filtered_run(params, h, xs, kicks)[1])))(kicks)
    return per_window(by_kick[WINDOW - 1 :: WINDOW])


@pytest.mark.slow
@UNTRACED
def test_with_carried_states_that_are_not_hidden_the_exact_estimate_equals_bptt():
    params, xs = start_params(), sequence()
    learner = make_learner(model=Filtered(), include_other_states=True)
    learner.attach(PairOracle(), context_dim=2 * UNITS)

    found = learner.etrace_grad(
        xs,
        filtered_future(params, xs),
        step_fn=window_losses(learner),
        chunk_size=WINDOW,
        reduction="sum",
        context_fn=last,
    )

    for name, value in bptt(params, xs, run=filtered_run).items():
        assert gap(by_name(found)[name], value) < 1e-5, name


@pytest.mark.slow
@UNTRACED
def test_carried_states_left_out_are_named_and_make_the_gradient_wrong():
    params, xs = start_params(), sequence()
    learner = make_learner(model=Filtered())
    with pytest.warns(UserWarning, match=r"\['m'\].*include_other_states=True"):
        learner.attach(PairOracle(), context_dim=2 * UNITS)

    found = learner.etrace_grad(
        xs,
        filtered_future(params, xs),
        step_fn=window_losses(learner),
        chunk_size=WINDOW,
        reduction="sum",
        context_fn=last,
    )

    assert gap(by_name(found)["w"], bptt(params, xs, run=filtered_run)["w"]) > 1e-2
