"""What a fit remembers."""

import jax
import numpy as np
import pytest
from dni_oracles import WINDOW, make_learner, sequence, squares, window_losses

import dni_synth
import etrace_engines as ee
from dni_synth._digest import SAMPLES, movement, parameter_digest


@pytest.mark.slow
def test_a_joint_fit_signs_too():
    learner = make_learner()
    learner.attach(dni_synth.Affine())
    learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, synth="fit")

    assert learner.signature.chunk_size == WINDOW
    assert learner.signature.additive is True
    step_fn = lambda xs: 3 * squares(learner(ee.MultiStepData(xs)))
    with pytest.raises(ValueError, match="is 3 and their cosine 1"):
        learner.etrace_grad(sequence(), step_fn=step_fn, chunk_size=WINDOW)


@pytest.mark.parametrize("size", [50, 3 * SAMPLES + 7], ids=["small", "sampled"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_movement_is_the_share_of_the_norm_that_changed(size, share):
    generator = np.random.default_rng(0)
    values, change = generator.normal(size=(2, size))
    still = np.ones(3)

    moved = movement(parameter_digest([values, still]), parameter_digest([values + share * change, still]))

    assert moved == pytest.approx(share * np.linalg.norm(change) / np.linalg.norm(values), rel=0.6)


def test_movement_is_that_of_the_array_that_moved_most():
    values = np.random.default_rng(0).normal(size=100)

    moved = movement(parameter_digest([values, values]), parameter_digest([values, 1.3 * values]))

    assert moved == pytest.approx(0.3, rel=0.6)


def test_a_digest_inside_a_program_equals_that_on_the_host():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)

    traced = jax.jit(lambda array: parameter_digest([array]))(values)

    np.testing.assert_allclose(traced, parameter_digest([values]), rtol=1e-5)
