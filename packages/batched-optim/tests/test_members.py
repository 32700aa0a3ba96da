"""What holds for every optimizer about inputs, members, shared parameters and masks."""

import gc
import weakref

import pytest
import torch
from optim_cases import (
    BATCHED,
    MEMBERS,
    SHARED,
    assert_bit_equal,
    ensemble,
    every_optimizer,
    gradients,
    mask_of,
    run,
)
from torch.func import grad_and_value, vmap

every_mode = pytest.mark.parametrize("inactive", ["advance", "freeze"])


def only(found, names):
    return {name: found[name] for name in names}


@every_optimizer
def test_arguments_are_not_changed(kind):
    params, rates = ensemble()
    grads = gradients(params, 0)
    before = {name: p.clone() for name, p in params.items()}, {name: g.clone() for name, g in grads.items()}

    kind(params, SHARED, rates).step(params, grads, mask_of(0))

    assert_bit_equal(params, before[0])
    assert_bit_equal(grads, before[1])


@every_optimizer
def test_results_share_no_memory_with_arguments_or_buffers(kind):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates)
    first = optimizer.step(params, gradients(params, 0), torch.zeros(MEMBERS, dtype=torch.bool))
    second = optimizer.step(first, gradients(first, 1))
    untouched = {name: p.clone() for name, p in second.items()}

    for tensor in (*params.values(), *first.values()):
        tensor.fill_(7.0)
    optimizer.step(first, gradients(first, 2))

    assert_bit_equal(second, untouched)


@every_optimizer
def test_key_order_of_the_parameters_is_kept_and_does_not_matter(kind):
    params, rates = ensemble()
    optimizer, other = kind(params, SHARED, rates), kind(params, SHARED, rates)
    shuffled = dict(reversed(params.items()))

    for step in range(15):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        shuffled = other.step(shuffled, dict(sorted(grads.items())))

    assert list(shuffled) == list(reversed(params))
    assert_bit_equal(params, {name: shuffled[name] for name in params})


def transposed(tensor):
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim > 1 else tensor


def strided(tensor):
    return torch.stack((tensor, tensor), -1)[..., 0]


@every_optimizer
@pytest.mark.parametrize("form", [transposed, strided])
def test_memory_layout_does_not_matter(kind, form):
    params, rates = ensemble()
    optimizer, other = kind(params, SHARED, rates), kind(params, SHARED, rates)
    formed = params

    for step in range(12):
        grads = gradients(params, step)
        params = optimizer.step(params, grads)
        formed = other.step({name: form(p) for name, p in formed.items()}, {name: form(g) for name, g in grads.items()})

    for name, tensor in params.items():
        torch.testing.assert_close(formed[name], tensor, rtol=1e-12, atol=1e-12)


@every_optimizer
def test_expanded_parameters_and_gradients_are_accepted(kind):
    row = torch.tensor([1.0, -2.0], dtype=torch.float64)
    params = {"w": row.expand(3, 2)}
    optimizer, other = kind(params, [], 0.1), kind({"w": params["w"].clone()}, [], 0.1)

    found = optimizer.step(params, {"w": row.expand(3, 2)})
    expected = other.step({"w": params["w"].clone()}, {"w": row.repeat(3, 1)})

    assert_bit_equal(found, expected)


@every_optimizer
@pytest.mark.parametrize("shape", [(4, 0), (4, 3, 0)])
def test_an_empty_tensor_is_passed_through(kind, shape):
    params = {"empty": torch.zeros(shape), "w": torch.ones(4, 2), "nothing": torch.zeros(0)}
    optimizer = kind(params, ["nothing"], 0.1, clip_norm=1.0, clip_scope="member")
    lone = kind({"w": params["w"]}, [], 0.1, clip_norm=1.0, clip_scope="member")

    new = optimizer.step(params, {"empty": torch.zeros(shape), "w": torch.ones(4, 2), "nothing": torch.zeros(4, 0)})

    assert new["empty"].shape == shape
    assert new["nothing"].shape == (0,)
    assert_bit_equal({"w": new["w"]}, lone.step({"w": params["w"]}, {"w": torch.ones(4, 2)}))


@every_optimizer
def test_gradients_come_straight_from_vmap(kind):
    def loss(member, x):
        return ((x @ member["weight"] + member["offset"]) ** 2).mean()

    params = {"weight": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), "offset": torch.zeros(())}
    optimizer = kind(params, ["offset"], 0.1)
    differentiate = vmap(grad_and_value(loss), in_dims=({"weight": 0, "offset": None}, None))
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(1))

    losses = []
    for _ in range(60):
        grads, values = differentiate(params, x)
        params = optimizer.step(params, grads)
        losses.append(values)

    assert torch.all(losses[-1] < 0.1 * losses[0])


