"""What every synthesiser must obey, and what is particular to each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dni_synth

KEY = jax.random.key(0)
FLAT, GRID = dni_synth.GroupShape((), 4), dni_synth.GroupShape((5, 6), 2)
TABLE = {
    "zero": (dni_synth.Zero, FLAT),
    "affine": (dni_synth.Affine, FLAT),
    "affine on a grid": (dni_synth.Affine, GRID),
    "low rank": (lambda: dni_synth.LowRank(2), FLAT),
    "mlp": (lambda: dni_synth.MLP(7), FLAT),
    "conv": (dni_synth.Conv, GRID),
    "critic": (lambda: dni_synth.Critic(7), FLAT),
    "critic on a grid": (lambda: dni_synth.Critic(7), GRID),
    "normalized": (lambda: dni_synth.Normalized(dni_synth.Affine()), FLAT),
}


@pytest.fixture(params=TABLE)
def case(request):
    make, shape = TABLE[request.param]
    return make(), shape


def values(shape, batch=(3,), seed=1):
    """Random values; NumPy's, since every shape would compile a program of JAX's."""
    return random((*batch, *shape.positions, shape.features), seed)


def random(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def params_of(synthesizer, seed=None):
    """Return the parameters, replaced by random ones where a seed is given."""
    params = {name: state.value for name, state in synthesizer.states_dict().items()}
    if seed is None:
        return params
    return {name: random(value.shape, seed + number) for number, (name, value) in enumerate(params.items())}


@pytest.mark.parametrize("context_dim", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_it_starts_at_zero(case, context_dim):
    synthesizer, shape = case
    synthesizer.init({"h": shape}, context_dim, KEY)
    context = jnp.ones((3, context_dim)) if context_dim else None

    estimate = jax.jit(synthesizer.apply)(params_of(synthesizer), {"h": values(shape)}, context)["h"]

    assert estimate.shape == values(shape).shape
    assert not np.any(estimate)


@pytest.mark.slow
@pytest.mark.parametrize("context_dim", [0, 2])
def test_batch_elements_are_independent_and_need_no_batch_axis(case, context_dim):
    synthesizer, shape = case
    synthesizer.init({"h": shape}, context_dim, KEY)
    params, hidden = params_of(synthesizer, seed=3), values(shape)
    context = random((3, context_dim), 0) if context_dim else None

    together = synthesizer.apply(params, {"h": hidden}, context)["h"]
    alone = synthesizer.apply(params, {"h": hidden[1]}, None if context is None else context[1])["h"]

    np.testing.assert_allclose(together[1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_regression_step_from_the_start_moves_the_estimate(case):
    synthesizer, shape = case
    synthesizer.init({"h": shape}, 0, KEY)
    params, hidden = params_of(synthesizer), values(shape)

    def loss(params):
        return jnp.mean((synthesizer.apply(params, {"h": hidden}, None)["h"] - 1) ** 2)

    moved = jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))

    if isinstance(synthesizer, dni_synth.Zero):
        assert not params
    else:
        assert loss(moved) < loss(params)


def test_it_obeys_the_protocol(case):
    assert isinstance(case[0], dni_synth.Synthesizer)


def test_parameters_for_other_groups_are_refused_with_both_sides():
    synthesizer = dni_synth.Affine()
    synthesizer.init({"h": FLAT}, 0, KEY)

    synthesizer.init({"h": FLAT}, 0, KEY)
    with pytest.raises(ValueError, match=r"\(4, 4\).*'c': GroupShape.*Attach a new Affine"):
        synthesizer.init({"c": FLAT}, 0, KEY)


def test_affine_with_a_context_is_an_affine_map_for_each_context():
    synthesizer = dni_synth.Affine()
    synthesizer.init({"h": FLAT}, 1, KEY)
    params, hidden = params_of(synthesizer, seed=3), values(FLAT)
    at = lambda c, h: synthesizer.apply(params, {"h": h}, jnp.full((3, 1), c))["h"]

    slopes = [at(c, hidden) - at(c, jnp.zeros_like(hidden)) for c in (0.0, 1.0, 2.0)]

    np.testing.assert_allclose(slopes[2] - slopes[1], slopes[1] - slopes[0], rtol=1e-4, atol=1e-5)
    assert np.abs(slopes[1] - slopes[0]).max() > 0.1
    np.testing.assert_allclose(at(1.0, 2 * hidden) - at(1.0, hidden), slopes[1], rtol=1e-3, atol=1e-4)


def test_affine_with_a_scale_starts_random():
    synthesizer = dni_synth.Affine(scale=0.5)
    synthesizer.init({"h": dni_synth.GroupShape((), 400)}, 0, KEY)

    assert float(jnp.std(params_of(synthesizer)["h/weight"])) == pytest.approx(0.5 / 20, rel=0.05)


@pytest.mark.slow
def test_low_rank_has_a_jacobian_of_its_rank():
    synthesizer = dni_synth.LowRank(2)
    synthesizer.init({"h": FLAT}, 0, KEY)
    params = params_of(synthesizer, seed=3)

    jacobian = jax.jacobian(lambda h: synthesizer.apply(params, {"h": h}, None)["h"])(jnp.ones(4))

    assert np.linalg.matrix_rank(jacobian, tol=1e-4) == 2


@pytest.mark.slow
def test_conv_moves_with_its_input():
    synthesizer = dni_synth.Conv()
    synthesizer.init({"h": GRID}, 0, KEY)
    params = params_of(synthesizer, seed=3)
    hidden = jnp.zeros((5, 6, 2)).at[2, 2].set(1.0)
    at = lambda h: synthesizer.apply(params, {"h": h}, None)["h"]

    np.testing.assert_allclose(jnp.roll(at(hidden), 1, axis=1), at(jnp.roll(hidden, 1, axis=1)), rtol=1e-4, atol=1e-5)


def test_conv_equals_a_sum_over_the_window():
    synthesizer = dni_synth.Conv()
    synthesizer.init({"h": dni_synth.GroupShape((5,), 2)}, 0, KEY)
    params, hidden = params_of(synthesizer, seed=3), random((5, 2), 0)

    padded = np.pad(hidden, ((1, 1), (0, 0)))
    expected = sum(padded[d : d + 5] @ np.asarray(params["h/kernel"][d]) for d in range(3)) + params["h/bias"]

    np.testing.assert_allclose(synthesizer.apply(params, {"h": hidden}, None)["h"], expected, rtol=1e-4, atol=1e-5)


def test_conv_on_a_flat_group_says_what_to_use():
    with pytest.raises(ValueError, match=r"group 'h' is flat.*`Affine"):
        dni_synth.Conv().init({"h": FLAT}, 0, KEY)


@pytest.mark.slow
def test_a_critic_is_a_gradient_field_over_all_groups():
    synthesizer = dni_synth.Critic(7)
    synthesizer.init({"a": FLAT, "b": FLAT}, 0, KEY)
    params = params_of(synthesizer, seed=3)
    field = lambda h: jnp.concatenate(list(synthesizer.apply(params, {"a": h[:4], "b": h[4:]}, None).values()))

    jacobian = jax.jacobian(field)(jnp.linspace(-1, 1, 8))

    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-5)
    assert np.abs(jacobian[:4, 4:]).max() > 1e-2


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_normalized_fits_in_units_of_the_decayed_root_mean_square(decay):
    synthesizer = dni_synth.Normalized(dni_synth.Affine(), decay=decay)
    synthesizer.init({"h": FLAT}, 0, KEY)
    first, second = 1e-4 * values(FLAT, seed=1), 3e-4 * values(FLAT, seed=2)

    synthesizer.prepare({"h": first})
    targets, units = synthesizer.prepare({"h": second})

    squares = [float(jnp.mean(t**2)) for t in (first, second)]
    expected = np.sqrt((decay * squares[0] + squares[1]) / (decay + 1))
    assert float(units["h"]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(targets["h"], second)


def test_normalized_estimates_in_true_units():
    synthesizer = dni_synth.Normalized(dni_synth.Affine())
    synthesizer.init({"h": FLAT}, 0, KEY)
    synthesizer.prepare({"h": jnp.full((3, 4), 1e-3)})
    params, hidden = params_of(synthesizer, seed=3), values(FLAT)

    inner = hidden @ params["h/weight"] + params["h/bias"]

    np.testing.assert_allclose(synthesizer.apply(params, {"h": hidden}, None)["h"], 1e-3 * inner, rtol=1e-4)


def test_normalized_clips_outliers():
    synthesizer = dni_synth.Normalized(dni_synth.Affine(), clip=2.0)
    synthesizer.init({"h": FLAT}, 0, KEY)
    target = jnp.ones((100, 4)).at[0, 0].set(1000.0)

    targets, units = synthesizer.prepare({"h": target})

    assert float(targets["h"][0, 0]) == pytest.approx(2 * float(units["h"]))
    np.testing.assert_array_equal(targets["h"][1:], target[1:])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: dni_synth.LowRank(0), "`rank` must be at least 1, got 0"),
        (lambda: dni_synth.MLP(0), "`width` must be at least 1"),
        (lambda: dni_synth.Critic(0), "`width` must be at least 1"),
        (lambda: dni_synth.Conv(2), "`kernel_size` must be odd"),
        (lambda: dni_synth.Normalized(dni_synth.Affine(), decay=1.0), r"`decay` must be in \[0, 1\)"),
        (lambda: dni_synth.Normalized(dni_synth.Affine(), clip=0.0), "`clip` must be positive"),
    ],
)
def test_numbers_out_of_range_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
