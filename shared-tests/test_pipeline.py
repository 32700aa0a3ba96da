"""The packages together: JAX gradients of an ensemble, through DLPack, stepped by torch, saved and resumed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import batched_optim
from harness import bridge, pipeline
from harness.devices import tolerance
from harness.oracles import relative_error, torch_loop

pytestmark = pytest.mark.usefixtures("double")
KINDS = {"sgd": batched_optim.BatchedSGD, "adam": batched_optim.BatchedAdam, "lbfgs": batched_optim.BatchedLBFGS}
OPTIONS = {"sgd": {"momentum": 0.9, "nesterov": True}}  # alike for torch
STEPS = 4


@pytest.fixture(scope="module")
def ensemble():
    """Compile the ensemble's gradient once."""
    import brainstate

    with jax.enable_x64(True), brainstate.environ.context(precision=64):
        yield pipeline.Pipeline()


def start(ensemble, kind):
    """Return an optimizer with a rate per member, and the members' parameters as tensors."""
    params = {name: tensor.clone() for name, tensor in bridge.to_torch(ensemble.start).items()}
    return KINDS[kind](params, [], lr=pipeline.RATES, **OPTIONS.get(kind, {})), params


def test_bridge_shares_memory_in_both_directions():
    array = jnp.arange(6.0).reshape(2, 3)

    tensor = bridge.to_torch({"a": array})["['a']"]

    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    assert bridge.to_jax({"['a']": tensor}, {"a": array})["a"].unsafe_buffer_pointer() == tensor.data_ptr()
    assert tensor.clone().data_ptr() != array.unsafe_buffer_pointer()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_members_step_as_by_optimizers_of_their_own(kind, ensemble):
    optimizer, params = start(ensemble, kind)

    found, _, gradients = ensemble.run(optimizer, params, ensemble.unfitted, STEPS)

    loop = lambda rates: _numpy(torch_loop(kind, params, rates, gradients, **OPTIONS.get(kind, {})))
    assert relative_error(_numpy(found), loop(pipeline.RATES)) < tolerance("cpu", "float64")
    assert relative_error(_numpy(found), loop(pipeline.RATES.flip(0))) > 1e-3


def test_optax_in_place_of_torch_gives_the_same_parameters(ensemble):
    optimizer, params = start(ensemble, "adam")
    found, *_ = ensemble.run(optimizer, params, ensemble.unfitted, STEPS)
    rates = jnp.asarray(pipeline.RATES.numpy())
    transform = optax.scale_by_adam()
    values, fitted, state = ensemble.start, ensemble.unfitted, transform.init(ensemble.start)

    for _ in range(STEPS):
        gradients, fitted = ensemble.gradient(values, fitted)
        updates, state = transform.update(gradients, state)
        values = jax.tree.map(lambda v, u: v - rates.reshape(-1, *[1] * (v.ndim - 1)) * u, values, updates)

    assert relative_error(_numpy(found), _numpy(bridge.to_torch(values))) < 1e-6


def test_synthetic_gradients_reach_the_plain_parameters_only(ensemble):
    untrained, fitted = ensemble.gradient(ensemble.start, ensemble.unfitted)
    trained, _ = ensemble.gradient(ensemble.start, fitted)

    assert relative_error(trained[("w",)], untrained[("w",)]) < tolerance("cpu", "float64")
    assert relative_error(trained[("win",)], untrained[("win",)]) > 1e-3


@pytest.mark.parametrize(
    "kind", ["adam", pytest.param("sgd", marks=pytest.mark.slow), pytest.param("lbfgs", marks=pytest.mark.slow)]
)
def test_run_resumed_in_a_new_process_is_bit_identical(kind, ensemble, tmp_path):
    optimizer, params = start(ensemble, kind)
    params, fitted, _ = ensemble.run(optimizer, params, ensemble.unfitted, STEPS // 2)
    pipeline.save(tmp_path, "half", optimizer, params, fitted)
    params, fitted, _ = ensemble.run(optimizer, params, fitted, STEPS // 2)
    pipeline.save(tmp_path, "whole", optimizer, params, fitted)

    arguments = [str(tmp_path), str(STEPS // 2)]
    subprocess.run([sys.executable, pipeline.__file__, *arguments], check=True, capture_output=True, text=True)

    read = lambda name: [(tmp_path / f"{name}{part}.safetensors").read_bytes() for part in ("", "-fitted")]
    assert read("resumed") == read("whole")
    assert all(half != whole for half, whole in zip(read("half"), read("whole"), strict=True))


@pytest.mark.slow
def test_training_lowers_every_members_gradient(ensemble):
    optimizer, params = start(ensemble, "adam")

    *_, gradients = ensemble.run(optimizer, params, ensemble.unfitted, 60)

    norm = lambda step: torch.stack([g.flatten(1).square().sum(1) for g in step.values()]).sum(0)
    assert (norm(gradients[-1])[1:] < norm(gradients[0])[1:]).all()


def test_checkpoint_moves_between_devices(device, ensemble, tmp_path):
    optimizer, params = start(ensemble, "adam")
    params, *_ = ensemble.run(optimizer, params, ensemble.unfitted, 1)
    batched_optim.save(tmp_path / "half.safetensors", optimizer, params)

    loaded = batched_optim.load(tmp_path / "half.safetensors", map_location=device)

    assert {tensor.device.type for tensor in loaded.params.values()} == {device.type}
    assert all(torch.equal(loaded.params[name].cpu(), tensor) for name, tensor in params.items())


def _numpy(tensors):
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}
