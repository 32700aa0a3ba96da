"""On a GPU: the same numbers, no waiting, and a step that a CUDA graph can hold."""

import pytest
import torch
from optim_cases import SHARED, ensemble, every_optimizer, gradients, mask_of, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and PyTorch's CUDA build")


def on_gpu(tensors):
    return {name: tensor.cuda() for name, tensor in tensors.items()}


@every_optimizer
@pytest.mark.parametrize("inactive", ["advance", "freeze"])
def test_steps_equal_those_on_the_cpu(kind, inactive):
    params, rates = ensemble()
    expected = run(kind(params, SHARED, rates, inactive=inactive), params, range(10), masked=True)
    found = on_gpu(params)
    optimizer = kind(found, SHARED, rates, inactive=inactive)

    for step in range(10):
        grads = gradients({name: tensor.cpu() for name, tensor in found.items()}, step)
        found = optimizer.step(found, on_gpu(grads), mask_of(step).cuda())

    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].cpu(), tensor, rtol=1e-8, atol=1e-8)


@every_optimizer
@pytest.mark.parametrize("inactive", ["advance", "freeze"])
def test_a_step_does_not_wait_and_is_captured_in_a_graph(kind, inactive):
    params, rates = ensemble()
    start, grads, mask = on_gpu(params), on_gpu(gradients(params, 0)), mask_of(0).cuda()
    optimizer = kind(start, SHARED, rates, inactive=inactive)
    for _ in range(3):
        optimizer.step(start, grads, mask)
    twin, graph = optimizer.select(slice(None)), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            found = optimizer.step(start, grads, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    for _ in range(2):
        graph.replay()

    twin.step(start, grads, mask)
    expected = twin.step(start, grads, mask)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)