@every_optimizer
def test_no_graph_grows_when_parameters_and_gradients_require_grad(kind):
    params = {"w": torch.nn.Parameter(torch.ones(3, 2)), "s": torch.nn.Parameter(torch.ones(2))}
    optimizer = kind(params, ["s"], torch.full((3,), 1e-3, requires_grad=True))
    references = []

    for step in range(1000):
        grads = {"w": params["w"] * 2.0, "s": params["s"].expand(3, 2) * 2.0}
        params = optimizer.step(params, grads)
        assert not any(tensor.requires_grad for tensor in params.values())
        params = {name: torch.nn.Parameter(tensor) for name, tensor in params.items()}
        if step % 100 == 0:
            references.append(weakref.ref(params["w"]))

    gc.collect()
    assert not any(reference() is not None for reference in references)
    leaves = [t for named in optimizer.state_dict().values() if isinstance(named, dict) for t in named.values()]
    assert not any(tensor.requires_grad for tensor in leaves)


@every_optimizer
@every_mode
def test_inactive_members_keep_their_parameters_bit_for_bit(kind, inactive):
    params, rates = ensemble()
    params["bias"][1] = -0.0
    options = {"weight_decay": 0.1} if kind.__name__ == "BatchedSGD" else {}
    optimizer = kind(params, SHARED, rates, inactive=inactive, **options)
    params = run(optimizer, params, range(3))

    for step in range(3, 20):
        mask = mask_of(step)
        new = optimizer.step(params, gradients(params, step), mask)
        assert_bit_equal({name: new[name][~mask] for name in BATCHED}, {name: params[name][~mask] for name in BATCHED})
        assert torch.all((new["weight"] != params["weight"]).flatten(1).any(1)[mask])
        params = new


@every_optimizer
@every_mode
def test_a_step_without_active_members_is_none_for_shared_parameters(kind, inactive):
    """They stay as they are, and later steps do not know that there was one."""
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates, inactive=inactive)
    params = run(optimizer, params, range(5))
    other = optimizer.select(slice(None))

    new = optimizer.step(params, gradients(params, 5), torch.zeros(MEMBERS, dtype=torch.bool))

    assert_bit_equal(only(new, SHARED), only(params, SHARED))
    for step in range(6, 10):
        grads = gradients(params, step)
        new, params = optimizer.step(new, grads), other.step(params, grads)
    assert_bit_equal(only(new, SHARED), only(params, SHARED))


@every_optimizer
def test_buffers_of_inactive_members_advance_by_default_and_freeze_on_request(kind):
    params, rates = ensemble()
    mask = torch.tensor([True, False, True, True, True])
    moved = {}
    for inactive in ("advance", "freeze"):
        optimizer = kind(params, SHARED, rates, inactive=inactive)
        first = run(optimizer, params, range(3))
        before = optimizer.state_dict()
        optimizer.step(first, gradients(first, 3), mask)
        after = optimizer.state_dict()
        moved[inactive] = any(
            not torch.equal(after[field]["weight"][1], buffers["weight"][1])
            for field, buffers in before.items()
            if isinstance(buffers, dict) and field != "counts"
        )

    assert moved == {"advance": True, "freeze": False}


@every_optimizer
def test_frozen_members_equal_an_ensemble_without_the_pause(kind):
    """Every member sits out some steps; each ends where a run of its own, without pauses, ends."""
    params, rates = ensemble()
    params = only(params, BATCHED)
    optimizer = kind(params, [], rates, inactive="freeze")
    alone = [kind({name: p[i : i + 1] for name, p in params.items()}, [], rates[i : i + 1]) for i in range(MEMBERS)]
    own = [{name: p[i : i + 1] for name, p in params.items()} for i in range(MEMBERS)]

    for step in range(30):
        grads, mask = gradients(params, step), mask_of(step)
        params = optimizer.step(params, grads, mask)
        for i in mask.nonzero()[:, 0].tolist():
            own[i] = alone[i].step(own[i], {name: g[i : i + 1] for name, g in grads.items()})

    for i, expected in enumerate(own):
        for name, tensor in expected.items():
            torch.testing.assert_close(params[name][i : i + 1], tensor, rtol=1e-9, atol=1e-9)


