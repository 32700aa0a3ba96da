"""The fitting loop."""

import builtins
import importlib.machinery
import sys
import types

import pytest
import torch
from optim_cases import every_optimizer

from batched_optim import BatchedAdam, BatchedSGD, ReduceOnPlateau, fit_ensemble

X = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
DATA = (X, 3 * X[:, 0] - 1)


def loss(member, batch):
    x, y = batch
    return ((x @ member["w"] + member["b"] - y) ** 2).mean()


def shared_loss(member, batch):
    return loss({"w": member["w"], "b": member["shared"]}, batch)


def start(members=4):
    generator = torch.Generator().manual_seed(0)
    return {
        "w": torch.randn(members, 1, generator=generator, dtype=torch.float64),
        "b": torch.zeros(members, dtype=torch.float64),
    }


@every_optimizer
def test_all_members_are_fitted(kind):
    params = start()

    result = fit_ensemble(loss, params, DATA, kind(params, [], 0.1), max_steps=300)

    assert result.status == ("completed",) * 4
    assert result.losses.shape == (300, 4)
    torch.testing.assert_close(result.params["w"], torch.full((4, 1), 3.0, dtype=torch.float64), rtol=1e-2, atol=0.0)
    assert torch.all(result.best_loss < 1e-3)
    assert list(result.params) == list(params)


def test_a_member_alone_is_fitted_as_in_the_ensemble():
    params, rates = start(), torch.tensor([0.01, 0.1, 0.2, 0.3], dtype=torch.float64)

    together = fit_ensemble(loss, params, DATA, BatchedSGD(params, [], rates), max_steps=25)

    for i in range(4):
        own = {name: p[i : i + 1] for name, p in params.items()}
        alone = fit_ensemble(loss, own, DATA, BatchedSGD(own, [], rates[i : i + 1]), max_steps=25)
        torch.testing.assert_close(alone.losses[:, 0], together.losses[:, i])


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("validation", [None, (X[::2], DATA[1][::2])])
def test_members_stop_by_their_own_patience(compact, validation):
    """A rate of zero never improves; the others do."""
    params = start()
    optimizer = BatchedSGD(params, [], torch.tensor([0.05, 0.0, 0.0, 0.05]), momentum=0.0)

    result = fit_ensemble(
        loss, params, DATA, optimizer, max_steps=100, patience=3, check_every=5, compact=compact, validation=validation
    )

    assert result.status == ("completed", "stopped", "stopped", "completed")
    ended = torch.isfinite(result.losses).sum(dim=0).tolist()
    assert ended == [100, 16, 16, 100]
    assert result.members.tolist() == ([0, 3] if compact else [0, 1, 2, 3])
    assert torch.equal(result.last_params["w"][1], params["w"][1])


def test_compaction_changes_nothing_but_time():
    params = {**start(8), "shared": torch.zeros((), dtype=torch.float64)}
    del params["b"]
    rates = torch.tensor([0.05, 0.0, 1e6, 0.05, 0.0, 0.0, 0.04, 0.0], dtype=torch.float64)
    results = []
    for compact in (False, True):
        optimizer = BatchedSGD(params, ["shared"], rates, momentum=0.5, shared_param_lr_multiplier=0.0)
        schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=2)
        results.append(
            fit_ensemble(
                shared_loss, params, DATA, optimizer, max_steps=60, patience=4, check_every=5, schedule=schedule,
                compact=compact,
            )
        )  # fmt: skip

    whole, compacted = results
    assert len(compacted.members) < 8
    assert compacted.status == whole.status
    torch.testing.assert_close(compacted.losses, whole.losses, equal_nan=True)
    for name in params:
        torch.testing.assert_close(compacted.params[name], whole.params[name])
        torch.testing.assert_close(compacted.last_params[name], whole.last_params[name])


def test_one_bad_member_never_disturbs_the_others_nor_the_shared_parameters():
    params = {"w": start()["w"], "shared": torch.zeros((), dtype=torch.float64)}
    bad = {**params, "w": params["w"].clone()}
    bad["w"][2] = torch.nan
    good_rows = [0, 1, 3]
    good = {"w": params["w"][good_rows], "shared": params["shared"]}

    found = fit_ensemble(shared_loss, bad, DATA, BatchedAdam(bad, ["shared"], 0.05), max_steps=50)
    expected = fit_ensemble(shared_loss, good, DATA, BatchedAdam(good, ["shared"], 0.05), max_steps=50)

    assert found.status == ("completed", "completed", "diverged", "completed")
    torch.testing.assert_close(found.params["shared"], expected.params["shared"])
    torch.testing.assert_close(found.params["w"][good_rows], expected.params["w"])
    assert found.best_loss[2] == torch.inf
    assert found.best_step[2] == -1


