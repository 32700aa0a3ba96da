"""The report: true gradients, cosines, and a verdict that can go either way."""

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
    Memory,
    Oracle,
    bptt,
    future_gradients,
    last,
    make_learner,
    per_window,
    sequence,
    start_params,
    truncated,
    window_losses,
)

import dni_synth
import etrace_engines as ee


def labelled_task(seed, time=24, batch=32):
    """Noise, a label for each sequence that neither noise nor hidden state shows, and the steps that remain."""
    noise, sign = jax.random.split(jax.random.key(seed))
    labels = jax.random.rademacher(sign, (batch, 1), float)
    shape = (time, batch, 1)
    remaining = jnp.broadcast_to(jnp.arange(time - 1.0, -1, -1)[:, None, None], shape)
    return jax.random.normal(noise, shape), jnp.broadcast_to(labels, shape), remaining


def label_and_time(xs, labels, remaining):
    gate = 1 - 0.95 ** remaining[-1]  # the net's leak: how much of the future still responds
    return jnp.concatenate([labels[-1], gate, labels[-1] * gate], axis=-1)


def report_of(synthesizer, context_dim=0, exact=None, **options):
    learner = make_learner()
    learner.attach(synthesizer, context_dim=context_dim)
    sequences = (sequence(),) if exact is None else (sequence(), exact)
    options = {"step_fn": window_losses(learner), "chunk_size": WINDOW, "context_fn": last} | options
    return dni_synth.dni_report(learner, *sequences, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("context_dim", "verdict"), [(0, "harmful"), (3, "helps")], ids=["h alone", "label and time"])
def test_on_the_labelled_task_only_the_conditional_map_helps(context_dim, verdict, seed):
    learner = ee.compile(Memory(seed, deaf=False), dni_synth.DNI, jnp.zeros((32, 1)), batch_size=32, traced=())
    learner.attach(dni_synth.Affine(), context_dim=context_dim)

    def step_fn(xs, labels, remaining):
        return jnp.mean((learner(ee.MultiStepData(xs)) - labels) ** 2, axis=(1, 2))

    options = {"step_fn": step_fn, "chunk_size": 4, "context_fn": label_and_time}
    dni_synth.fit_ridge(learner, *labelled_task(1), **options)

    report = dni_synth.dni_report(learner, *labelled_task(2), **options)

    assert report.verdict == verdict
    assert str(report).endswith(verdict)


@pytest.mark.slow
def test_the_exact_estimate_has_cosine_one():
    exact = future_gradients(start_params(), sequence())

    report = report_of(Oracle(), UNITS, per_window(exact))

    assert len(report.boundaries) == TIME // WINDOW - 1
    for row in report.boundaries:
        assert (row.r2, row.cosine, row.norm_ratio) == pytest.approx((1, 1, 1), abs=1e-4)
    assert report.cosine == pytest.approx(1, abs=1e-5)
    assert report.verdict == "helps"
    np.testing.assert_allclose(report.gradients["h"], exact[:-1], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_numbers_equal_their_definitions():
    exact = np.asarray(future_gradients(start_params(), sequence())[:-1])

    report = report_of(Constant())

    for row, g in zip(report.boundaries, exact, strict=True):
        one = np.ones_like(g)
        assert row.r2 == pytest.approx(1 - np.sum((one - g) ** 2) / np.sum(g**2), rel=1e-4)
        assert row.cosine == pytest.approx(np.sum(g) / np.linalg.norm(g) / np.linalg.norm(one), rel=1e-3, abs=1e-5)
        assert row.norm_ratio == pytest.approx(np.linalg.norm(one) / np.linalg.norm(g), rel=1e-4)


@pytest.mark.slow
def test_a_zero_estimate_is_neutral_and_reports_the_cosine_of_truncation():
    report = report_of(dni_synth.Zero())

    a, b = (
        np.concatenate([np.ravel(gradient(sequence()[:, [b]])[name]) for b in range(BATCH) for name in ("w", "win")])
        for gradient in (truncated, lambda xs: bptt(start_params(), xs))
    )
    assert report.verdict == "neutral"
    assert report.truncated_cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)


@pytest.mark.slow
def test_states_are_as_before():
    learner = make_learner()
    learner.attach(dni_synth.Affine(scale=1.0))
    learner.hidden_states[("h",)].value = jnp.ones((BATCH, UNITS))

    dni_synth.dni_report(learner, sequence(), step_fn=window_losses(learner), chunk_size=WINDOW)

    np.testing.assert_array_equal(learner.hidden_states[("h",)].value, jnp.ones((BATCH, UNITS)))


@pytest.mark.slow
def test_ended_boundaries_have_no_row():
    report = report_of(Constant(), done=jnp.array([True, False, True, True]))

    assert [row.boundary for row in report.boundaries] == [1]


def test_without_a_chunk_size_it_is_refused():
    with pytest.raises(ValueError, match="`chunk_size` must be given"):
        report_of(Constant(), chunk_size=None)


@pytest.mark.slow
def test_the_plot_is_an_image(tmp_path):
    exact = per_window(jax.random.normal(jax.random.key(0), (TIME // WINDOW, BATCH, UNITS)))

    report_of(Oracle(), UNITS, exact).plot(tmp_path / "report.png")

    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
