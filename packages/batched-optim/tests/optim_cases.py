"""The optimizers and the ensembles that the tests share."""

import pytest
import torch

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD

OPTIMIZERS = {"sgd": BatchedSGD, "adam": BatchedAdam, "lbfgs": BatchedLBFGS}

every_optimizer = pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in OPTIMIZERS.items()])

MEMBERS = 5
SHARED = ["shared", "scalar"]
SHAPES = {
    "weight": (MEMBERS, 3, MEMBERS),
    "bias": (MEMBERS,),
    "kernel": (MEMBERS, 2, 1, 2, 3),
    "square": (MEMBERS, MEMBERS),
    "shared": (4,),
    "scalar": (),
}
BATCHED = [name for name in SHAPES if name not in SHARED]


def ensemble(dtype=torch.float64, seed=0):
    """Return parameters of rank 0 to 4 per member, two of them shared, and a rate per member."""
    generator = torch.Generator().manual_seed(seed)
    params = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    rates = torch.rand(MEMBERS, generator=generator, dtype=torch.float64) * 0.02
    return {name: tensor.to(dtype) for name, tensor in params.items()}, rates


def gradients(params, step, members=MEMBERS):
    """Return noisy gradients of a bumpy function, those of shared parameters stacked."""
    generator = torch.Generator().manual_seed(1000 + step)
    found = {}
    for name, tensor in params.items():
        shape = (members, *tensor.shape) if name in SHARED else tensor.shape
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        found[name] = (torch.sin(tensor.double()) + 0.1 * noise).to(tensor.dtype)
    return found


def mask_of(step, members=MEMBERS):
    """Return a mask that changes from step to step and is all False now and then."""
    generator = torch.Generator().manual_seed(2000 + step)
    mask = torch.rand(members, generator=generator) < 0.6
    return mask & (step % 7 != 3)


def run(optimizer, params, steps, *, masked=False):
    """Take some steps and return the parameters."""
    for step in steps:
        params = optimizer.step(params, gradients(params, step), mask_of(step) if masked else None)
    return params


def assert_bit_equal(first, second):
    """Assert that two dicts of tensors, of any depth, are equal bit for bit, NaN included."""
    assert list(first) == list(second)
    for name, value in first.items():
        if isinstance(value, dict):
            assert_bit_equal(value, second[name])
        elif isinstance(value, torch.Tensor):
            assert value.dtype == second[name].dtype, name
            assert value.shape == second[name].shape, name
            left, right = value.contiguous().reshape(-1), second[name].contiguous().reshape(-1)
            assert torch.equal(left.view(torch.uint8), right.view(torch.uint8)), name
        else:
            assert value == second[name], name
