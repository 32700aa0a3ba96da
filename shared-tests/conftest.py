"""One thread, before the frameworks start; the devices to run on; and a fixture for double precision."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "etrace-engines" / "tests"))  # the engines' oracles
sys.path.insert(0, str(Path(__file__).parent))  # `harness`

import brainstate
import jax
import pytest
import torch

from harness import devices

torch.set_num_threads(1)


def pytest_addoption(parser):
    """Add ``--device``."""
    parser.addoption(
        "--device", choices=["cpu", "cuda", "all"], default="cpu", help="where to compute; cuda needs a GPU"
    )


def pytest_generate_tests(metafunc):
    """Run a test that asks for `device` on each device that was chosen."""
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", devices.chosen(metafunc.config.getoption("device")), indirect=True)


@pytest.fixture
def device(request):
    """Compute on a device: JAX's default one, and the torch device of the same name."""
    with jax.default_device(devices.jax_device(request.param)):
        yield torch.device(request.param)


@pytest.fixture
def double():
    """Compute in float64, where oracles are met to rounding."""
    with jax.enable_x64(True), brainstate.environ.context(precision=64):
        yield
