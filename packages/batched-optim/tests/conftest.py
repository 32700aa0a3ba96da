"""One thread, before the framework starts: results and times do not depend on the machine's load."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
