"""What is refused, with which words, and that nothing has changed then."""

import pytest
import torch
from optim_cases import SHARED, assert_bit_equal, ensemble, every_optimizer, gradients, run

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD

PARAMS = {"w": torch.zeros(3, 2), "s": torch.zeros(2)}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BatchedSGD, {"lr": -0.1}, r"`lr` must lie in \[0.0, inf\), got -0.1"),
        (BatchedSGD, {"lr": float("nan")}, "`lr` must lie in"),
        (BatchedSGD, {"lr": torch.tensor([0.1, -0.1, 0.1])}, "`lr` must lie in"),
        (BatchedSGD, {"lr": torch.ones(2)}, r"one entry per member; got shape \(2,\)"),
        (BatchedSGD, {"momentum": 1.0}, r"`momentum` must lie in \[0.0, 1.0\), got 1.0"),
        (BatchedSGD, {"momentum": torch.ones(4) * 0.5}, "`momentum` must be a number or a tensor of shape"),
        (BatchedSGD, {"weight_decay": -1.0}, "`weight_decay` must lie in"),
        (BatchedSGD, {"clip_value": 0.0}, r"`clip_value` must lie in \(0.0, inf\], got 0.0"),
        (BatchedSGD, {"clip_norm": -1.0}, "`clip_norm` must lie in"),
        (BatchedSGD, {"shared_param_lr_multiplier": -1.0}, "`shared_param_lr_multiplier` must lie in"),
        (BatchedSGD, {"clip_scope": "all"}, "`clip_scope` must be one of 'tensor', 'member', got 'all'"),
        (BatchedSGD, {"inactive": "sleep"}, "`inactive` must be one of"),
        (BatchedSGD, {"nonfinite": "raise"}, "`nonfinite` must be one of"),
        (BatchedAdam, {"betas": (0.9, 1.0)}, r"`betas\[1\]` must lie in \[0.0, 1.0\), got 1.0"),
        (BatchedAdam, {"betas": 0.9}, "`betas` must be a pair"),
        (BatchedAdam, {"eps": -1e-8}, "`eps` must lie in"),
        (BatchedLBFGS, {"history_size": 0}, "`history_size` must be at least 1, got 0"),
        (BatchedLBFGS, {"max_step": 0.0}, "`max_step` must lie in"),
        (BatchedLBFGS, {"curvature_eps": -1e-8}, "`curvature_eps` must lie in"),
    ],
)
def test_a_constructor_names_argument_value_and_range(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(PARAMS, ["s"], **{"lr": 0.1, **options})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BatchedSGD, {"lr": "fast"}, "`lr` must be a number or a tensor, got str"),
        (BatchedSGD, {"lr": True}, "`lr` must be a number"),
        (BatchedSGD, {"lr": torch.ones(3, dtype=torch.complex64)}, "`lr` must be real"),
        (BatchedSGD, {"nesterov": 1}, "`nesterov` must be True or False"),
        (BatchedSGD, {"maximize": "yes"}, "`maximize` must be True or False"),
        (BatchedSGD, {"clip_norm": torch.ones(3)}, "`clip_norm` must be a number or None"),
        (BatchedSGD, {"colour": "red"}, "unexpected keyword argument 'colour'"),
        (BatchedLBFGS, {"history_size": 2.0}, "`history_size` must be an int"),
    ],
)
def test_a_constructor_refuses_wrong_types(kind, options, message):
    with pytest.raises(TypeError, match=message):
        kind(PARAMS, ["s"], **{"lr": 0.1, **options})


@every_optimizer
@pytest.mark.parametrize(
    ("params", "shared", "error", "message"),
    [
        ({"w": torch.zeros(3)}, "w", TypeError, r"got the string 'w'; write \['w'\]"),
        ({"w": torch.zeros(3)}, ["v"], ValueError, "names 'v', which `params` does not hold"),
        (
            {"w": torch.zeros(3), "v": torch.zeros(2)},
            [],
            ValueError,
            r"`params\['v'\]` has shape \(2,\), expected \(3, ",
        ),
        ({"w": torch.zeros(3), "v": torch.zeros(())}, [], ValueError, "name it in `shared_param_names`"),
        ({"w": torch.zeros(0, 2)}, [], ValueError, "has no members"),
        ({"w": torch.zeros(2)}, ["w"], ValueError, "holds no batched parameter.*step it by `torch.optim`"),
        ({}, [], ValueError, "holds no batched parameter"),
        ({"w": torch.zeros(3, dtype=torch.int64)}, [], TypeError, r"`params\['w'\]` has dtype torch.int64"),
        ({"w": torch.zeros(3), "n": torch.zeros(3, dtype=torch.bool)}, [], TypeError, r"`params\['n'\]`"),
        ({"w": torch.zeros(3, dtype=torch.complex64)}, [], TypeError, "real floating-point"),
        ({"w": [0.0]}, [], TypeError, r"`params\['w'\]` must be a tensor, got list"),
        ([torch.zeros(3)], [], TypeError, "`params` must map names to tensors"),
    ],
)
def test_parameters_that_make_no_ensemble_are_refused(kind, params, shared, error, message):
    with pytest.raises(error, match=message):
        kind(params, shared, 0.1)


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_(name, change):
    return lambda tensors: {**tensors, name: change(tensors[name])}


