"""One file: exact, strict, atomic, and damage is noticed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from optim_cases import (
    MEMBERS,
    OPTIMIZERS,
    SHARED,
    assert_bit_equal,
    ensemble,
    every_optimizer,
    gradients,
    run,
)

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD, CheckpointError, load, load_into, save

PRECISIONS = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:]
)
GOLDEN = Path(__file__).with_name("golden_adam.safetensors")


def trained(kind, dtype=torch.float64, steps=12, **options):
    """Return an optimizer and its parameters after some masked steps, so that members differ in all they can."""
    params, rates = ensemble(dtype)
    optimizer = kind(params, SHARED, rates, **options)
    return optimizer, run(optimizer, params, range(steps), masked=True)


# A new process that loads a run, takes 20 more steps and saves the outcome.
RESUME = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from optim_cases import run
from batched_optim import load, save
found = load(sys.argv[2])
params = run(found.optimizer, found.params, range(12, 32), masked=True)
save(sys.argv[2] + ".end", found.optimizer, params)
"""


@every_optimizer
@PRECISIONS
def test_a_loaded_run_goes_on_bit_for_bit(kind, dtype, tmp_path):
    optimizer, params = trained(kind, dtype)
    save(tmp_path / "run.safetensors", optimizer, params)

    found = load(tmp_path / "run.safetensors")

    assert_bit_equal(found.params, params)
    assert_bit_equal(found.optimizer.state_dict(), optimizer.state_dict())
    ours = run(optimizer, params, range(12, 32), masked=True)
    theirs = run(found.optimizer, found.params, range(12, 32), masked=True)
    assert_bit_equal(theirs, ours)
    assert_bit_equal(found.optimizer.state_dict(), optimizer.state_dict())


def test_a_new_process_resumes_bit_for_bit(tmp_path):
    for name, kind in OPTIMIZERS.items():
        save(tmp_path / name, *trained(kind, torch.float32))
    code = RESUME.replace("found = load(sys.argv[2])", "for path in sys.argv[2:]:\n  found = load(path)")
    code = code.replace("\nparams = run", "\n  params = run").replace("\nsave(sys.argv[2] +", "\n  save(path +")

    subprocess.run([sys.executable, "-c", code, Path(__file__).parent, *(tmp_path / n for n in OPTIMIZERS)], check=True)

    for name, kind in OPTIMIZERS.items():
        optimizer, params = trained(kind, torch.float32)
        params = run(optimizer, params, range(12, 32), masked=True)
        found = load(tmp_path / f"{name}.end")
        assert_bit_equal(found.params, params)
        assert_bit_equal(found.optimizer.state_dict(), optimizer.state_dict())


def test_one_step_less_is_noticed(tmp_path):
    """Negative control of bitwise resumption."""
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run", optimizer, params)
    found = load(tmp_path / "run")

    ours = run(optimizer, params, range(12, 32), masked=True)
    theirs = run(found.optimizer, found.params, range(13, 32), masked=True)

    with pytest.raises(AssertionError):
        assert_bit_equal(theirs, ours)


