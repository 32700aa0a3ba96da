"""Construction and attaching."""

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import BATCH, INPUTS, UNITS, WINDOW, Constant, Leaky, by_name, make_learner, sequence, window_losses

import dni_synth
import etrace_engines as ee
from etrace_config import ETraceConfig


def test_it_learns_in_windows_with_the_bootstrapped_signal_by_default():
    learner = make_learner()

    assert learner.vjp_method == "multi-step"
    assert learner.config == ETraceConfig(learning_signal="bootstrapped")
    assert learner.synthesizer is None


def test_single_steps_are_refused_at_construction():
    with pytest.raises(ValueError, match="`vjp_method` must be 'multi-step'"):
        dni_synth.DNI(Leaky(), vjp_method="single-step")


def test_another_learning_signal_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"config.replace\(learning_signal='bootstrapped'\)"):
        dni_synth.DNI(Leaky(), ETraceConfig())


def test_a_synthesiser_given_at_construction_is_attached_by_compilation():
    synthesizer = dni_synth.Affine()

    learner = make_learner(synthesizer=synthesizer)

    assert learner.synthesizer is synthesizer
    assert sorted(synthesizer.states_dict()) == ["h/bias", "h/weight"]


def test_the_function_and_the_method_attach_alike():
    first, second = make_learner(), make_learner()

    first.attach(dni_synth.Affine())
    dni_synth.attach(second, dni_synth.Affine())

    assert sorted(first.synthesizer.states_dict()) == sorted(second.synthesizer.states_dict())


@pytest.mark.slow
def test_states_that_are_coupled_position_by_position_form_one_group():
    learner = ee.compile(brainstate.nn.LSTMCell(INPUTS, 4), dni_synth.DNI, jnp.zeros((BATCH, INPUTS)), batch_size=BATCH)
    learner.attach(dni_synth.Affine())

    assert {name: s.value.shape for name, s in learner.synthesizer.states_dict().items()} == {
        "h+c/weight": (8, 8),
        "h+c/bias": (8,),
    }


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: dni_synth.attach(ee.D_RTRL(Leaky()), dni_synth.Affine()), TypeError, "must be a dni_synth.DNI"),
        (lambda: dni_synth.DNI(Leaky()).attach(dni_synth.Affine()), RuntimeError, "compile_graph"),
        (lambda: make_learner().attach(object()), TypeError, "must have the methods init, apply and states_dict"),
        (lambda: make_learner(check="maybe"), ValueError, "`check` must be one of"),
        (lambda: make_learner(credit="trace", traced=()), ValueError, "give one of them"),
        (lambda: make_learner(credit="both", traced=None), ValueError, "'trace' or 'synthetic'"),
        (lambda: make_learner(credit={("v",): "trace"}, traced=None), ValueError, r"\['v'\]. It has \['w', "),
    ],
)
def test_bad_arguments_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.slow
def test_a_synthesiser_of_another_learner_is_refused_with_both_sides():
    synthesizer = make_learner(synthesizer=dni_synth.Affine()).synthesizer
    other = ee.compile(brainstate.nn.GRUCell(INPUTS, 4), dni_synth.DNI, jnp.zeros((BATCH, INPUTS)), batch_size=BATCH)

    with pytest.raises(ValueError, match=r"\(5, 5\).*need .*\(4, 4\)"):
        other.attach(synthesizer)


def treatments(**options):
    return {row.parameter: row.treatment for row in make_learner(traced=None, **options).report().rows}


def test_synthetic_credit_drops_the_trace_of_a_parameter():
    assert treatments()["w"] == "traced"
    assert treatments(credit="trace")["w"] == "traced"
    assert set(treatments(credit="synthetic").values()) == {"in-step"}
    mixed = treatments(credit={("w",): "synthetic"})
    assert (mixed["w"], mixed["win"]) == ("in-step", "traced")


@pytest.mark.slow
def test_only_parameters_of_synthetic_credit_get_the_estimate():
    def gradient(synthesizer):
        learner = make_learner(traced=None, credit={("w",): "synthetic"})
        learner.attach(synthesizer)
        return by_name(learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=WINDOW))

    without, found = gradient(dni_synth.Zero()), gradient(Constant())

    assert np.abs(found["w"] - without["w"]).max() > 1e-3
    np.testing.assert_array_equal(found["win"], without["win"])


@pytest.mark.slow
def test_a_window_in_a_boundary_block_and_no_later_one_sees_its_end():
    learner = make_learner()
    learner.attach(Constant())
    xs = sequence()[:WINDOW]

    def gradient():
        learner.reset_state()
        loss = lambda: jnp.sum(window_losses(learner)(xs))
        return by_name(brainstate.transform.grad(loss, learner.param_states)())["w"]

    with learner.boundary(done=jnp.zeros(BATCH, bool)):
        going = gradient()
    with learner.boundary(done=jnp.ones(BATCH, bool)):
        ended = gradient()

    assert np.abs(ended - going).max() > 1e-2
    np.testing.assert_array_equal(gradient(), going)


@pytest.mark.slow
def test_resetting_forgets_the_last_boundary():
    learner = make_learner()
    learner.attach(dni_synth.Affine())
    learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, done=[False] * 4)
    assert np.all(learner.injection.entry.value["live"] == 1)

    learner.reset_state()

    assert not np.any(learner.injection.entry.value["live"])
    np.testing.assert_array_equal(learner.hidden_states[("h",)].value, np.zeros((BATCH, UNITS)))


@pytest.mark.slow
def test_another_batch_size_keeps_the_synthesiser_as_it_is_fitted():
    learner, expected = make_learner(batch_size=2), make_learner(batch_size=BATCH)
    learner.attach(dni_synth.Affine())
    dni_synth.train_synthetic_gradient(learner, sequence(batch=(2,)), chunk_size=WINDOW, epochs=3, lr=0.1)
    expected.attach(learner.synthesizer)

    learner.reset_state(BATCH)

    assert learner.synthesizer is expected.synthesizer
    assert learner.signature.batch_shape == (2,)
    found, wanted, truncated = (
        by_name(own.etrace_grad(sequence(), step_fn=window_losses(own), chunk_size=WINDOW, synth=synth))
        for own, synth in ((learner, "use"), (expected, "use"), (make_learner(), "off"))
    )
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-5, atol=1e-6)
    assert np.abs(found["w"] - truncated["w"]).max() > 1e-3
