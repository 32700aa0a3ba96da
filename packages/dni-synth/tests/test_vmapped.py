"""An ensemble: learners of one structure mapped over their states, against each of them run by itself."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import WINDOW, gap, make_learner, sequence, window_losses

import dni_synth

MEMBERS = 2


def make_member(seed, batch_size=3, optimizer=None):
    learner = make_learner(seed=seed, batch_size=batch_size)
    learner.attach(dni_synth.Affine(), lr=0.05, optimizer=optimizer)
    return learner


def inputs(batch_size=3):
    return jnp.stack([sequence(seed=seed, batch=() if batch_size is None else (batch_size,)) for seed in (1, 2)])


def program(learner):
    """Both fits and the gradient that they give, as one function of the inputs."""

    def run(xs):
        errors = dni_synth.train_synthetic_gradient(learner, xs, chunk_size=WINDOW, epochs=2, lr=0.05)
        learner.reset_state()
        gradients = learner.etrace_grad(xs, step_fn=window_losses(learner), chunk_size=WINDOW, synth="fit")
        fitted = {name: state.value for name, state in learner.synthesizer.states_dict().items()}
        return jnp.stack(errors), learner.fit_error, fitted, {path[-1]: g for path, g in gradients.items()}

    return run


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def separate(xs, **options):
    return stacked([program(make_member(seed, **options))(own) for seed, own in enumerate(xs)])


def check(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    jax.tree.map(lambda a: np.testing.assert_array_less(1e-3, gap(a[0], a[1])), found)  # the members differ


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, None], ids=["batched", "unbatched"])
def test_a_mapped_pure_function_of_the_learner_equals_separate_runs(batch_size):
    xs = inputs(batch_size)
    learners = [make_member(seed, batch_size) for seed in range(MEMBERS)]
    lifted = [brainstate.transform.StatefulFunction(program(learner), return_only_write=False) for learner in learners]
    for own in lifted:
        own.make_jaxpr(xs[0])
    values = stacked([[state.value for state in own.get_states(xs[0])] for own in lifted])

    found = jax.vmap(lambda values, xs: lifted[0].jaxpr_call(values, xs)[1])(values, xs)

    check(found, separate(xs, batch_size=batch_size))


def every_state(learner):
    parts = (learner.param_states, learner.carried_states, learner.synthesizer_states)
    return [state for part in parts for state in part.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [None, lambda: dni_synth.RecursiveLeastSquares(regularization=1.0)],  # well conditioned: rounding stays small
    ids=["descent", "least squares"],
)
def test_a_learner_with_stacked_states_under_vmap_equals_separate_runs(optimizer):
    make = lambda seed: make_member(seed, optimizer=optimizer and optimizer())
    learner, members = make(0), [make(seed) for seed in range(MEMBERS)]
    states = every_state(learner)
    for state, *own in zip(states, *map(every_state, members), strict=True):
        state.value = stacked([each.value for each in own])

    found = brainstate.transform.vmap(program(learner), in_states=states, out_states=states)(inputs())

    expected = stacked([program(member)(xs) for member, xs in zip(members, inputs(), strict=True)])
    check(found, expected)
    np.testing.assert_allclose(learner.fit_error, expected[1], rtol=1e-5)


@pytest.mark.slow
def test_samples_mapped_over_an_unbatched_learner_equal_its_batch():
    xs = sequence()
    batched, learner = make_member(0), make_member(0, batch_size=None)
    lifted = brainstate.transform.StatefulFunction(gradient_of_sum(learner), return_only_write=False)
    lifted.make_jaxpr(xs[:, 0])
    values = [state.value for state in lifted.get_states(xs[:, 0])]

    found = jax.vmap(lambda xs: lifted.jaxpr_call(values, xs)[1], in_axes=1)(xs)

    expected = gradient_of_sum(batched)(xs)
    for name, value in expected.items():
        assert gap(found[name].sum(0), value) < 1e-5


def gradient_of_sum(learner):
    """Give the synthesiser a map, then use it."""

    def run(xs):
        for state in learner.synthesizer.states_dict().values():
            state.value = jnp.full_like(state.value, 0.3)
        learner.reset_state()
        gradients = learner.etrace_grad(xs, step_fn=window_losses(learner), chunk_size=WINDOW, reduction="sum")
        return {path[-1]: g for path, g in gradients.items()}

    return run
