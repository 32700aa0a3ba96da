"""Devices and tolerances: the only place that knows either."""

import jax
import pytest
import torch

# Relative to the norm of what is expected. Rounding grows with the few hundred operations of a short sequence, and the
# matrix products of a GPU sum in another order.
ROUNDING = {
    ("cpu", "float64"): 1e-11,
    ("cpu", "float32"): 1e-5,
    ("cuda", "float64"): 1e-10,
    ("cuda", "float32"): 1e-4,
}
DISTINCT = 1e-4  # two rules that differ, differ by more than this


def tolerance(device, dtype):
    """Return how far two ways to compute the same thing may be apart."""
    return ROUNDING[torch.device(device).type, str(dtype)]


def chosen(option):
    """Return the device names of ``--device`` as test parameters; ``cuda`` without a GPU fails, ``all`` skips it."""
    if option != "all":
        return [option]
    missing = pytest.mark.skip(reason="CUDA was not found by both frameworks; `--device cuda` insists on it")
    return ["cpu", pytest.param("cuda", marks=[] if has_cuda() else missing)]


def has_cuda():
    """Whether both frameworks see a GPU."""
    return torch.cuda.is_available() and _jax_gpu() is not None


def jax_device(name):
    """Return JAX's device of a name; fail where it is missing."""
    found = jax.devices("cpu")[0] if name == "cpu" else _jax_gpu()
    if found is None or (name == "cuda" and not torch.cuda.is_available()):
        pytest.fail(
            f"`--device {name}` needs a GPU that both jax and torch see; install their CUDA builds, or use cpu."
        )
    return found


def _jax_gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError:  # what JAX raises for a platform that it was not built for
        return None
