"""A synthesiser and its signature survive a file; a damaged or foreign file is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from dni_oracles import BATCH, WINDOW, make_learner, sequence, squares
from safetensors.numpy import save_file

import dni_synth
import etrace_engines as ee
from dni_synth._signature import Fitted, Signature


def make(synthesizer, seed=0):
    learner = make_learner(seed=seed)
    learner.attach(synthesizer)
    return learner


@pytest.fixture(scope="module")
def fitted():
    """A learner as a fit leaves it: every array has values of its own."""
    learner = make(dni_synth.Normalized(dni_synth.Affine()))
    generator = np.random.default_rng(0)
    for state in (*learner.synthesizer.states_dict().values(), *learner.synthesizer.statistics_dict().values()):
        state.value = jnp.asarray(generator.normal(size=state.value.shape), state.value.dtype)
    probes = generator.normal(size=(2, WINDOW, 1))
    learner.injection.fitted = Fitted(Signature(WINDOW, (BATCH,), ("h",), True, probes[0], probes[1, :1]))
    return learner


@pytest.fixture
def path(tmp_path, fitted):
    dni_synth.save_synthesizer(fitted, tmp_path / "synthesizer.safetensors")
    return tmp_path / "synthesizer.safetensors"


def test_parameters_statistics_and_signature_come_back(fitted, path):
    learner = make(dni_synth.Normalized(dni_synth.Affine()))

    dni_synth.load_synthesizer(learner, path)

    for kind in ("states_dict", "statistics_dict"):
        there, here = getattr(fitted.synthesizer, kind)(), getattr(learner.synthesizer, kind)()
        for name, state in there.items():
            np.testing.assert_array_equal(here[name].value, state.value)
    assert repr(learner.signature) == repr(fitted.signature)
    np.testing.assert_array_equal(learner.signature.window_probe, fitted.signature.window_probe)
    assert float(jnp.abs(learner.synthesizer.states_dict()["h/weight"].value).max()) > 0


@pytest.mark.slow
def test_a_loaded_signature_still_checks_the_loss(tmp_path):
    fitted, path = make(dni_synth.Affine()), tmp_path / "affine.safetensors"
    dni_synth.train_synthetic_gradient(fitted, sequence(), chunk_size=WINDOW, lr=0.1)
    dni_synth.save_synthesizer(fitted, path)
    learner = make(dni_synth.Affine())
    dni_synth.load_synthesizer(learner, path)

    with pytest.raises(ValueError, match="is 3 and their cosine 1"):
        learner.etrace_grad(
            sequence(), step_fn=lambda xs: 3 * squares(learner(ee.MultiStepData(xs))), chunk_size=WINDOW
        )


def test_without_a_fit_there_is_no_signature(tmp_path):
    learner = make(dni_synth.Affine())
    dni_synth.save_synthesizer(learner, tmp_path / "new.safetensors")

    dni_synth.load_synthesizer(learner, tmp_path / "new.safetensors")

    assert learner.signature is None


@pytest.mark.parametrize("place", [-1, 9, 300], ids=["array", "header", "metadata"])
def test_a_damaged_file_is_refused_and_changes_nothing(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x15
    path.write_bytes(data)
    learner = make(dni_synth.Normalized(dni_synth.Affine()))

    with pytest.raises(ValueError, match="`path`"):
        dni_synth.load_synthesizer(learner, path)

    assert float(jnp.abs(learner.synthesizer.states_dict()["h/weight"].value).max()) == 0


def test_a_truncated_file_is_refused(path):
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(ValueError, match="not a readable safetensors file"):
        dni_synth.load_synthesizer(make(dni_synth.Normalized(dni_synth.Affine())), path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"a": np.zeros(2)}, tmp_path / "other.safetensors")

    with pytest.raises(ValueError, match="must hold the format 'dni-synth/1', got None"):
        dni_synth.load_synthesizer(make(dni_synth.Affine()), tmp_path / "other.safetensors")


def test_another_kind_of_synthesiser_is_refused_with_both_sides(path):
    with pytest.raises(ValueError, match=r"holds Normalized parameters .* learner's Affine has"):
        dni_synth.load_synthesizer(make(dni_synth.Affine()), path)


def test_without_a_synthesiser_there_is_nothing_to_save(tmp_path):
    with pytest.raises(RuntimeError, match="attach"):
        dni_synth.save_synthesizer(make_learner(), tmp_path / "none.safetensors")
