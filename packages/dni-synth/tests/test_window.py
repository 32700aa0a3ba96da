"""What the injection changes in the gradient, and what it must not change."""

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


@pytest.fixture(scope="module")
def without():
    return {traced: gradient(None, traced) for traced in (PLAIN, TRACED)}


@pytest.mark.parametrize("synthesizer", [dni_synth.Zero(), dni_synth.Affine()], ids=["zero", "unfitted affine"])
@pytest.mark.parametrize("traced", [PLAIN, TRACED], ids=["plain", "traced"])
def test_a_zero_estimate_changes_no_bit(without, synthesizer, traced):
    found = gradient(synthesizer, traced)

    for name, value in found.items():
        np.testing.assert_array_equal(value, without[traced][name], err_msg=name)


def test_a_live_estimate_moves_plain_parameters_but_not_the_readout(without):
    found = gradient(Constant(), PLAIN)

    assert gap(found["win"], without[PLAIN]["win"]) > 1e-2
    assert gap(found["w"], without[PLAIN]["w"]) > 1e-2
    np.testing.assert_array_equal(found["wout"], without[PLAIN]["wout"])


def test_a_live_estimate_moves_no_bit_of_traced_parameters(without):
    found = gradient(Constant(), TRACED)

    for name, value in found.items():
        np.testing.assert_array_equal(value, without[TRACED][name], err_msg=name)


def test_switched_off_a_live_estimate_changes_no_bit(without):
    found = gradient(Constant(), PLAIN, synth="off")

    for name, value in found.items():
        np.testing.assert_array_equal(value, without[PLAIN][name], err_msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.float64, 1e-12)])
def test_the_exact_estimate_gives_the_gradient_of_bptt(dtype, tolerance):
    with jax.enable_x64(dtype == jnp.float64):
        params, xs = start_params(dtype=dtype), sequence(dtype=dtype)
        learner = make_learner(dtype=dtype)
        learner.attach(Oracle(), context_dim=UNITS)
        exact = per_window(future_gradients(params, xs))
        options = {"step_fn": window_losses(learner), "chunk_size": WINDOW, "reduction": "sum", "context_fn": last}

        found = by_name(learner.etrace_grad(xs, exact, **options))
        learner.reset_state()
        truncated = by_name(learner.etrace_grad(xs, exact, synth="off", **options))

        for name, value in bptt(params, xs).items():
            assert gap(found[name], value) < tolerance
            if name != "wout":
                assert gap(truncated[name], value) > 1e-3


def test_the_estimate_after_the_last_step_is_zero(without):
    learner = make_learner()
    learner.attach(Constant())

    found = learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=TIME, reduction="sum")

    for name, value in bptt(start_params(), sequence()).items():
        assert gap(by_name(found)[name], value) < 1e-5


def test_a_stream_that_goes_on_keeps_the_last_estimate():
    learner = make_learner()
    learner.attach(Constant())

    found = learner.etrace_grad(
        sequence(), step_fn=window_losses(learner), chunk_size=TIME, reduction="sum", done=[False]
    )

    assert gap(by_name(found)["win"], bptt(start_params(), sequence())["win"]) > 1e-3


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


def test_a_window_whose_loss_ignores_the_output_still_gets_the_estimate():
    learner = make_learner()
    learner.attach(Constant())

    def no_loss(xs):
        learner(ee.MultiStepData(xs))
        return jnp.zeros(WINDOW)

    found = learner.etrace_grad(sequence(), step_fn=no_loss, chunk_size=WINDOW, done=[False] * 4)

    assert float(jnp.linalg.norm(by_name(found)["win"])) > 1e-2


def test_only_batch_elements_that_go_on_get_the_estimate():
    done = jnp.zeros((TIME // WINDOW, BATCH), bool).at[:, 0].set(True).at[-1].set(True)
    params, xs = start_params(), sequence()
    alone = xs.at[:, 0].set(0)  # element 0 stays at zero and has no gradient of its own
    exact = future_gradients(params, alone).at[:, 0].set(1e3)
    learner = make_learner()
    learner.attach(Oracle(), context_dim=UNITS)

    found = learner.etrace_grad(
        alone,
        per_window(exact),
        step_fn=window_losses(learner),
        chunk_size=WINDOW,
        reduction="sum",
        context_fn=last,
        done=done,
    )

    assert gap(by_name(found)["w"], bptt(params, alone)["w"]) < 1e-5


def test_steps_without_later_weight_end_the_episode_by_themselves():
    learner = make_learner()
    learner.attach(Constant())
    mask = jnp.arange(TIME) < WINDOW

    found = learner.etrace_grad(
        sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, reduction="sum", mask=mask
    )

    assert gap(by_name(found)["win"], bptt(start_params(), sequence()[:WINDOW])["win"]) < 1e-5


class SharedWeight(Leaky):
    """`wout` is the readout, and also an elementwise drive of the hidden state through a use that has no trace."""

    def update(self, x):
        h = self.h.value
        drive = jnp.maximum(self.win.value[0], h)  # max has no trace; the matmul below has one
        self.h.value = 0.8 * h + 0.4 * jnp.tanh(x @ self.win.value) + 0.1 * drive
        return self.h.value @ self.wout.value


def shared_run(params, h, xs):
    def step(h, x):
        h = 0.8 * h + 0.4 * jnp.tanh(x @ params["win"]) + 0.1 * jnp.maximum(params["win"][0], h)
        return h, h @ params["wout"]

    return jax.lax.scan(step, h, xs)


def test_report():
    print(make_learner(traced=TRACED, model=SharedWeight()).report())
