"""Models that users bring, unmodified: the report says how each parameter is learned, and exact rules meet BPTT."""

import brainstate
import brainunit
import numpy as np
import pytest
from engine_models import BATCH, data, make, normal, sequence_gradient

from harness.devices import DISTINCT, tolerance
from harness.oracles import bptt, relative_error
from harness.zoo import EXACT, ZOO

# brainstate's event-driven layers call brainevent by names that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:brainevent:DeprecationWarning")
QUICK = ("alif",)
every_model = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]
)


@pytest.fixture(autouse=True)
def training():
    """Set the step of the models in physical time, and let dropout drop."""
    with brainstate.environ.context(dt=1.0 * brainunit.ms, fit=True):
        yield


def compiled(name, **options):
    """Compile a model of the zoo with its exact rule."""
    xs, _ = data()
    row = ZOO[name]
    learner, model = make(row.build, EXACT, xs[0], hidden_groups=row.hidden_groups, **options)
    return (
        learner,
        model,
        xs,
        normal(2, len(xs), BATCH, np.size(model.step(model.params, model.state, xs[0])[1]) // BATCH),
    )


@every_model
def test_report_says_what_is_traced(name):
    learner, *_ = compiled(name)

    treatments = {row.parameter: row.treatment for row in learner.report()}

    expected = {row: "in-step" if row.startswith(ZOO[name].in_step or ("-",)) else "traced" for row in treatments}
    assert treatments == expected
    assert len(treatments) >= len(learner.param_states)


@pytest.mark.usefixtures("double")
@every_model
def test_exact_rule_meets_bptt_step_by_step(name):
    learner, model, xs, targets = compiled(name)

    found = sequence_gradient(learner, xs, targets)

    expected = bptt(model, xs, targets)
    assert relative_error(found, expected) < 100 * tolerance("cpu", "float64")
    assert relative_error(bptt(model, xs, targets, window=1), expected) > DISTINCT


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@every_model
def test_windows_meet_bptt(name):
    learner, model, xs, targets = compiled(name, vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=3)

    assert relative_error(found, bptt(model, xs, targets)) < 100 * tolerance("cpu", "float64")
