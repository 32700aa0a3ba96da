"""The optimizers equal a loop of torch.optim over the members, and a saved run goes on bit for bit."""

import pytest
import torch

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD, load_into, save

MEMBERS = 5
SHAPES = {"w": (MEMBERS, 3, MEMBERS), "b": (MEMBERS,), "k": (MEMBERS, 2, 1, 2, 3)}


def start():
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    params["shared"] = torch.randn(4, generator=generator, dtype=torch.float64)
    return params, torch.rand(MEMBERS, generator=generator, dtype=torch.float64) * 0.01


def gradients(params, step):
    generator = torch.Generator().manual_seed(step)
    rows = {name: (MEMBERS, *p.shape) if name == "shared" else p.shape for name, p in params.items()}
    noise = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in rows.items()}
    return {name: torch.sin(p) + 0.1 * noise[name] for name, p in params.items()}


@pytest.mark.parametrize(
    ("batched", "single", "options"),
    [
        pytest.param(BatchedAdam, torch.optim.Adam, {}, id="adam"),
        pytest.param(BatchedSGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, id="sgd"),
    ],
)
def test_equals_one_torch_optimizer_per_member(batched, single, options):
    params, rates = start()
    optimizer = batched(params, ["shared"], rates, **options)
    loops = [{name: torch.nn.Parameter(params[name][i].clone()) for name in SHAPES} for i in range(MEMBERS)]
    shared = torch.nn.Parameter(params["shared"].clone())
    singles = [single(list(loop.values()), lr=rates[i].item(), **options) for i, loop in enumerate(loops)]
    singles.append(single([shared], lr=rates.mean().item(), **options))

    for step in range(100):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        for i, loop in enumerate(loops):
            for name, parameter in loop.items():
                parameter.grad = grads[name][i].clone()
        shared.grad = grads["shared"].mean(dim=0)
        for reference in singles:
            reference.step()

    for name in SHAPES:
        expected = torch.stack([loop[name].detach() for loop in loops])
        torch.testing.assert_close(params[name], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(params["shared"], shared.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [BatchedAdam, BatchedSGD, BatchedLBFGS])
def test_a_loaded_run_continues_bit_for_bit(make, tmp_path):
    params, rates = start()
    optimizer = make(params, ["shared"], rates)
    for step in range(15):
        params = optimizer.step(params, gradients(params, step))
    save(tmp_path / "run.safetensors", optimizer, params)
    other = make(params, ["shared"], 1.0)

    loaded = load_into(tmp_path / "run.safetensors", other)

    for step in range(15, 35):
        params = optimizer.step(params, gradients(params, step))
        loaded = other.step(loaded, gradients(loaded, step))
    assert all(torch.equal(params[name], loaded[name]) for name in params)
