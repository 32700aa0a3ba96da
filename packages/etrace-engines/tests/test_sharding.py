"""A batch over several devices: what splits is the data, the compiler does the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
RULES = {"D_RTRL": {}, "pp_prop": {"decay_or_rank": 0.9}}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_batch_split_over_devices_gives_the_gradients_of_one(rule):
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded_run.py"), rule, json.dumps(RULES[rule])],
        env={**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["devices"], found["parts"]) == (4, 4)
    assert found["error"] < 1e-6
    assert found["doubled"] > 1e-1
