"""The base class can be subclassed by others."""

import pytest
import torch

from batched_optim import BaseOptimizer


class SignDescent(BaseOptimizer):
    def step(self, params, grads, active_mask=None):
        return {name: p - self.lr * torch.sign(self.gradient_clipping(grads[name])) for name, p in params.items()}

    def state_dict(self):
        return {"lr": self.lr}

    def load_state_dict(self, state_dict):
        self.lr = state_dict["lr"]


def test_a_subclass_of_one_s_own_has_settings_rate_and_clipping():
    optimizer = SignDescent(["s"], 0.5, clip_value=1.0)

    new = optimizer.step({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, -4.0])})

    assert new["w"].tolist() == [-0.5, 0.5]
    assert optimizer.shared_param_names == ("s",)
    assert optimizer.clip_norm is None
    assert optimizer.state_dict() == {"lr": 0.5}


def test_the_base_class_itself_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        BaseOptimizer([], 0.1)
