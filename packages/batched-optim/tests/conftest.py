"""One thread, before the framework starts: results and times do not depend on the machine's load."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for the tests' own modules `cases` and `oracles`

import torch

torch.set_num_threads(1)
