"""Cue recall: the sign shown at the first step is asked for at the last, beyond the reach of any window."""

import brainstate
import braintools
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import Memory

import dni_synth
import etrace_engines as ee

TIME, BATCH, WINDOW = 24, 32, 4
CHANCE = 0.36  # the answer 0 to a target of +-0.6


def train(seed, synth, *, steps=400, window=WINDOW, prefit=0, label=1):
    """Return the loss of every step and the learner."""
    learner = ee.compile(Memory(seed), dni_synth.DNI, jnp.zeros((BATCH, 1)), batch_size=BATCH, traced=())
    synthesizer = dni_synth.Normalized(dni_synth.Affine())
    learner.attach(synthesizer, context_dim=1, optimizer=braintools.optim.Adam(1e-2))
    optimizer = braintools.optim.Adam(3e-3)
    optimizer.register_trainable_weights(learner.param_states)

    def step_fn(x, sign):
        return jnp.mean((learner(ee.MultiStepData(x)) - 0.6 * sign) ** 2, axis=(1, 2))

    def gradient(key, synth, label):
        sign = jax.random.rademacher(key, (BATCH, 1), float)
        xs = jnp.zeros((TIME, BATCH, 1)).at[0].set(sign)
        signs = jnp.broadcast_to(sign, xs.shape)
        learner.reset_state()
        return learner.etrace_grad(
            xs,
            signs,
            step_fn=step_fn,
            mask=np.arange(TIME) == TIME - 1,
            chunk_size=window,
            synth=synth,
            context_fn=lambda x, sign: label * sign[-1],
            return_value=True,
            loss_output="scalar",
            check="off",
        )

    def one(key):
        gradients, loss = gradient(key, synth, label)
        optimizer.update(gradients)
        return loss

    if prefit:  # the synthesiser alone, with the right label
        keys = jax.random.split(jax.random.key(200 + seed), prefit)
        brainstate.transform.for_loop(lambda key: gradient(key, "fit", 1)[1], keys)
    losses = brainstate.transform.for_loop(one, jax.random.split(jax.random.key(100 + seed), steps))
    return np.asarray(losses), learner


@pytest.mark.slow
def test_truncation_stays_at_chance_and_never_moves_the_cue_weights():
    losses, learner = train(0, "off", steps=300)

    np.testing.assert_allclose(losses, CHANCE, atol=1e-5)
    np.testing.assert_array_equal(learner.param_states[("win",)].value, np.zeros((1, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_joint_fit_with_the_label_solves_it(seed):
    losses, _ = train(seed, "fit")

    assert losses[0] == pytest.approx(CHANCE, abs=1e-5)
    assert losses[-20:].max() < 1e-3


@pytest.mark.slow
def test_bptt_solves_it_which_shows_that_it_can_be_solved():
    losses, _ = train(0, "off", window=TIME)

    assert losses[-20:].max() < 1e-3


@pytest.mark.slow
def test_after_a_fit_with_the_right_label_a_wrong_one_makes_it_worse():
    right, _ = train(0, "use", steps=60, prefit=200)
    wrong, _ = train(0, "use", steps=60, prefit=200, label=-1)

    assert right.min() < 0.5 * CHANCE
    assert wrong.min() > CHANCE - 1e-5
    assert wrong[-1] > 1.1 * CHANCE
