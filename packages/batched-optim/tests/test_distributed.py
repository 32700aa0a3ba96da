"""Members divided over ranks equal members in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optim_cases import BATCHED, MEMBERS, OPTIMIZERS, SHARED, assert_bit_equal, ensemble, gradients

from batched_optim import BatchedSGD, load, members_of_rank, save

STEPS = 25
# How the five members are divided; the first is not what `members_of_rank` would choose.
PARTS = {2: [(0, 4), (4, 5)], 3: [(0, 1), (1, 3), (3, 5)]}


def mask_at(step):
    """Return a random mask; now and then the last members, which one rank holds, or all members are frozen."""
    generator = torch.Generator().manual_seed(3000 + step)
    mask = torch.rand(MEMBERS, generator=generator) < 0.7
    if step % 4 == 1:
        mask[3:] = False
    return mask & (step % 9 != 5)


OPTIONS = {
    "sgd": {"weight_decay": 0.01, "momentum": torch.linspace(0.1, 0.9, MEMBERS, dtype=torch.float64)},
    "adam": {"clip_norm": 0.8, "clip_scope": "member"},
    "lbfgs": {"inactive": "freeze", "nonfinite": "skip"},
}


def rank_main(folder, rank, world, compiled):
    """What each rank does: step, save, be killed in the middle of a save."""
    group = torch.distributed
    group.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    part = slice(*PARTS[world][rank])
    for name, kind in OPTIMIZERS.items():
        rows = part
        params, rates = ensemble()
        options = {key: v[rows] if isinstance(v, torch.Tensor) else v for key, v in OPTIONS[name].items()}
        own = {key: p if key in SHARED else p[rows] for key, p in params.items()}
        optimizer = kind(own, SHARED, rates[rows], process_group=group.group.WORLD, compile=compiled, **options)
        own = advance(optimizer, own, rows, range(STEPS))
        save(Path(folder) / f"{name}{world}.safetensors", optimizer, own, {"step": STEPS})
        torch.save(own, Path(folder) / f"{name}{world}rank{rank}")

        rows = members_of_rank(MEMBERS)  # another division
        found = load(Path(folder) / f"{name}{world}.safetensors", members=rows, process_group=group.group.WORLD)
        later = advance(found.optimizer, found.params, rows, range(STEPS, STEPS + 5))
        torch.save(later, Path(folder) / f"{name}{world}later{rank}")

    torch.save(members_of_rank(MEMBERS), Path(folder) / f"members{world}rank{rank}")
    if rank == world - 1:
        os._exit(9)  # as if killed: it never writes its shard of the next checkpoint
    try:
        save(Path(folder) / f"lbfgs{world}.safetensors", optimizer, own, {"step": "never"})
    except RuntimeError:
        sys.exit(0)


def advance(optimizer, own, rows, steps):
    """Take some steps with this rank's members; return their parameters."""
    for step in steps:
        whole = {key: p if key in SHARED else spread(p, rows) for key, p in own.items()}
        grads = {key: g[rows] for key, g in gradients(whole, step).items()}
        mask = mask_at(step)[rows]
        # A rank may give no mask when all its members are active; compiled, that would be another graph.
        own = optimizer.step(own, grads, None if bool(mask.all()) and not optimizer.compile else mask)
    return own