def test_best_parameters_are_those_of_the_lowest_loss():
    """Heavy momentum overshoots the minimum and comes back, so the best step is not the last."""
    params = start()
    optimizer = BatchedSGD(params, [], torch.tensor([0.05, 0.1, 0.2, 0.3]), momentum=0.9, nesterov=False)

    result = fit_ensemble(loss, params, DATA, optimizer, max_steps=10, check_every=1)

    values = torch.stack([loss({name: p[i] for name, p in result.params.items()}, DATA) for i in range(4)])
    torch.testing.assert_close(values, result.best_loss)
    assert torch.equal(result.best_loss, result.losses.amin(dim=0))
    assert torch.equal(result.best_step, result.losses.argmin(dim=0))
    assert result.best_step.min() < 9


def test_batches_are_drawn_from_the_generator():
    params = start()
    losses = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        result = fit_ensemble(
            loss, params, DATA, BatchedSGD(params, [], 0.01), max_steps=5, batch_size=7, generator=generator
        )
        losses.append(result.losses)

    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_data_may_be_a_dict():
    params = start()
    named = {"inputs": X, "targets": DATA[1]}
    by_name = lambda member, batch: loss(member, (batch["inputs"], batch["targets"]))
    generator = lambda: torch.Generator().manual_seed(0)

    one = fit_ensemble(
        by_name, params, named, BatchedSGD(params, [], 0.1), max_steps=5, batch_size=9, generator=generator()
    )
    other = fit_ensemble(
        loss, params, DATA, BatchedSGD(params, [], 0.1), max_steps=5, batch_size=9, generator=generator()
    )

    assert torch.equal(one.losses, other.losses)


def test_the_fit_ends_when_all_members_have_ended():
    params = start()

    result = fit_ensemble(loss, params, DATA, BatchedSGD(params, [], 0.0), max_steps=1000, patience=1, check_every=1)

    assert result.status == ("stopped",) * 4
    assert len(result.losses) == 2


def test_no_steps_return_the_start():
    params = start()

    result = fit_ensemble(loss, params, DATA, BatchedSGD(params, [], 0.1), max_steps=0)

    assert torch.equal(result.params["w"], params["w"])
    assert result.losses.shape == (0, 4)
    assert result.best_step.tolist() == [0] * 4


def test_a_progress_bar_without_tqdm_says_how_to_install_it(monkeypatch):
    original = builtins.__import__

    def without_tqdm(name, *arguments, **options):
        if name.startswith("tqdm"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    params = start()

    with pytest.raises(ImportError, match="python -m pip install tqdm"):
        fit_ensemble(loss, params, DATA, BatchedSGD(params, [], 0.1), max_steps=1, progress=True)


def test_a_progress_bar_counts_the_steps(monkeypatch):
    counted = []

    def bar(steps, **options):
        for step in steps:
            counted.append(step)
            yield step

    for name in ("tqdm", "tqdm.auto"):
        module = types.ModuleType(name)
        module.__spec__, module.tqdm = importlib.machinery.ModuleSpec(name, None), bar
        monkeypatch.setitem(sys.modules, name, module)
    params = start()

    fit_ensemble(loss, params, DATA, BatchedSGD(params, [], 0.1), max_steps=7, progress=True)

    assert counted == list(range(7))


def test_importing_the_package_does_not_import_tqdm():
    """The package's modules are loaded already; none of them holds tqdm."""
    ours = [module for name, module in sys.modules.items() if name.startswith("batched_optim")]

    assert not any(hasattr(module, "tqdm") for module in ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": -1}, "`max_steps`"),
        ({"check_every": 0}, "`check_every`"),
        ({"patience": 0}, "`patience`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"min_delta": -1.0}, "`min_delta`"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    params = start()

    with pytest.raises(ValueError, match=message):
        fit_ensemble(loss, params, DATA, BatchedSGD(params, [], 0.1), **options)
