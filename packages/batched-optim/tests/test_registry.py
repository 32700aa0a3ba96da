"""Optimizers by name."""

import pytest
import torch
from optim_cases import OPTIMIZERS

from batched_optim import make_optimizer, optimizers

PARAMS = {"w": torch.zeros(3, 2), "s": torch.zeros(2)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {"momentum": 0.5, "clip_scope": "member"}),
        ("adam", {"betas": (0.5, 0.6), "eps": 1e-6}),
        ("lbfgs", {"history_size": 3, "joint_history": True, "maximize": True}),
    ],
)
def test_a_name_and_its_arguments_make_the_optimizer(name, options):
    optimizer = make_optimizer(name, PARAMS, ["s"], lr=0.1, **options)

    assert type(optimizer) is OPTIMIZERS[name] is optimizers[name]
    assert {key: getattr(optimizer, key) for key in options} == options


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("adm", {}, ValueError, "got 'adm'; did you mean 'adam'"),
        ("LBFGS", {}, ValueError, "did you mean 'lbfgs'"),
        ("newton", {}, ValueError, "must be one of 'sgd', 'adam', 'lbfgs', got 'newton'"),
        ("sgd", {"momentun": 0.9}, TypeError, "'sgd' takes no 'momentun'; did you mean 'momentum'"),
        ("adam", {"momentum": 0.9}, TypeError, "'adam' takes no 'momentum'"),
        ("lbfgs", {"history": 3}, TypeError, "did you mean 'history_size'"),
        ("sgd", {"options": {}}, TypeError, "takes no 'options'"),
    ],
)
def test_an_unknown_name_or_argument_proposes_the_nearest(name, options, error, message):
    with pytest.raises(error, match=message):
        make_optimizer(name, PARAMS, ["s"], lr=0.1, **options)


def test_the_mapping_cannot_be_changed():
    with pytest.raises(TypeError):
        optimizers["sgd"] = None
