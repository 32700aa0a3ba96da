"""Gradients beside braintrace's, on the same models, weights and inputs.

Where both compute the same rule they agree to 1e-5. The known differences are asserted as differences, in the stated
direction: parameters without a trace (zero there), states of one group that are coupled within a step (counted twice).
"""

import brainstate
import jax
import jax.numpy as jnp
import pytest

import etrace_engines

braintrace = pytest.importorskip("braintrace", reason="braintrace is installed by the session `peers` only")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

INPUTS, HIDDEN, BATCH, STEPS = 3, 5, 2, 8
RULES = {
    "D_RTRL": {},
    "pp_prop": {"decay_or_rank": 0.9},
    "OSTLRecurrent": {},
    "EProp": {"kappa_filter_decay": 0.5},
    "SnAp": {"n": 2},
}


class Net(brainstate.nn.Module):
    def __init__(self, cell: str) -> None:
        super().__init__()
        options = {"activation": "tanh"} if cell == "ValinaRNNCell" else {}
        self.cell = getattr(braintrace.nn, cell)(INPUTS, HIDDEN, **options)
        self.readout = braintrace.nn.Linear(HIDDEN, 2)

    def update(self, x):
        return self.readout(self.cell(x))


def gradients(model, library, rule, options):
    xs = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUTS))
    learner = library.compile(model, getattr(library, rule), xs[0], batch_size=BATCH, **options)
    return dict(learner.etrace_grad(xs, step_fn=lambda x: (learner(x) ** 2).mean()))


def gap(a, b):
    return max(
        float(jnp.linalg.norm(u - v) / jnp.linalg.norm(u))
        for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def leaves(tree):
    return tree["weight"] if isinstance(tree, dict) else tree


@pytest.mark.parametrize("rule", RULES)
def test_same_rule_gives_the_same_gradient_of_a_tanh_network(rule):
    model = Net("ValinaRNNCell")

    ours, theirs = (gradients(model, library, rule, RULES[rule]) for library in (etrace_engines, braintrace))

    assert gap(leaves(ours["cell", "W", "weight"]), leaves(theirs["cell", "W", "weight"])) < 1e-5


@pytest.mark.parametrize(("cell", "weights"), [("GRUCell", ("Wz", "Wh")), ("CFNCell", ("Wf", "Wi", "Wh"))])
def test_d_rtrl_gives_the_same_gradient_of_gated_networks(cell, weights):
    model = Net(cell)

    ours, theirs = (gradients(model, library, "D_RTRL", {}) for library in (etrace_engines, braintrace))

    for weight in weights:
        assert gap(ours["cell", weight, "weight"], theirs["cell", weight, "weight"]) < 1e-5


def test_rules_differ_from_each_other():
    model = Net("ValinaRNNCell")

    ours = gradients(model, etrace_engines, "D_RTRL", {})
    other = gradients(model, braintrace, "pp_prop", {"decay_or_rank": 0.9})

    assert gap(leaves(ours["cell", "W", "weight"]), leaves(other["cell", "W", "weight"])) > 1e-2


def test_parameters_without_a_trace_get_their_gradient_here_and_zero_there():
    model = Net("GRUCell")

    ours, theirs = (gradients(model, library, "D_RTRL", {}) for library in (etrace_engines, braintrace))

    for path in [("readout", "weight"), ("cell", "Wr", "weight")]:
        assert all(bool(jnp.any(v != 0)) for v in jax.tree.leaves(ours[path]))
        assert all(bool(jnp.all(v == 0)) for v in jax.tree.leaves(theirs[path]))


def test_coupling_within_a_step_counts_once_here_and_twice_there():
    model = Net("LSTMCell")

    ours, theirs = (gradients(model, library, "D_RTRL", {}) for library in (etrace_engines, braintrace))

    for weight in ("Wi", "Wf", "Wg"):
        assert (
            gap(jax.tree.map(lambda g: 2 * g, ours["cell", weight, "weight"]), theirs["cell", weight, "weight"]) < 1e-5
        )
