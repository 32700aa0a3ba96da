"""One thread, before the framework starts; and a fixture for double precision."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
sys.path.insert(0, str(Path(__file__).parent))  # for the tests' own modules `engine_*`

import brainstate
import jax
import pytest


@pytest.fixture
def double():
    """Compute in float64, where an oracle must be met to 1e-12."""
    with jax.enable_x64(True), brainstate.environ.context(precision=64):
        yield