@every_optimizer
def test_load_into_gives_another_optimizer_state_and_settings(kind, tmp_path):
    optimizer, params = trained(kind, clip_norm=2.0, inactive="freeze")
    save(tmp_path / "run", optimizer, params)
    other = kind(params, SHARED, 1.0)

    loaded = load_into(tmp_path / "run", other)

    assert_bit_equal(loaded, params)
    assert other.clip_norm == 2.0
    assert_bit_equal(run(other, loaded, range(12, 20), masked=True), run(optimizer, params, range(12, 20), masked=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_state_of_low_precision_parameters_is_float32_and_counts_are_integers(dtype, tmp_path):
    save(tmp_path / "run", *trained(BatchedAdam, dtype))

    tensors = safetensors.torch.load_file(tmp_path / "run")

    assert tensors["params/weight"].dtype == dtype
    assert tensors["state/m/weight"].dtype == torch.float32
    assert tensors["state/step/weight"].dtype == torch.int64
    assert tensors["state/step/weight"].tolist() == [12] * MEMBERS


def test_settings_of_every_type_come_back(tmp_path):
    params, rates = ensemble()
    betas = (0.9, torch.linspace(0.9, 0.99, MEMBERS, dtype=torch.float64))
    options = {"betas": betas, "clip_value": 0.3, "clip_scope": "member", "maximize": True, "nonfinite": "skip"}
    save(tmp_path / "run", BatchedAdam(params, SHARED, rates[:, None], **options), metadata={"epoch": [1, None, "é"]})

    found = load(tmp_path / "run")

    assert found.metadata == {"epoch": [1, None, "é"]}
    assert found.params == {}
    assert found.optimizer.betas[0] == 0.9
    assert torch.equal(found.optimizer.betas[1], betas[1])
    assert torch.equal(found.optimizer.lr, rates[:, None])
    for name in ("clip_value", "clip_scope", "maximize", "nonfinite"):
        assert getattr(found.optimizer, name) == options[name]
    assert found.optimizer.shared_param_names == tuple(SHARED)


def test_members_are_loaded_by_position(tmp_path):
    optimizer, params = trained(BatchedLBFGS)
    save(tmp_path / "run", optimizer, params)

    found = load(tmp_path / "run", members=[4, 1])

    assert_bit_equal(found.optimizer.state_dict(), optimizer.select([4, 1]).state_dict())
    assert torch.equal(found.params["weight"], params["weight"][[4, 1]])
    assert torch.equal(found.params["shared"], params["shared"])


@every_optimizer
def test_reset_keeps_parameters_rates_and_settings_and_drops_state(kind, tmp_path):
    optimizer, params = trained(kind, clip_norm=2.0)
    save(tmp_path / "run", optimizer, params)

    found = load(tmp_path / "run", reset=True)

    fresh = kind(params, SHARED, optimizer.lr, clip_norm=2.0)
    assert_bit_equal(found.params, params)
    assert_bit_equal(run(found.optimizer, params, range(5)), run(fresh, params, range(5)))


def test_reset_of_some_members_keeps_the_others(tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run", optimizer, params)

    state = load(tmp_path / "run", reset=[1, 3]).optimizer.state_dict()

    assert state["step"]["weight"].tolist() == [12, 0, 12, 0, 12]
    assert torch.equal(state["m"]["weight"][[0, 2, 4]], optimizer.state_dict()["m"]["weight"][[0, 2, 4]])
    assert state["step"]["shared"] == optimizer.state_dict()["step"]["shared"]


def test_aliased_and_expanded_parameters_save(tmp_path):
    row = torch.arange(6.0)
    params = {"a": row[:4].reshape(2, 2), "b": row[:2].expand(2, 2), "c": row[::3]}
    save(tmp_path / "run", BatchedSGD(params, [], 0.1), params)

    assert_bit_equal(load(tmp_path / "run").params, {name: p.contiguous() for name, p in params.items()})


def test_a_file_is_loaded_and_saved_over_itself(tmp_path):
    save(tmp_path / "run", *trained(BatchedAdam))
    before = (tmp_path / "run").read_bytes()

    found = load(tmp_path / "run")
    save(tmp_path / "run", found.optimizer, found.params)

    assert (tmp_path / "run").read_bytes() == before


@every_optimizer
def test_a_run_saved_with_one_order_of_keys_goes_on_with_another(kind, tmp_path):
    optimizer, params = trained(kind)
    save(tmp_path / "run", optimizer, params)
    turned = dict(reversed(params.items()))
    other = kind(turned, SHARED, 1.0)

    loaded = load_into(tmp_path / "run", other)

    found = {name: loaded[name] for name in turned}
    for step in range(12, 20):
        grads = gradients(params, step)
        params, found = optimizer.step(params, grads), other.step(found, dict(sorted(grads.items())))
    assert list(found) == list(turned)
    assert_bit_equal({name: found[name] for name in params}, params)


def test_bytes_are_reproducible(tmp_path):
    files = []
    for number in range(3):
        optimizer, params = trained(BatchedLBFGS)
        save(tmp_path / f"{number}", optimizer, params, metadata={"a": 1, "b": 2})
        files.append((tmp_path / f"{number}").read_bytes())

    assert files[0] == files[1] == files[2]


def test_the_header_does_not_grow_with_the_number_of_members(tmp_path):
    sizes = {}
    for members in (10, 10_000):
        params = {"w": torch.zeros(members, 3), "b": torch.zeros(members)}
        optimizer = BatchedLBFGS(params, [], torch.full((members,), 0.1), history_size=5)
        for _ in range(3):
            params = optimizer.step(params, {name: torch.sin(p + 1) for name, p in params.items()})
        save(tmp_path / "run", optimizer, params)
        raw = (tmp_path / "run").read_bytes()
        sizes[members] = int.from_bytes(raw[:8], "little")
        assert_bit_equal(load(tmp_path / "run").optimizer.state_dict(), optimizer.state_dict())

    assert sizes[10_000] < sizes[10] + 1000
    assert sizes[10_000] < 10_000


def test_the_golden_file_still_loads():
    """It pins format 1: made once from the numbers below, by hand-checked code, and never written anew."""
    found = load(GOLDEN)

    assert found.metadata == {"note": "golden"}
    assert found.optimizer.betas == (0.5, 0.75)
    assert found.optimizer.lr.tolist() == [0.5, 0.25]
    state = found.optimizer.state_dict()
    # One step with g = (4, 8) and, shared, the mean of 2 and 4.
    assert state["m"]["w"].tolist() == [2.0, 4.0]
    assert state["v"]["w"].tolist() == [4.0, 16.0]
    assert state["m"]["s"].item() == 1.5
    assert state["step"]["w"].tolist() == [1, 1]
    assert found.params["w"].tolist() == [0.5, 1.75]
    assert found.params["s"].item() == 2.625


def test_the_golden_file_is_what_save_writes(tmp_path):
    params = {"w": torch.tensor([1.0, 2.0]), "s": torch.tensor(3.0)}
    optimizer = BatchedAdam(params, ["s"], torch.tensor([0.5, 0.25]), betas=(0.5, 0.75), eps=0.0)
    params = optimizer.step(params, {"w": torch.tensor([4.0, 8.0]), "s": torch.tensor([2.0, 4.0])})
    save(tmp_path / "run", optimizer, params, metadata={"note": "golden"})

    ours, theirs = (safetensors.torch.load_file(path) for path in (tmp_path / "run", GOLDEN))

    assert_bit_equal(dict(sorted(ours.items())), dict(sorted(theirs.items())))


# Damage.


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "run.safetensors"
    params = {"w": torch.arange(6.0).reshape(3, 2)}
    optimizer = BatchedAdam(params, [], torch.tensor([0.1, 0.2, 0.3]))
    save(path, optimizer, optimizer.step(params, params), metadata={"name": 'é\\"{}'})
    return path.read_bytes()


def refuses(path, raw):
    """Write the bytes; return the message with which they are refused."""
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_an_intact_file_is_accepted(intact, tmp_path):
    """Control of the tests below."""
    (tmp_path / "run").write_bytes(intact)

    assert load(tmp_path / "run").metadata == {"name": 'é\\"{}'}


@pytest.mark.parametrize("size", [0, 4, 8, 50, -1])
def test_a_truncated_file_is_refused(intact, tmp_path, size):
    refuses(tmp_path / "run", intact[:size])


@pytest.mark.parametrize("extra", [b"\0", b" " * 100], ids=["one byte", "many bytes"])
def test_trailing_bytes_are_refused(intact, tmp_path, extra):
    refuses(tmp_path / "run", intact + extra)


def test_random_garbage_is_refused(tmp_path):
    generator = random.Random(0)
    for size in (1, 7, 9, 100, 5000):
        refuses(tmp_path / "run", generator.randbytes(size))


def flip(raw, bit):
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_one_flipped_bit_is_refused_wherever_it_is(intact, tmp_path):
    """Every bit of the file's frame, and every 31st of the rest, so that all 8 bits of a byte are met."""
    for bit in [*range(64 * 8), *range(64 * 8, len(intact) * 8, 31)]:
        refuses(tmp_path / "run", flip(intact, bit))


@pytest.mark.slow
def test_any_flipped_bit_is_refused(intact, tmp_path):
    for bit in range(len(intact) * 8):
        refuses(tmp_path / "run", flip(intact, bit))


def test_another_framework_s_file_is_refused(tmp_path):
    torch.save({"w": torch.zeros(3)}, tmp_path / "pickle")
    safetensors.torch.save_file({"w": torch.zeros(3)}, tmp_path / "plain", {"format": "pt"})
    (tmp_path / "json").write_text(json.dumps({"w": [0.0]}))

    assert "no safetensors file" in refuses(tmp_path / "pickle", (tmp_path / "pickle").read_bytes())
    assert "batched-optim did not write" in refuses(tmp_path / "plain", (tmp_path / "plain").read_bytes())
    assert "no safetensors file" in refuses(tmp_path / "json", (tmp_path / "json").read_bytes())


def test_a_newer_format_is_refused_by_its_number(intact, tmp_path):
    raw = intact.replace(b'\\"format_version\\":1', b'\\"format_version\\":9')

    assert "format version is 9" in refuses(tmp_path / "run", raw)


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "run")


# Strictness.


def test_every_mismatch_is_listed_at_once_and_nothing_changes(tmp_path):
    save(tmp_path / "run", *trained(BatchedLBFGS))
    params = {
        "weight": torch.zeros(3, 3, MEMBERS),
        "bias": torch.zeros(3, 2),
        "new": torch.zeros(3),
        "shared": torch.zeros(4),
    }
    optimizer = BatchedLBFGS(params, ["shared"], 0.1, history_size=4)
    before = optimizer.state_dict()

    with pytest.raises(CheckpointError) as caught:
        load_into(tmp_path / "run", optimizer)

    for part in (
        "5 members, expected 3",
        "parameter 'new' is missing",
        "parameter 'kernel' is unexpected",
        "parameter 'bias' has row_shape [], expected [2]",
        "parameter 'weight' has dtype float64, expected float32",
        "'history_size' is 10, expected 4",
        "'shared_param_names' is ('shared', 'scalar'), expected ('shared',)",
    ):
        assert part in str(caught.value)
    assert_bit_equal(optimizer.state_dict(), before)


def test_another_optimizer_s_file_is_refused(tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run", optimizer, params)

    with pytest.raises(CheckpointError, match="holds the optimizer 'adam', expected 'sgd'"):
        load_into(tmp_path / "run", BatchedSGD(params, SHARED, 0.1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda o, p: (o, {"w": torch.zeros(3)}), KeyError, "`params` lacks 'weight'"),
        (lambda o, p: (o, {**p, "x": torch.zeros(3)}), KeyError, "`params` holds"),
        (lambda o, p: (o, {**p, "bias": torch.zeros(4).double()}), ValueError, "must have shape"),
        (lambda o, p: (o, p, {"when": object()}), TypeError, "`metadata` must hold only what JSON can"),
        (lambda o, p: (object(), p), TypeError, "`optimizer` must be one of"),
    ],
)
def test_save_refuses_what_does_not_fit_before_it_writes(arguments, error, message, tmp_path):
    optimizer, params = trained(BatchedSGD)

    with pytest.raises(error, match=message):
        save(tmp_path / "run", *arguments(optimizer, params))

    assert list(tmp_path.iterdir()) == []


def test_the_reserved_name_is_refused_before_anything_is_written(tmp_path):
    params = {"__metadata__": torch.zeros(3)}

    with pytest.raises(ValueError, match="'__metadata__' is reserved"):
        save(tmp_path / "run", BatchedSGD(params, [], 0.1), params)

    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    optimizer, params = trained(BatchedSGD)
    save(tmp_path / "run", optimizer, params)
    before = (tmp_path / "run").read_bytes()
    full = lambda *_: (_ for _ in ()).throw(OSError("no space left"))
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="no space left"):
        save(tmp_path / "run", optimizer, params, metadata={"new": True})

    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_bytes() == before


def test_a_file_system_without_unnamed_files_is_served_too(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    optimizer, params = trained(BatchedSGD)

    save(tmp_path / "run", optimizer, params)

    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert_bit_equal(load(tmp_path / "run").params, params)


# A process that forks, for each path it reads, one that saves versions 0, 1, 2, ... for ever; each is consistent in
# itself. Forking spares the start of Python and PyTorch.
WRITER = """
import itertools, os, sys
import torch
torch.set_num_threads(1)
from batched_optim import BatchedSGD, save

def write(path, shards):
    params = {"w": torch.zeros(64, 512)}
    optimizer = BatchedSGD(params, [], lr=0.0)
    for version in itertools.count():
        optimizer.lr = float(version)
        save(path, optimizer, {"w": torch.full((64, 512), float(version))}, {"version": version}, shards=shards)
        if version == 0:
            print(os.getpid(), flush=True)

for line in sys.stdin:
    path, shards = line.split()
    child = os.fork()
    if child == 0:
        write(path, int(shards) or None)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def kill_a_writer(writer, path, shards, delay):
    """Have a process save over and over, and kill it after a while."""
    print(path, shards, file=writer.stdin, flush=True)
    process = int(writer.stdout.readline())
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    assert writer.stdout.readline() == "gone\n"


def check_survivor(path):
    """Assert that what is there is one version, whole."""
    found = load(path)
    version = found.metadata["version"]
    assert found.optimizer.lr.item() == version
    assert torch.all(found.params["w"] == version)


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_one_version_whole_and_no_stray_file(rounds, tmp_path):
    generator = random.Random(0)
    kinds = {"one.safetensors": 0, "many.safetensors": 3}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        for _ in range(rounds):
            for name, shards in kinds.items():
                kill_a_writer(writer, tmp_path / name, shards, generator.random() * 0.03)
                check_survivor(tmp_path / name)

    params = {"w": torch.zeros(64, 512)}
    for name, shards in kinds.items():
        save(tmp_path / name, BatchedSGD(params, [], lr=0.0), params, {"version": 0}, shards=shards or None)
        check_survivor(tmp_path / name)
    shard_files = {f"many-0000{i + 1}-of-00003.safetensors" for i in range(3)}
    assert {file.name for file in tmp_path.iterdir()} == {
        "one.safetensors",
        "many.safetensors.index.json",
        *shard_files,
    }