same = lambda tensors: tensors
BAD_STEPS = {
    "missing parameter": (without("bias"), same, None, KeyError, "`params` lacks 'bias'"),
    "missing gradient": (same, without("bias"), None, KeyError, "`grads` lacks 'bias'"),
    "unknown parameter": (lambda t: {**t, "x": t["bias"]}, same, None, KeyError, r"`params` holds \['x'\]"),
    "unknown gradient": (same, lambda t: {**t, "x": t["bias"]}, None, KeyError, r"`grads` holds \['x'\]"),
    "shape": (with_("bias", lambda t: t[:2]), same, None, ValueError, r"`params\['bias'\]` must have shape \(5,\)"),
    "gradient shape": (same, with_("bias", lambda t: t[:, None]), None, ValueError, r"got \(5, 1\)"),
    "unstacked shared": (same, with_("shared", lambda t: t[0]), None, ValueError, "stack the members' gradients"),
    "unstacked scalar": (same, with_("scalar", lambda t: t[0]), None, ValueError, "one row per member"),
    "dtype": (with_("bias", torch.Tensor.float), same, None, TypeError, "was made for torch.float64"),
    "integer gradient": (same, with_("bias", torch.Tensor.long), None, TypeError, r"`grads\['bias'\]` must be a float"),
    "no gradient": (same, with_("bias", lambda t: None), None, TypeError, "got NoneType"),
    "mask dtype": (same, same, torch.ones(5), TypeError, "`active_mask` must be a bool tensor, got torch.float32"),
    "mask type": (same, same, [True] * 5, TypeError, "`active_mask` must be a bool tensor, got list"),
    "mask shape": (same, same, torch.ones(4, dtype=torch.bool), ValueError, r"must have shape \(5,\)"),
}


@every_optimizer
@pytest.mark.parametrize(
    ("change_params", "change_grads", "mask", "error", "message"), BAD_STEPS.values(), ids=BAD_STEPS.keys()
)
def test_a_refused_step_changes_nothing(kind, change_params, change_grads, mask, error, message):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates)
    params = run(optimizer, params, range(3))
    before = optimizer.state_dict()
    grads = gradients(params, 3)

    with pytest.raises(error, match=message):
        optimizer.step(change_params(params), change_grads(grads), mask)

    assert_bit_equal(optimizer.state_dict(), before)


@every_optimizer
def test_a_bad_rate_is_refused_on_assignment(kind):
    optimizer = kind(PARAMS, ["s"], 0.1)

    with pytest.raises(ValueError, match="`lr` must lie in"):
        optimizer.lr = -1.0

    assert optimizer.lr.item() == 0.1


@every_optimizer
def test_a_state_that_does_not_fit_is_refused_with_all_misfits_and_changes_nothing(kind):
    params, rates = ensemble()
    optimizer = kind(params, SHARED, rates)
    run(optimizer, params, range(3))
    before = optimizer.state_dict()
    other = kind({name: p.float() for name, p in params.items() if name != "kernel"}, SHARED, 0.5).state_dict()
    del other["lr"]

    with pytest.raises(KeyError) as caught:
        optimizer.load_state_dict(other)

    message = str(caught.value)
    assert "field 'lr' is missing" in message
    assert "of 'kernel' is missing" in message
    assert "has dtype torch.float32, expected torch.float64" in message
    assert_bit_equal(optimizer.state_dict(), before)


@every_optimizer
def test_a_state_with_an_unknown_field_is_refused(kind):
    optimizer = kind(PARAMS, ["s"], 0.1)

    with pytest.raises(ValueError, match="field 'surprise' is unexpected"):
        optimizer.load_state_dict({**optimizer.state_dict(), "surprise": 1})
