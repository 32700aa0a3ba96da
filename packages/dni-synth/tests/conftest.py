"""One thread, before the framework starts, and the oracles next to this file importable."""

import os
import sys
from pathlib import Path

# Compilation takes most of the time of these tests, and their programs are tiny: compile fast rather than well.
FLAGS = (
    "--xla_cpu_multi_thread_eigen=false",
    "intra_op_parallelism_threads=1",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
sys.path.insert(0, str(Path(__file__).parent))
