"""Rates that change: per member on a plateau, or by PyTorch's schedulers."""

import pytest
import torch
from optim_cases import every_optimizer

from batched_optim import BatchedSGD, ReduceOnPlateau, TorchSchedule


def make(members=4, lr=1.0):
    return BatchedSGD({"w": torch.zeros(members)}, [], lr=lr)


def test_each_member_equals_a_torch_scheduler_of_its_own():
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(60, 4, generator=generator, dtype=torch.float64)
    optimizer = make()
    schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=3, min_lr=0.01)
    singles = [torch.optim.SGD([torch.zeros(1)], lr=1.0) for _ in range(4)]
    references = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(single, factor=0.5, patience=3, min_lr=0.01, eps=0.0)
        for single in singles
    ]

    rates = []
    for row in losses:
        schedule.step(row)
        for reference, loss in zip(references, row.tolist(), strict=True):
            reference.step(loss)
        assert optimizer.lr.tolist() == [single.param_groups[0]["lr"] for single in singles]
        rates.append(optimizer.lr.tolist())

    assert any(len(set(row)) > 1 for row in rates)


def test_nan_counts_as_no_improvement_and_concerns_its_member_only():
    optimizer = make(2)
    schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=0)

    schedule.step(torch.tensor([1.0, torch.nan]))

    assert optimizer.lr.tolist() == [1.0, 0.5]


def test_a_rate_assigned_in_between_is_the_one_reduced():
    optimizer = make(2)
    schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=0)
    optimizer.lr = 4.0

    schedule.step(torch.tensor([torch.nan, 1.0]))

    assert optimizer.lr.tolist() == [2.0, 4.0]


def test_a_rate_below_the_bound_is_left_alone():
    optimizer = make(2, lr=torch.tensor([1e-3, 1.0]))
    schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=0, min_lr=0.8)

    schedule.step(torch.tensor([torch.nan, torch.nan]))

    assert optimizer.lr.tolist() == pytest.approx([1e-3, 0.8])


def test_state_comes_back_and_members_are_selected():
    optimizer = make()
    schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=2)
    for losses in ([4.0, 3.0, 2.0, 1.0], [4.0, 4.0, 1.0, 2.0]):
        schedule.step(torch.tensor(losses))
    other = ReduceOnPlateau(make(), factor=0.5, patience=2)
    other.load_state_dict(schedule.state_dict())
    chosen = schedule.select([3, 0], optimizer.select([3, 0]))

    for one, rows in ((schedule, [0, 1, 2, 3]), (other, [0, 1, 2, 3]), (chosen, [3, 0])):
        for losses in ([4.0, 4.0, 4.0, 4.0],) * 2:
            one.step(torch.tensor(losses)[rows])

    assert schedule.optimizer.lr.tolist() == other.optimizer.lr.tolist() == [0.5, 0.5, 1.0, 0.5]
    assert chosen.optimizer.lr.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"factor": 1.0}, "`factor`"), ({"patience": -1}, "`patience`"), ({"min_lr": -1.0}, "`min_lr`")],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReduceOnPlateau(make(), **options)


def test_losses_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"`losses` must have shape \(4,\), got \(1,\)"):
        ReduceOnPlateau(make()).step(torch.zeros(1))


SCHEDULERS = {
    "step": lambda one: torch.optim.lr_scheduler.StepLR(one, 3, 0.5),
    "cosine": lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10),
    "one cycle": lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 1.0, total_steps=12, cycle_momentum=False),
    "warm-up": lambda one: torch.optim.lr_scheduler.LinearLR(one, 0.1, total_iters=5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_torch_schedulers_scale_the_rate_of_each_member(name):
    rates = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    optimizer = make(3, rates)
    schedule = TorchSchedule(optimizer, SCHEDULERS[name])
    reference = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = SCHEDULERS[name](reference)

    for _ in range(10):
        assert torch.equal(optimizer.lr, rates * reference.param_groups[0]["lr"])
        reference.step()
        scheduler.step()
        schedule.step()


def test_a_torch_schedule_is_resumed():
    one, other = make(lr=0.5), make(lr=0.5)
    schedule, resumed = (TorchSchedule(o, SCHEDULERS["step"]) for o in (one, other))
    for _ in range(4):
        schedule.step()

    resumed.load_state_dict(schedule.state_dict())

    for _ in range(4):
        assert torch.equal(one.lr, other.lr)
        schedule.step()
        resumed.step()


def torch_schedulers():
    """Return a maker for every scheduler that PyTorch offers."""
    base, module = torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler
    arguments = {
        "LambdaLR": [lambda step: 0.9**step],
        "MultiplicativeLR": [lambda step: 0.9],
        "StepLR": [3],
        "MultiStepLR": [[2, 4]],
        "ExponentialLR": [0.9],
        "CosineAnnealingLR": [10],
        "CosineAnnealingWarmRestarts": [5],
        "CyclicLR": [0.1, 1.0, 3, 3, "triangular", 1.0, None, "cycle", False],
        "OneCycleLR": [1.0, 20, None, None, 0.3, "cos", False],
    }
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    for name in ("LRScheduler", "_LRScheduler", "SequentialLR", "ChainedScheduler"):  # the last two take schedulers
        kinds.pop(name)
    bind = lambda kind, extra: lambda one: kind(one, *extra)
    return {name: bind(kind, arguments.get(name, [])) for name, kind in kinds.items()}


TORCH_SCHEDULERS = torch_schedulers()


@pytest.mark.parametrize("name", TORCH_SCHEDULERS)
def test_every_scheduler_of_torch_refuses_our_optimizers_by_name(name):
    """Where PyTorch looks at groups of parameters first we say what to do; else the manual quotes PyTorch's words."""
    with pytest.raises(
        (TypeError, AttributeError), match=r"BatchedSGD is not an Optimizer|batched_optim.TorchSchedule"
    ):
        TORCH_SCHEDULERS[name](make())


@pytest.mark.parametrize("name", TORCH_SCHEDULERS)
def test_every_scheduler_of_torch_works_through_ours(name):
    optimizer, reference = make(3, torch.tensor([1.0, 2.0, 4.0])), torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule, scheduler = TorchSchedule(optimizer, TORCH_SCHEDULERS[name]), TORCH_SCHEDULERS[name](reference)
    measured = [1.0] if name == "ReduceLROnPlateau" else []

    for _ in range(15):
        reference.step()
        scheduler.step(*measured)
        schedule.step(*measured)
        expected = torch.tensor([1.0, 2.0, 4.0]) * reference.param_groups[0]["lr"]
        assert torch.equal(optimizer.lr, expected)


@pytest.mark.parametrize("make_scheduler", ["OneCycleLR", "CyclicLR"])
def test_a_scheduler_that_would_cycle_the_momentum_is_refused(make_scheduler):
    """It could not reach the momentum of the members, and must not seem to."""
    kind, rates = getattr(torch.optim.lr_scheduler, make_scheduler), [1.0, 20]

    with pytest.raises(ValueError, match="momentum"):
        TorchSchedule(make(), lambda one: kind(one, *rates))


@every_optimizer
def test_groups_of_parameters_are_refused_with_the_way_out(kind):
    optimizer = kind({"w": torch.zeros(3)}, [], 0.1)

    with pytest.raises(AttributeError, match=f"{kind.__name__} has no `param_groups`.*`batched_optim.TorchSchedule`"):
        optimizer.param_groups[0]["lr"] = 0.2
    assert not hasattr(optimizer, "param_groups")
