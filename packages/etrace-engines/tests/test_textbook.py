"""D-RTRL, pp-prop and e-prop for a leaky tanh network, written as in a textbook: loops over the paper's equations."""

import jax.numpy as jnp
import pytest
from engine_models import UNITS, call_gradients, data, make, sequence_gradient
from engine_oracles import relative_error

import etrace_config


def leaky_steps(params, xs):
    """Yield carrier z, derivative psi of the unit, and h of every step of one sample."""
    h = jnp.zeros(UNITS, xs.dtype)
    for x in xs:
        z = jnp.concatenate([x, h])
        active = jnp.tanh(z @ params["weight"] + params["bias"])
        h = 0.7 * h + 0.3 * active
        yield z, 0.3 * (1 - active**2), h


def d_rtrl(params, xs, targets, kappa=0.0):
    """e = 0.7 e + z psi, its low-pass ebar = kappa ebar + e, and dL/dw = sum of L ebar."""
    e, low = jnp.zeros_like(params["weight"]), jnp.zeros_like(params["weight"])
    e_bias, low_bias = jnp.zeros_like(params["bias"]), jnp.zeros_like(params["bias"])
    total, total_bias = e, e_bias
    for (z, psi, h), target in zip(leaky_steps(params, xs), targets, strict=True):
        e, e_bias = 0.7 * e + jnp.outer(z, psi), 0.7 * e_bias + psi
        low, low_bias = kappa * low + e, kappa * low_bias + e_bias
        signal = 2 * (h - target)
        total, total_bias = total + signal * low, total_bias + signal * low_bias
    return {"weight": total, "bias": total_bias}


def pp_prop(params, xs, targets, decay=0.9):
    """Input factor a z + z, output factor a 0.7 f + (1 - a) psi, corrected by 1 - a^t."""
    z_trace, one_trace, f = jnp.zeros(params["weight"].shape[0], xs.dtype), 0.0, jnp.zeros(UNITS, xs.dtype)
    total, total_bias = jnp.zeros_like(params["weight"]), jnp.zeros_like(params["bias"])
    for t, ((z, psi, h), target) in enumerate(zip(leaky_steps(params, xs), targets, strict=True), 1):
        z_trace, one_trace, f = decay * z_trace + z, decay * one_trace + 1, decay * 0.7 * f + (1 - decay) * psi
        met = 2 * (h - target) * f / (1 - decay**t)
        total, total_bias = total + jnp.outer(z_trace, met), total_bias + one_trace * met
    return {"weight": total, "bias": total_bias}


TEXTBOOK = {
    "d-rtrl": (etrace_config.d_rtrl(), d_rtrl),
    "e-prop": (etrace_config.eprop(0.8, "symmetric"), lambda *args: d_rtrl(*args, kappa=0.8)),
    "pp-prop": (etrace_config.pp_prop(0.9), pp_prop),
}
every_rule = pytest.mark.parametrize("rule", TEXTBOOK)


def textbook(rule, learner, xs, targets):
    """Return the sum over samples of a textbook rule."""
    params = learner.param_states[("W", "weight")].value
    per_sample = [TEXTBOOK[rule][1](params, xs[:, b], targets[:, b]) for b in range(xs.shape[1])]
    return {("W", "weight"): {name: sum(g[name] for g in per_sample) for name in params}}


@every_rule
def test_calls_under_grad_give_the_textbook_gradient(rule):
    xs, targets = data()
    learner, _ = make("leaky", TEXTBOOK[rule][0], xs[0])

    steps = call_gradients(learner, xs, targets)

    found = {path: {name: g.sum(0) for name, g in named.items()} for path, named in steps.items()}
    expected = textbook(rule, learner, xs, targets)
    assert relative_error(found, expected) < 1e-6
    others = [textbook(other, learner, xs, targets) for other in TEXTBOOK if other != rule]
    assert min(relative_error(other, expected) for other in others) > 1e-2


@pytest.mark.slow
@every_rule
def test_sequence_driver_gives_the_textbook_gradient_in_double_precision(rule, double):
    xs, targets = data()
    learner, _ = make("leaky", TEXTBOOK[rule][0], xs[0])

    assert relative_error(sequence_gradient(learner, xs, targets), textbook(rule, learner, xs, targets)) < 1e-12
