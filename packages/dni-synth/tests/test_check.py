"""What happens when a synthesiser is used for something else than it was fitted for."""

import warnings

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import WINDOW, make_learner, sequence, squares, window_losses

import dni_synth
import etrace_engines as ee


def fitted(loss_fn=None, **options):
    learner = make_learner(**options)
    learner.attach(dni_synth.Affine())
    batch = options.get("batch_size", 3)
    xs = sequence(batch=(batch,))
    dni_synth.train_synthetic_gradient(learner, xs, chunk_size=WINDOW, loss_fn=loss_fn, lr=0.1)
    return learner


@pytest.fixture(scope="module")
def learner():
    return fitted()


def use(learner, losses=squares, chunk_size=WINDOW, **options):
    step_fn = lambda xs: losses(learner(ee.MultiStepData(xs)))
    batch = learner.injection.batch_shape
    return learner.etrace_grad(sequence(batch=batch), step_fn=step_fn, chunk_size=chunk_size, **options)


DIFFERENT = {
    "three times": (lambda ys: 3 * squares(ys), r"ratio of their output gradients is 3 and their cosine 1,"),
    "mean": (lambda ys: jnp.mean(ys**2, axis=(1, 2)), r"ratio .* is 0.3333 and their cosine 1,"),
    "fourth power": (lambda ys: jnp.sum(ys**4, axis=(1, 2)), r"cosine"),
    "negative": (lambda ys: -squares(ys), r"ratio .* is 1 and their cosine -1,"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_loss_is_an_error_with_ratio_and_cosine(learner, name):
    losses, match = DIFFERENT[name]

    with pytest.raises(ValueError, match=match):
        use(learner, losses)


@pytest.mark.slow
def test_the_same_loss_passes(learner):
    use(learner)


@pytest.mark.slow
def test_other_targets_of_the_same_loss_pass(learner):
    use(learner, lambda ys: squares(ys - 0.3))


@pytest.mark.slow
def test_another_loss_is_found_inside_jit(learner):
    step = brainstate.transform.jit(lambda: use(learner, lambda ys: 3 * squares(ys)))

    with pytest.raises(ValueError, match="is 3 and their cosine 1"):
        step()


@pytest.mark.slow
@pytest.mark.parametrize("check", ["warn", "off"])
def test_the_check_of_the_loss_can_be_overridden(learner, check):
    if check == "off":
        use(learner, lambda ys: 3 * squares(ys), check=check)
        return
    with pytest.warns(UserWarning, match="is 3 and their cosine 1"):
        use(learner, lambda ys: 3 * squares(ys), check=check)


@pytest.mark.slow
def test_truncation_is_never_checked(learner):
    use(learner, lambda ys: 3 * squares(ys), synth="off")


@pytest.mark.slow
def test_another_window_length_is_a_warning_for_a_sum_over_steps(learner):
    with pytest.warns(UserWarning, match="fitted for windows of 3 steps and is used with windows of 4"):
        use(learner, chunk_size=4)


@pytest.mark.slow
def test_another_window_length_with_another_loss_is_an_error(learner):
    with pytest.warns(UserWarning, match="windows"), pytest.raises(ValueError, match="cosine"):
        use(learner, lambda ys: 3 * squares(ys), chunk_size=4)


@pytest.mark.slow
def test_another_window_length_is_an_error_for_a_mean_over_steps():
    learner = fitted(loss_fn=lambda ys: jnp.mean(ys**2))

    assert learner.signature.additive is False
    with pytest.raises(ValueError, match="not a sum over steps"):
        use(learner, lambda ys: squares(ys) / 9, chunk_size=4)
    with pytest.warns(UserWarning, match="not a sum over steps"):
        use(learner, lambda ys: squares(ys) / 9, chunk_size=4, check="warn")
    use(learner, lambda ys: squares(ys) / 9, chunk_size=4, check="off")


@pytest.mark.slow
def test_a_new_fit_with_another_window_length_is_not_checked():
    learner = fitted()

    dni_synth.fit_ridge(learner, sequence(), step_fn=window_losses(learner), chunk_size=4)

    assert learner.signature.chunk_size == 4


def test_a_direct_call_checks_the_window_length(learner):
    with pytest.warns(UserWarning, match="windows of 4"):
        learner(ee.MultiStepData(sequence()[:4]))


def window_gradient(learner, losses=squares):
    """A gradient that the package does not drive: the caller's own, around one window."""
    learner.reset_state()
    loss = lambda: jnp.sum(losses(learner(ee.MultiStepData(sequence()[:WINDOW]))))
    return brainstate.transform.grad(loss, learner.param_states)()


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_plain_gradient_of_another_loss_is_an_error_with_ratio_and_cosine(learner, name):
    losses, match = DIFFERENT[name]

    with pytest.raises(ValueError, match=match):
        window_gradient(learner, losses)


@pytest.mark.slow
def test_a_plain_gradient_of_the_same_loss_passes_and_is_the_driven_one(learner):
    found = window_gradient(learner)

    learner.reset_state()
    driven = learner.etrace_grad(
        sequence()[:WINDOW], step_fn=window_losses(learner), chunk_size=WINDOW, reduction="sum", done=[False]
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, driven)


def test_a_plain_gradient_of_the_same_loss_passes(learner):
    window_gradient(learner)


@pytest.mark.slow
def test_the_check_of_a_plain_gradient_can_be_overridden(learner, monkeypatch):
    monkeypatch.setattr(learner, "check", "warn")
    with pytest.warns(UserWarning, match="is 3 and their cosine 1"):
        window_gradient(learner, lambda ys: 3 * squares(ys))
    monkeypatch.setattr(learner, "check", "off")
    window_gradient(learner, lambda ys: 3 * squares(ys))


@pytest.mark.slow
def test_a_plain_gradient_inside_jit_shows_no_values_to_compare(learner):
    brainstate.transform.jit(lambda: window_gradient(learner, lambda ys: 3 * squares(ys)))()


@pytest.mark.slow
def test_a_plain_gradient_of_a_loss_that_depends_on_more_than_the_output_passes():
    learner = make_learner()
    learner.attach(dni_synth.Affine())
    learner.etrace_grad(sequence(), step_fn=window_losses(learner), chunk_size=WINDOW, synth="fit")

    window_gradient(learner, lambda ys: 3 * squares(ys))


@pytest.mark.slow
def test_a_mean_over_another_batch_size_is_an_error(learner):
    small = fitted(loss_fn=lambda ys: jnp.sum(jnp.mean(ys**2, axis=(1, 2))), batch_size=2)
    learner = make_learner()
    learner.attach(small.synthesizer)
    learner.injection.fitted = small.injection.fitted

    with pytest.raises(ValueError, match=r"ratio .* is 0.6667 .*batch \(2,\), now \(3,\)"):
        use(learner, lambda ys: jnp.mean(ys**2, axis=(1, 2)))


@pytest.mark.slow
def test_a_sum_over_another_batch_size_passes(learner):
    small = fitted(batch_size=2)
    learner = make_learner()
    learner.attach(small.synthesizer)
    learner.injection.fitted = small.injection.fitted

    use(learner)


def move(learner, factor=1.5):
    learner.param_states[("w",)].value = learner.param_states[("w",)].value * factor


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [use, window_gradient])
def test_moved_parameters_are_a_warning_once_for_each_fit(gradient):
    learner = fitted()
    gradient(learner)
    move(learner)

    with pytest.warns(UserWarning, match="moved by .* stale"):
        gradient(learner)
    gradient(learner)
    dni_synth.train_synthetic_gradient(learner, sequence(), chunk_size=WINDOW)
    gradient(learner)
    move(learner)
    with pytest.warns(UserWarning, match="moved by .* stale"):
        gradient(learner)


@pytest.mark.slow
def test_parameters_that_moved_inside_jit_are_a_warning_at_the_next_call_outside():
    learner = make_learner()
    learner.attach(dni_synth.Affine())

    @brainstate.transform.jit
    def fit_and_move(factor):
        dni_synth.train_synthetic_gradient(learner, sequence(), chunk_size=WINDOW)
        move(learner, factor)
        use(learner)

    fit_and_move(1.0)
    use(learner)
    fit_and_move(1.5)
    with pytest.warns(UserWarning, match="moved by .* stale"):
        use(learner)
    use(learner)


@pytest.mark.slow
def test_a_small_step_of_the_parameters_is_no_reason_to_warn():
    learner = fitted()
    move(learner, 1.005)

    use(learner)


@pytest.mark.slow
def test_the_warning_of_moved_parameters_can_be_switched_off():
    learner = fitted(check="off")
    move(learner)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(learner)