def spread(tensor, rows):
    """Return a tensor of all members that holds this rank's rows; the others do not matter."""
    whole = torch.zeros(MEMBERS, *tensor.shape[1:], dtype=tensor.dtype)
    whole[rows] = tensor
    return whole


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((2, False), id="2"),
        pytest.param((3, False), id="3", marks=pytest.mark.slow),
        pytest.param((2, True), id="2 compiled", marks=pytest.mark.slow),
    ],
)
def ranks(request, tmp_path_factory):
    """Run the ranks; return the folder of their results, how many there were, and to what they equal one process.

    A compiled step rounds otherwise, which 25 steps of L-BFGS amplify.
    """
    (world, compiled), folder = request.param, tmp_path_factory.mktemp("ranks")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import torch; torch.set_num_threads(1); "
        "import test_distributed; "
        f"test_distributed.rank_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), {compiled})"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, folder, str(rank), str(world)], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    errors = [process.communicate(timeout=400)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * (world - 1) + [9], errors
    return folder, world, {"rtol": 1e-10, "atol": 1e-10} if compiled else {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(scope="module")
def alone():
    """The same run in one process."""
    found = {}
    for name, kind in OPTIMIZERS.items():
        params, rates = ensemble()
        optimizer = kind(params, SHARED, rates, **OPTIONS[name])
        for step in range(STEPS):
            params = optimizer.step(params, gradients(params, step), mask_at(step))
        found[name] = optimizer, params
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shared_parameters_are_bit_identical_on_all_ranks(name, ranks):
    folder, world, _ = ranks

    first, *others = (torch.load(folder / f"{name}{world}rank{rank}") for rank in range(world))

    for other in others:
        assert_bit_equal({key: first[key] for key in SHARED}, {key: other[key] for key in SHARED})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ranks_equal_one_process(name, ranks, alone):
    folder, world, tolerance = ranks
    _, expected = alone[name]

    parts = [torch.load(folder / f"{name}{world}rank{rank}") for rank in range(world)]

    for key in BATCHED:
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), expected[key], **tolerance)
    for key in SHARED:
        torch.testing.assert_close(parts[0][key], expected[key], **tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ranks_that_load_another_division_go_on_like_one_process(name, ranks, alone):
    folder, world, tolerance = ranks
    optimizer, params = alone[name]
    optimizer = optimizer.select(slice(None))
    for step in range(STEPS, STEPS + 5):
        params = optimizer.step(params, gradients(params, step), mask_at(step))

    parts = [torch.load(folder / f"{name}{world}later{rank}") for rank in range(world)]

    for key in BATCHED:
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), params[key], **tolerance)
    for key in SHARED:
        torch.testing.assert_close(parts[-1][key], params[key], **tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("members", [None, slice(0, 2), slice(2, 5)])
def test_a_checkpoint_of_ranks_loads_into_any_number_of_ranks(name, members, ranks, alone):
    folder, world, tolerance = ranks
    optimizer, params = alone[name]
    rows = slice(None) if members is None else members

    found = load(folder / f"{name}{world}.safetensors", members=members)

    for key in BATCHED:
        torch.testing.assert_close(found.params[key], params[key][rows], **tolerance)
    assert found.optimizer.num_members == len(range(MEMBERS)[rows])
    expected, state = optimizer.select(rows).state_dict(), found.optimizer.state_dict()
    for field, buffers in expected.items():
        # Products over ill-conditioned histories amplify the last digits; what they are products of is compared.
        if isinstance(buffers, dict) and field not in {"inverse", "gram"}:
            for key, buffer in buffers.items():
                torch.testing.assert_close(state[field][key], buffer, rtol=1e-9, atol=1e-9)


def test_a_rank_killed_during_a_save_leaves_the_last_checkpoint(ranks):
    folder, world, _ = ranks

    assert load(folder / f"lbfgs{world}.safetensors").metadata == {"step": STEPS}


def test_members_are_divided_evenly(ranks):
    folder, world, _ = ranks

    found = [torch.load(folder / f"members{world}rank{rank}", weights_only=False) for rank in range(world)]

    assert found == {2: [slice(0, 2), slice(2, 5)], 3: [slice(0, 1), slice(1, 3), slice(3, 5)]}[world]


def test_choosing_shards_where_ranks_write_theirs_is_refused(tmp_path):
    params = {"w": torch.zeros(2)}
    optimizer = BatchedSGD(params, [], 0.1)
    optimizer.process_group = object()

    with pytest.raises(ValueError, match="each rank writes one"):
        save(tmp_path / "run", optimizer, params, shards=2)
