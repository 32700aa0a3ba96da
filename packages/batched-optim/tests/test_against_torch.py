"""SGD and Adam equal a loop of PyTorch's optimizers over the members, to 1e-12 in float64 over 100 steps."""

import pytest
import torch
from optim_cases import MEMBERS, SHAPES, SHARED, ensemble, gradients, mask_of
from optim_oracles import Loop

from batched_optim import BatchedAdam, BatchedSGD

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}

against_torch = pytest.mark.parametrize(
    ("batched", "single", "options"),
    [
        pytest.param(BatchedSGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, id="sgd"),
        pytest.param(BatchedSGD, torch.optim.SGD, {"momentum": 0.5, "nesterov": False}, id="heavy-ball"),
        pytest.param(BatchedAdam, torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-6}, id="adam"),
    ],
)


def close(found, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **TOLERANCE)


@against_torch
def test_equals_one_torch_optimizer_per_member(batched, single, options):
    params, rates = ensemble()
    optimizer = batched(params, SHARED, rates, shared_param_lr_multiplier=0.5, **options)
    loop = Loop(single, params, SHARED, rates, **options)

    for step in range(100):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        loop.step(grads, shared_rate=rates.mean().item() * 0.5)

    close(params, loop.params())


@against_torch
def test_frozen_members_equal_members_that_were_never_there(batched, single, options):
    params, rates = ensemble()
    optimizer = batched(params, SHARED, rates, inactive="freeze", **options)
    loop = Loop(single, params, SHARED, rates, **options)

    for step in range(100):
        grads = gradients(params, step)
        mask = mask_of(step) if step % 3 else None  # without a mask, members of different age step together
        active = slice(None) if mask is None else mask
        params = optimizer.step(params, grads, mask)
        loop.step(grads, mask, shared_rate=rates[active].mean().item())

    close(params, loop.params())


@against_torch
def test_a_changed_rate_is_noticed(batched, single, options):
    """Negative control: a rate that is off by one part in a thousand is not within the tolerance."""
    params, rates = ensemble()
    optimizer = batched(params, SHARED, rates * 1.001, **options)
    loop = Loop(single, params, SHARED, rates, **options)

    for step in range(100):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        loop.step(grads, shared_rate=rates.mean().item())

    with pytest.raises(AssertionError):
        close(params, loop.params())


@against_torch
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("rank", range(5))
def test_any_rank_and_member_count_equals_separate_runs(batched, single, options, members, rank):
    shape = (members, *[members, 2, members, 3][:rank])
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    params, rates = {"w": start}, torch.linspace(0.01, 0.1, members, dtype=torch.float64)
    optimizer = batched(params, [], rates, **options)
    loop = Loop(single, params, [], rates, **options)

    for _ in range(20):
        grads = {"w": torch.sin(params["w"])}
        params = optimizer.step(params, grads)
        loop.step(grads)

    close(params, loop.params())


@against_torch
def test_large_tensors_are_updated_like_small_ones(batched, single, options):
    """More than one block of rows, with a last block that is not full."""
    start = torch.randn(7, 100_003, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    params, rates = {"w": start}, torch.linspace(0.01, 0.1, 7, dtype=torch.float64)
    optimizer = batched(params, [], rates, **options)
    loop = Loop(single, params, [], rates, **options)

    for _ in range(3):
        grads = {"w": torch.sin(params["w"])}
        params = optimizer.step(params, grads)
        loop.step(grads)

    close(params, loop.params())


def per_member(low, high):
    return torch.linspace(low, high, MEMBERS, dtype=torch.float64)


@pytest.mark.parametrize(
    ("batched", "single", "options", "own"),
    [
        pytest.param(
            BatchedSGD,
            torch.optim.SGD,
            {"momentum": per_member(0.1, 0.9), "weight_decay": per_member(0.0, 0.1)},
            lambda i: {"momentum": per_member(0.1, 0.9)[i].item(), "weight_decay": per_member(0.0, 0.1)[i].item()},
            id="sgd",
        ),
        pytest.param(
            BatchedAdam,
            torch.optim.Adam,
            {"betas": (per_member(0.5, 0.9), per_member(0.9, 0.99))},
            lambda i: {"betas": (per_member(0.5, 0.9)[i].item(), per_member(0.9, 0.99)[i].item())},
            id="adam",
        ),
    ],
)
def test_each_member_has_its_own_hyper_parameters(batched, single, options, own):
    params, rates = ensemble()
    params = {name: params[name] for name in SHAPES if name not in SHARED}
    optimizer = batched(params, [], rates, **options)
    extra = {"nesterov": True} if single is torch.optim.SGD else {}
    loops = [
        Loop(single, {name: p[i : i + 1] for name, p in params.items()}, [], rates[i : i + 1], **own(i), **extra)
        for i in range(MEMBERS)
    ]

    for step in range(50):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        for i, loop in enumerate(loops):
            loop.step({name: gradient[i : i + 1] for name, gradient in grads.items()})

    for i, loop in enumerate(loops):
        close({name: p[i : i + 1] for name, p in params.items()}, loop.params())


@pytest.mark.parametrize("batched", [BatchedSGD, BatchedAdam])
def test_a_per_member_hyper_parameter_acts_on_shared_ones_by_its_mean(batched):
    params, rates = ensemble()
    values, mask = per_member(0.1, 0.9), torch.tensor([True, False, True, True, False])
    name = "momentum" if batched is BatchedSGD else "betas"
    options = lambda value: {name: value if name == "momentum" else (value, 0.99)}
    varied = batched(params, SHARED, rates, **options(values))
    uniform = batched(params, SHARED, rates, **options(values[mask].mean().item()))

    one, other = params, params
    for step in range(10):
        one = varied.step(one, gradients(params, step), mask)
        other = uniform.step(other, gradients(params, step), mask)

    close({key: one[key] for key in SHARED}, {key: other[key] for key in SHARED})


@against_torch
def test_maximize_ascends_as_torch_does(batched, single, options):
    params, rates = ensemble()
    optimizer = batched(params, SHARED, rates, maximize=True, **options)
    loop = Loop(single, params, SHARED, rates, maximize=True, **options)

    for step in range(20):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        loop.step(grads, shared_rate=rates.mean().item())

    close(params, loop.params())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@against_torch
def test_low_precision_parameters_follow_a_float32_run(batched, single, options, dtype):
    """Buffers are float32, so each step equals a float32 step from the same point, rounded once."""
    params, rates = ensemble(dtype)
    optimizer = batched(params, SHARED, rates.float(), **options)
    wide = batched({name: p.float() for name, p in params.items()}, SHARED, rates.float(), **options)

    for step in range(10):
        grads = gradients(params, step)
        new = optimizer.step(params, grads)
        expected = wide.step(
            {name: p.float() for name, p in params.items()},
            {name: gradient.float() for name, gradient in grads.items()},
        )
        for name, tensor in new.items():
            assert tensor.dtype == dtype
            torch.testing.assert_close(tensor, expected[name].to(dtype), rtol=0.0, atol=0.0)
        params = new
