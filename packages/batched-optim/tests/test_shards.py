"""Checkpoints in several files."""

import json

import pytest
import torch
from optim_cases import MEMBERS, SHARED, assert_bit_equal, ensemble, every_optimizer, run

from batched_optim import BatchedAdam, CheckpointError, load, save
from batched_optim import _checkpoint as checkpoint


def trained(kind, **options):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates, **options)
    return optimizer, run(optimizer, params, range(12), masked=True)


@every_optimizer
@pytest.mark.parametrize("shards", [1, 2, 3, MEMBERS])
def test_shards_hold_what_one_file_holds(kind, shards, tmp_path):
    optimizer, params = trained(kind)
    save(tmp_path / "one.safetensors", optimizer, params, {"epoch": 3})
    save(tmp_path / "many.safetensors", optimizer, params, {"epoch": 3}, shards=shards)

    one, many = load(tmp_path / "one.safetensors"), load(tmp_path / "many.safetensors")

    assert many.metadata == {"epoch": 3}
    assert_bit_equal(many.params, one.params)
    assert_bit_equal(many.optimizer.state_dict(), one.optimizer.state_dict())
    assert len(list(tmp_path.glob("many-*"))) == shards


def test_files_have_the_names_that_others_expect(tmp_path):
    save(tmp_path / "run.safetensors", *trained(BatchedAdam), shards=2)

    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "run-00001-of-00002.safetensors",
        "run-00002-of-00002.safetensors",
        "run.safetensors.index.json",
    ]


def test_each_shard_is_a_checkpoint_by_itself(tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run.safetensors", optimizer, params, shards=2)

    found = load(tmp_path / "run-00002-of-00002.safetensors")

    assert_bit_equal(found.optimizer.state_dict(), optimizer.select([2, 3, 4]).state_dict())
    assert torch.equal(found.params["bias"], params["bias"][2:])


def test_only_the_shards_that_hold_the_members_are_read(tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run.safetensors", optimizer, params, shards=MEMBERS)
    (tmp_path / "run-00001-of-00005.safetensors").unlink()

    found = load(tmp_path / "run.safetensors", members=[4, 2])

    assert torch.equal(found.params["bias"], params["bias"][[4, 2]])
    assert_bit_equal(found.optimizer.state_dict(), optimizer.select([4, 2]).state_dict())


def test_a_missing_shard_is_named(tmp_path):
    save(tmp_path / "run.safetensors", *trained(BatchedAdam), shards=2)
    (tmp_path / "run-00002-of-00002.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"run-00002-of-00002\.safetensors.*is missing"):
        load(tmp_path / "run.safetensors")


def test_a_shard_of_another_save_is_refused(tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run.safetensors", optimizer, params, shards=2)
    old = (tmp_path / "run-00001-of-00002.safetensors").read_bytes()
    save(tmp_path / "run.safetensors", optimizer, params, {"epoch": 2}, shards=2)
    (tmp_path / "run-00001-of-00002.safetensors").write_bytes(old)

    with pytest.raises(CheckpointError, match="not the file that the index speaks of"):
        load(tmp_path / "run.safetensors")


def test_a_changed_index_is_refused(tmp_path):
    save(tmp_path / "run.safetensors", *trained(BatchedAdam), shards=2)
    index = tmp_path / "run.safetensors.index.json"
    intact = index.read_text()

    index.write_text(intact.replace('"stop": 2', '"stop": 1'))
    with pytest.raises(CheckpointError, match="digest does not fit"):
        load(tmp_path / "run.safetensors")
    index.write_text(intact.replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(CheckpointError, match="format version is 9"):
        load(tmp_path / "run.safetensors")
    index.write_text(json.dumps([1, 2]))
    with pytest.raises(CheckpointError, match="damaged or no index"):
        load(tmp_path / "run.safetensors")


@pytest.mark.parametrize("first", [None, 2, 3])
@pytest.mark.parametrize("second", [None, 2, 3])
def test_a_save_replaces_an_earlier_one_of_the_other_kind(first, second, tmp_path):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run.safetensors", optimizer, params, {"number": 1}, shards=first)

    save(tmp_path / "run.safetensors", optimizer, params, {"number": 2}, shards=second)

    assert load(tmp_path / "run.safetensors").metadata == {"number": 2}
    assert len(list(tmp_path.iterdir())) == (1 if second is None else second + 1)


@pytest.mark.parametrize(
    ("moment", "calls"),
    [
        ("write_shard", 0),
        ("write_shard", 2),
        ("commit_shards", 0),
        ("publish_shard", 0),
        ("publish_shard", 1),
        ("publish_shard", 2),
        ("remove_leftovers", 0),
    ],
)
def test_a_writer_stopped_between_any_two_files_leaves_the_old_or_the_new(moment, calls, tmp_path, monkeypatch):
    optimizer, params = trained(BatchedAdam)
    save(tmp_path / "run.safetensors", optimizer, params, {"number": 1}, shards=3)
    original, made = getattr(checkpoint, moment), []

    def stop(*arguments):
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(1)
        return original(*arguments)

    monkeypatch.setattr(checkpoint, moment, stop)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "run.safetensors", optimizer, params, {"number": 2}, shards=3)

    found = load(tmp_path / "run.safetensors")

    assert found.metadata == {"number": 1 if moment in {"write_shard", "commit_shards"} else 2}
    assert_bit_equal(found.optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("shards", [0, MEMBERS + 1, 2.0, True])
def test_a_wrong_number_of_shards_is_refused(shards, tmp_path):
    with pytest.raises(ValueError, match="`shards` must be an int from 1 to the 5 members"):
        save(tmp_path / "run", *trained(BatchedAdam), shards=shards)
