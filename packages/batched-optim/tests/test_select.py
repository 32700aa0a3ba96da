"""Selecting, joining and resetting members."""

import copy
import pickle

import pytest
import torch
from optim_cases import BATCHED, MEMBERS, SHARED, assert_bit_equal, ensemble, every_optimizer, gradients, run

from batched_optim import BatchedAdam, BatchedSGD, concatenate


def trained(kind, **options):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates, **options)
    return optimizer, run(optimizer, params, range(12), masked=True)


def rows_of(params, members):
    return {name: p if name in SHARED else p[members] for name, p in params.items()}


@every_optimizer
@pytest.mark.parametrize(
    "members",
    [
        pytest.param([3, 0, 3], id="list"),
        pytest.param(slice(1, 4), id="slice"),
        pytest.param(2, id="int"),
        pytest.param(torch.tensor([4, 1]), id="tensor"),
        pytest.param(torch.tensor([True, False, False, True, True]), id="mask"),
        pytest.param([-1], id="from the end"),
    ],
)
def test_selected_members_go_on_as_they_would_have(kind, members):
    optimizer, params = trained(kind)
    params = {name: params[name] for name in params}
    rows = torch.arange(MEMBERS)[members].reshape(-1)
    chosen = optimizer.select(members)
    part = rows_of(params, rows)

    for step in range(12, 20):
        grads = gradients(params, step)
        # The shared parameters see other members, so only the batched ones can be compared.
        params = optimizer.step(params, grads)
        part = chosen.step(part, {name: g[rows] for name, g in grads.items()})

    for name in BATCHED:
        torch.testing.assert_close(part[name], params[name][rows], rtol=1e-9, atol=1e-9)


@every_optimizer
def test_select_copies_the_state_bit_for_bit_and_shares_no_memory(kind):
    optimizer, params = trained(kind)
    before = optimizer.state_dict()

    chosen = optimizer.select([3, 1])
    state = chosen.state_dict()
    run_on = rows_of(params, [3, 1])
    chosen.step(run_on, {name: g[[3, 1]] for name, g in gradients(params, 12).items()})

    for field, buffers in state.items():
        if isinstance(buffers, dict):
            expected = {name: b if name in SHARED else b[[3, 1]] for name, b in before[field].items()}
            assert_bit_equal(buffers, expected)
    assert_bit_equal(optimizer.state_dict(), before)


@every_optimizer
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles_go_on_alike_and_apart(kind, duplicate):
    optimizer, params = trained(kind)
    before = optimizer.state_dict()
    expected = optimizer.select(slice(None))

    other = duplicate(optimizer)

    assert_bit_equal(run(other, params, range(12, 20)), run(expected, params, range(12, 20)))
    assert_bit_equal(other.state_dict(), expected.state_dict())
    assert_bit_equal(optimizer.state_dict(), before)


@every_optimizer
@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[0], [1], [2], [3], [4]]])
def test_concatenate_is_the_inverse_of_select(kind, parts):
    optimizer, params = trained(kind)

    joined = concatenate([optimizer.select(part) for part in parts])

    assert_bit_equal(joined.state_dict(), optimizer.state_dict())
    assert_bit_equal(
        run(joined, params, range(12, 20), masked=True), run(optimizer, params, range(12, 20), masked=True)
    )


def test_ensembles_of_different_age_keep_their_own_step_counts():
    params = {"w": torch.ones(2, 3, dtype=torch.float64)}
    old, young = BatchedAdam(params, [], 0.1), BatchedAdam(params, [], 0.1)
    aged = params
    for _ in range(5):
        aged = old.step(aged, {"w": torch.sin(aged["w"])})
    joined = concatenate([old, young])
    both = {"w": torch.cat((aged["w"], params["w"]))}

    both = joined.step(both, {"w": torch.sin(both["w"])})

    aged, fresh = old.step(aged, {"w": torch.sin(aged["w"])}), young.step(params, {"w": torch.sin(params["w"])})
    torch.testing.assert_close(both["w"], torch.cat((aged["w"], fresh["w"])), rtol=1e-13, atol=1e-13)


def test_rates_and_hyper_parameters_that_differ_are_joined_by_member():
    params = {"w": torch.zeros(2)}

    joined = concatenate([BatchedSGD(params, [], 0.5, momentum=0.1), BatchedSGD(params, [], 0.25, momentum=0.2)])

    assert joined.lr.tolist() == [0.5, 0.5, 0.25, 0.25]
    assert joined.momentum.tolist() == [0.1, 0.1, 0.2, 0.2]
    assert joined.weight_decay == 0.0


@pytest.mark.parametrize(
    ("others", "error", "message"),
    [
        ([], ValueError, "`optimizers` is empty"),
        (["adam"], TypeError, r"`optimizers\[1\]` is a BatchedAdam, expected BatchedSGD"),
        (["wider"], ValueError, "is for other parameters"),
        (["clipped"], ValueError, "has clip_norm = 1.0, expected None"),
        (["stepped"], ValueError, "another state of the shared parameter 's'"),
    ],
)
def test_optimizers_that_do_not_go_together_are_refused(others, error, message):
    params, wide = {"w": torch.zeros(2), "s": torch.zeros(3)}, {"w": torch.zeros(2, 2), "s": torch.zeros(3)}
    known = {
        "adam": BatchedAdam(params, ["s"], 0.1),
        "wider": BatchedSGD(wide, ["s"], 0.1),
        "clipped": BatchedSGD(params, ["s"], 0.1, clip_norm=1.0),
        "stepped": BatchedSGD(params, ["s"], 0.1),
    }
    known["stepped"].step(params, {"w": torch.ones(2), "s": torch.ones(2, 3)})
    group = [BatchedSGD(params, ["s"], 0.1), *(known[name] for name in others)] if others else []

    with pytest.raises(error, match=message):
        concatenate(group)


@every_optimizer
def test_reset_members_begin_anew_and_others_do_not_notice(kind):
    optimizer, params = trained(kind)
    untouched = optimizer.select(slice(None))
    fresh = kind(params, SHARED, optimizer.lr)
    optimizer.reset([1, 4])
    mask = torch.ones(MEMBERS, dtype=torch.bool)

    for step in range(3):
        grads = gradients(params, step)
        found = optimizer.step(params, grads, mask)
        unreset, begun = untouched.step(params, grads, mask), fresh.step(params, grads, mask)

    for name in BATCHED:
        torch.testing.assert_close(found[name][[0, 2, 3]], unreset[name][[0, 2, 3]], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[name][[1, 4]], begun[name][[1, 4]], rtol=1e-12, atol=1e-12)
    assert torch.equal(found["shared"], unreset["shared"])


@every_optimizer
def test_reset_without_members_resets_all(kind):
    optimizer, params = trained(kind)
    optimizer.reset()

    assert_bit_equal(optimizer.state_dict(), kind(params, SHARED, optimizer.lr).state_dict())


@every_optimizer
@pytest.mark.parametrize("members", [[], torch.zeros(MEMBERS, dtype=torch.bool), slice(3, 3)])
def test_selecting_nobody_is_refused(kind, members):
    optimizer, _ = trained(kind)

    with pytest.raises(ValueError, match="`members` selects none"):
        optimizer.select(members)


@pytest.mark.parametrize("members", [[5], 7, [-6], torch.ones(4, dtype=torch.bool)])
def test_members_that_do_not_exist_are_refused(members):
    optimizer, _ = trained(BatchedSGD)

    with pytest.raises(IndexError, match="`members` must select among 5 members"):
        optimizer.select(members)