@every_optimizer
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("masked", [False, True])
@every_mode
def test_a_member_with_a_non_finite_gradient_never_touches_the_others(kind, bad, masked, inactive):
    params, rates = ensemble()
    params = only(params, BATCHED)
    others = torch.tensor([True, True, False, True, True])
    clean, hit = kind(params, [], rates, inactive=inactive), kind(params, [], rates, inactive=inactive)
    expected = found = params

    for step in range(20):
        mask = mask_of(step) & (others if masked else True) if masked else None
        expected = clean.step(expected, gradients(expected, step), mask)
        grads = gradients(found, step)
        if step in {4, 5}:
            for gradient in grads.values():
                gradient[2] = bad
        found = hit.step(found, grads, mask)

    assert_bit_equal({name: p[others] for name, p in found.items()}, {name: p[others] for name, p in expected.items()})
    if masked:
        assert_bit_equal(found, expected)


@every_optimizer
def test_a_masked_non_finite_gradient_does_not_reach_shared_parameters(kind):
    params, rates = ensemble()
    mask = torch.tensor([True, True, False, True, True])
    clean, hit = kind(params, SHARED, rates), kind(params, SHARED, rates)
    grads = gradients(params, 0)
    expected = clean.step(params, grads, mask)
    for name in SHARED:
        grads[name][2] = torch.nan

    found = hit.step(params, grads, mask)

    assert_bit_equal(only(found, SHARED), only(expected, SHARED))


@every_optimizer
def test_skip_leaves_non_finite_members_out_of_the_average_and_counts_them(kind):
    params, rates = ensemble()
    mask = torch.tensor([True, True, False, True, True])
    clean, hit = kind(params, SHARED, rates), kind(params, SHARED, rates, nonfinite="skip")
    grads = gradients(params, 0)
    expected = clean.step(params, grads, mask)
    for name in SHARED:
        grads[name][2] = torch.inf

    found = hit.step(params, grads)

    assert_bit_equal(only(found, SHARED), only(expected, SHARED))
    assert hit.nonfinite_counts.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("kind", [pytest.param("sgd"), pytest.param("adam")])
def test_propagate_lets_a_non_finite_gradient_reach_shared_parameters(kind):
    from optim_cases import OPTIMIZERS

    params, rates = ensemble()
    grads = gradients(params, 0)
    grads["shared"][2] = torch.nan

    new = OPTIMIZERS[kind](params, SHARED, rates).step(params, grads)

    assert torch.isnan(new["shared"]).all()
    assert torch.isfinite(new["scalar"])


@every_optimizer
@pytest.mark.parametrize("form", ["float", "()", "(1,)", "(B,)", "(B, 1)"])
def test_a_rate_has_many_forms(kind, form):
    params, _ = ensemble()
    rate = 0.01
    forms = {
        "float": rate,
        "()": torch.tensor(rate, dtype=torch.float64),
        "(1,)": torch.tensor([rate], dtype=torch.float64),
        "(B,)": torch.full((MEMBERS,), rate, dtype=torch.float64),
        "(B, 1)": torch.full((MEMBERS, 1), rate, dtype=torch.float64),
    }
    expected = run(kind(params, SHARED, rate), params, range(12))

    found = run(kind(params, SHARED, forms[form]), params, range(12))

    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


@every_optimizer
def test_the_rate_is_owned_and_can_be_assigned_or_edited(kind):
    params, rates = ensemble()
    given = rates.clone()
    optimizer = kind(params, SHARED, given)
    given.fill_(1e9)
    doubled = kind(params, SHARED, rates * 2)
    halves = kind(params, SHARED, 1.0)
    halves.lr = rates
    halves.lr.mul_(2)

    assert torch.equal(optimizer.lr, rates)
    grads = gradients(params, 0)
    assert_bit_equal(halves.step(params, grads), doubled.step(params, grads))


@every_optimizer
def test_a_rate_of_zero_moves_nothing(kind):
    params, _ = ensemble()

    new = kind(params, SHARED, 0.0).step(params, gradients(params, 0))

    assert_bit_equal(new, params)


@every_optimizer
def test_the_shared_rate_is_the_mean_of_active_rates_times_the_multiplier(kind):
    params, rates = ensemble()
    mask = torch.tensor([True, False, False, True, False])
    varied = kind(params, SHARED, rates, shared_param_lr_multiplier=0.25)
    uniform = kind(params, SHARED, rates[mask].mean().item() * 0.25)
    grads = gradients(params, 0)

    found, expected = varied.step(params, grads, mask), uniform.step(params, grads, mask)

    for name in SHARED:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-14, atol=0.0)
