"""No step waits for the device, and a step compiles to one graph that does what the eager one does."""

import pytest
import torch
from optim_cases import MEMBERS, SHARED, ensemble, every_optimizer, gradients, mask_of
from torch.utils._python_dispatch import TorchDispatchMode

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD


class NoHostSync(TorchDispatchMode):
    """Refuses to hand a number of a tensor to Python, which on a GPU would wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


OPTIONS = {
    "plain": {},
    "frozen": {"inactive": "freeze"},
    "clipped": {"clip_value": 0.5, "clip_norm": 0.7},
    "clipped together": {"clip_norm": 0.7, "clip_scope": "member", "maximize": True},
    "skipping": {"nonfinite": "skip", "shared_param_lr_multiplier": 0.5},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


@every_optimizer
@every_option
@pytest.mark.parametrize("masked", [False, True])
def test_no_step_waits_for_the_device(kind, options, masked):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates, **options)

    with NoHostSync():
        for step in range(3):
            params = optimizer.step(params, gradients(params, step), mask_of(step) if masked else None)


@pytest.mark.parametrize("read", [bool, float, torch.nonzero])
def test_the_watch_notices_a_wait(read):
    """Negative control."""
    with NoHostSync(), pytest.raises(AssertionError, match="waits for the device"):
        read(torch.ones(()))


def test_members_with_their_own_hyper_parameters_do_not_wait_either():
    params, rates = ensemble()
    own = torch.linspace(0.1, 0.9, MEMBERS)
    sgd = BatchedSGD(params, SHARED, rates, momentum=own, weight_decay=own)
    adam = BatchedAdam(params, SHARED, rates, betas=(own, own))
    adam.reset([1])

    with NoHostSync():
        sgd.step(params, gradients(params, 0), mask_of(0))
        adam.step(params, gradients(params, 0), mask_of(0))


class Counter:
    """A compiler that only counts the graphs it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@every_optimizer
@pytest.mark.parametrize(
    ("name", "masked"),
    [
        pytest.param(name, masked, marks=[] if (name, masked) == ("plain", True) else pytest.mark.slow)
        for name in OPTIONS
        for masked in (False, True)
    ],
)
def test_a_step_is_one_graph_and_equals_the_eager_one(kind, name, masked):
    torch._dynamo.reset()
    options = OPTIONS[name]
    params, rates = ensemble()
    eager, traced, counter = kind(params, SHARED, rates, **options), kind(params, SHARED, rates, **options), Counter()
    step_traced = torch.compile(traced.step, fullgraph=True, backend=counter, dynamic=False)
    found = params

    for step in range(4):
        mask = mask_of(step) if masked else None
        grads = gradients(params, step)
        params, found = eager.step(params, grads, mask), step_traced(found, grads, mask)

    assert counter.graphs == 1
    for name, tensor in params.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [BatchedSGD, BatchedAdam, pytest.param(BatchedLBFGS, marks=pytest.mark.slow)])
def test_a_rate_that_changes_in_place_or_is_assigned_does_not_recompile(kind):
    torch._dynamo.reset()
    params, _ = ensemble()
    optimizer, counter = kind(params, SHARED, 0.01), Counter()
    step_traced = torch.compile(optimizer.step, fullgraph=True, backend=counter, dynamic=False)

    for step in range(10):
        optimizer.lr.mul_(0.9)
        params = step_traced(params, gradients(params, step))
        optimizer.lr = optimizer.lr.item() * 0.9

    assert counter.graphs == 1


@pytest.mark.parametrize("kind", [BatchedSGD])
def test_a_graph_break_would_be_noticed(kind, monkeypatch):
    """Negative control of the one graph."""
    torch._dynamo.reset()
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates)
    original = kind._directions
    monkeypatch.setattr(
        kind, "_directions", lambda self, group: [torch._dynamo.graph_break(), original(self, group)][1]
    )

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(optimizer.step, fullgraph=True, backend=Counter())(params, gradients(params, 0))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own deprecations
@every_optimizer
def test_the_compile_option_gives_the_eager_results(kind):
    torch._dynamo.reset()
    params, rates = ensemble()
    eager, compiled = kind(params, SHARED, rates), kind(params, SHARED, rates, compile=True)
    found = params

    for step in range(6):
        grads = gradients(params, step)
        params, found = eager.step(params, grads), compiled.step(found, grads)

    for name, tensor in params.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11)
    chosen = compiled.select([0, 2])
    part = {name: p if name in SHARED else p[[0, 2]] for name, p in found.items()}
    grads = {name: g[[0, 2]] for name, g in gradients(found, 6).items()}
    expected = eager.select([0, 2]).step(part, grads)
    for name, tensor in chosen.step(part, grads).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-11)
