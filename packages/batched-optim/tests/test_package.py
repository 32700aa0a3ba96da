"""The public table."""

import inspect
import re
from pathlib import Path

import pytest

import batched_optim


def test_the_public_table_is_sorted_and_complete():
    assert batched_optim.__all__ == sorted(batched_optim.__all__)
    public = {name for name in vars(batched_optim) if not name.startswith("_")}
    assert public | {"__version__"} == set(batched_optim.__all__)


@pytest.mark.parametrize("name", [n for n in batched_optim.__all__ if n not in {"__version__", "optimizers"}])
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(batched_optim, name)).splitlines()[0].endswith(".")


def test_modules_stay_short():
    for path in Path(batched_optim.__file__).parent.glob("*.py"):
        assert len(path.read_text().splitlines()) < 400, path.name


def test_asserts_never_validate():
    for path in Path(batched_optim.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*assert ", path.read_text(), re.M), path.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BaseOptimizer", "shared_param_names lr clip_value=None clip_norm=None shared_param_lr_multiplier=1.0"),
        (
            "BatchedSGD",
            "params shared_param_names lr momentum=0.9 weight_decay=0.0 nesterov=True clip_value=None clip_norm=None "
            "shared_param_lr_multiplier=1.0",
        ),
        (
            "BatchedAdam",
            "params shared_param_names lr betas=(0.9,0.999) eps=1e-08 clip_value=None clip_norm=None "
            "shared_param_lr_multiplier=1.0",
        ),
        (
            "BatchedLBFGS",
            "params shared_param_names lr history_size=10 clip_value=None clip_norm=None "
            "shared_param_lr_multiplier=1.0 max_step=1.0 curvature_eps=1e-08",
        ),
    ],
)
def test_constructors_have_the_specified_arguments(name, expected):
    parameters = inspect.signature(getattr(batched_optim, name)).parameters.values()
    found = [
        p.name if p.default is p.empty else f"{p.name}={p.default}".replace(" ", "")
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]

    assert found == expected.split()


def test_steps_have_the_specified_arguments():
    arguments = lambda kind: list(inspect.signature(kind.step).parameters)

    assert arguments(batched_optim.BatchedSGD) == ["self", "params", "grads", "active_mask"]
    assert arguments(batched_optim.BatchedLBFGS) == ["self", "params", "grads", "active_mask"]
    assert arguments(batched_optim.BatchedAdam) == ["self", "params", "grads", "active_mask", "b"]
