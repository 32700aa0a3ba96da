"""Clipping: by value, then by norm, exactly."""

import pytest
import torch
from optim_cases import SHARED, assert_bit_equal, ensemble, every_optimizer, gradients

from batched_optim import BatchedSGD


def optimizer(**options):
    return BatchedSGD({"w": torch.zeros(2, 2)}, [], lr=1.0, momentum=0.0, **options)


def test_without_limits_the_gradient_itself_is_returned():
    g = torch.randn(2, 2)

    assert optimizer().gradient_clipping(g) is g


def test_value_comes_before_norm():
    g = torch.tensor([[30.0, 4.0], [0.0, 0.0]])

    clipped = optimizer(clip_value=3.0, clip_norm=1.0).gradient_clipping(g)

    torch.testing.assert_close(clipped[0], torch.tensor([3.0, 3.0]) / 18**0.5)
    assert clipped[1].tolist() == [0.0, 0.0]


def test_a_norm_equal_to_the_limit_is_untouched():
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])

    assert torch.equal(optimizer(clip_norm=5.0).gradient_clipping(g), g)


def test_a_norm_just_above_the_limit_becomes_the_limit():
    g = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * (1 + 1e-9)

    norm = optimizer(clip_norm=5.0).gradient_clipping(g).norm().item()

    assert norm == pytest.approx(5.0, rel=1e-15)


def test_members_with_one_number_are_clipped_by_magnitude():
    g = torch.tensor([3.0, -0.5])

    assert optimizer(clip_norm=1.0).gradient_clipping(g).tolist() == [1.0, -0.5]


def test_one_bad_member_does_not_change_the_clipping_of_others():
    g = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [3.0, 4.0]])

    assert optimizer(clip_norm=1.0).gradient_clipping(g)[2].tolist() == pytest.approx([0.6, 0.8])


@every_optimizer
def test_member_scope_limits_the_norm_over_all_tensors(kind):
    params, rates = ensemble()
    limit = 0.7
    grads = gradients(params, 0)
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = (limit / norms).clamp(max=1.0)
    assert scale.min() < 1.0
    by_hand = {name: g * scale.reshape(-1, *[1] * (g.ndim - 1)) for name, g in grads.items()}

    found = kind(params, SHARED, rates, clip_norm=limit, clip_scope="member").step(params, grads)

    expected = kind(params, SHARED, rates).step(params, by_hand)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


@every_optimizer
def test_rows_of_shared_gradients_are_clipped_before_they_are_averaged(kind):
    params, rates = ensemble()
    grads = gradients(params, 0)
    by_hand = {name: g.clamp(-0.1, 0.1) for name, g in grads.items()}

    found = kind(params, SHARED, rates, clip_value=0.1).step(params, grads)

    assert_bit_equal(found, kind(params, SHARED, rates).step(params, by_hand))


def test_weight_decay_is_clipped_with_the_gradient():
    params = {"w": torch.tensor([[100.0]])}
    sgd = BatchedSGD(params, [], lr=1.0, momentum=0.0, weight_decay=0.5, clip_value=1.0)

    assert sgd.step(params, {"w": torch.tensor([[0.0]])})["w"].item() == 99.0
