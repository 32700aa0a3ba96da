"""What `--device` promises: `cuda` insists on a GPU, `all` skips one that is missing, and devices agree."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from engine_models import sequence_gradient

import etrace_config
from harness import bridge, devices
from harness.oracles import relative_error
from harness.runs import STEPS, data, make

HERE = Path(__file__).parent


def test_arrays_live_on_the_device(device):
    array, tensor = jnp.ones(3), torch.ones(3, device=device)

    assert {found.platform for found in array.devices()} == {"gpu" if device.type == "cuda" else "cpu"}
    assert torch.equal(bridge.to_torch({"a": array})["['a']"], tensor)


def test_gradients_agree_with_those_of_the_cpu(device):
    def gradients():
        xs, targets = data(steps=STEPS)
        learner, _ = make("leaky", etrace_config.d_rtrl(), xs[0])
        return sequence_gradient(learner, xs, targets)

    found = jax.device_get(gradients())
    with jax.default_device(jax.devices("cpu")[0]):
        expected = jax.device_get(gradients())

    assert relative_error(found, expected) < devices.tolerance(device, "float32")
    assert relative_error(jax.tree.map(lambda g: 1.001 * g, found), expected) > devices.tolerance(device, "float32")


def test_all_skips_a_missing_gpu_and_says_why(monkeypatch):
    monkeypatch.setattr(devices, "has_cuda", lambda: False)

    cpu, cuda = devices.chosen("all")

    assert cpu == "cpu"
    assert [mark.name for mark in cuda.marks] == ["skip"]
    assert "`--device cuda` insists on it" in cuda.marks[0].kwargs["reason"]


def test_all_runs_on_a_gpu_that_is_there(monkeypatch):
    monkeypatch.setattr(devices, "has_cuda", lambda: True)

    assert [getattr(choice, "values", choice) for choice in devices.chosen("all")] == ["cpu", ("cuda",)]


@pytest.mark.skipif(devices.has_cuda(), reason="shows what happens where there is no GPU")
@pytest.mark.parametrize(
    ("option", "status", "said"),
    [("cuda", 1, "needs a GPU"), pytest.param("all", 0, "1 passed, 1 skipped", marks=pytest.mark.slow)],
)
def test_option_without_a_gpu(option, status, said):
    test = f"{HERE / 'test_devices.py'}::test_arrays_live_on_the_device"

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test, "--device", option],
        capture_output=True,
        text=True,
        cwd=HERE,
    )

    assert result.returncode == status, result.stdout
    assert said in result.stdout
