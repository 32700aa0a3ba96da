"""Every rule against its equations on dense matrices, in double precision; single steps and windows."""

import pytest
from engine_models import cell_of, data, make, sequence_gradient
from engine_oracles import relative_error, rule_gradient

import etrace_config

DIAGONAL = etrace_config.d_rtrl()
COUPLED = etrace_config.ostl_recurrent()
FILTERED = etrace_config.eprop(0.8, "symmetric")
LEAK = DIAGONAL.replace(temporal_recursion="scalar_leak", decay=0.6)
NONE = DIAGONAL.replace(temporal_recursion="none")
FACTORS = etrace_config.pp_prop(0.9)
COUPLED_FACTORS = FACTORS.replace(recurrence_scope="coupled")

# cell, rule, a rule that it must differ from
TABLE = [
    ("leaky", DIAGONAL, NONE),
    ("lstm", DIAGONAL, COUPLED),
    ("gru", COUPLED, DIAGONAL),
    ("leaky", FILTERED, DIAGONAL),
    ("leaky", FACTORS, DIAGONAL),
    ("lstm", COUPLED, DIAGONAL),
    ("gru", DIAGONAL, COUPLED),
    ("mgu", DIAGONAL, COUPLED),
    ("urlstm", DIAGONAL, COUPLED),
    ("urlstm", COUPLED, DIAGONAL),
    ("tanh", COUPLED, DIAGONAL),
    ("gru", FACTORS, DIAGONAL),
    ("lstm", FACTORS, COUPLED_FACTORS),
    ("lstm", COUPLED_FACTORS, FACTORS),
    ("lstm", FILTERED, DIAGONAL),
    ("lstm", LEAK, DIAGONAL),
    ("lstm", NONE, DIAGONAL),
    ("leaky", LEAK, DIAGONAL),
]


SLOW = pytest.mark.slow


def rows(quick_ones):
    """Return the table as parameters; rows outside `quick_ones` are slow."""
    return [
        pytest.param(
            *row,
            id=f"{row[0]}-{row[1].describe()}",
            marks=[] if i in quick_ones else [SLOW],
        )
        for i, row in enumerate(TABLE)
    ]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "rule", "control"), rows(quick_ones=(0, 1, 3, 4, 10)))
def test_single_steps_follow_the_equations(name, rule, control):
    xs, targets = data()
    learner, _ = make(name, rule, xs[0])

    found = sequence_gradient(learner, xs, targets)

    learner.reset_state()
    cell = cell_of(name, learner)
    expected = rule_gradient(*cell[:2], rule, cell[2], xs, targets)
    assert relative_error(found, expected) < 1e-12
    assert relative_error(rule_gradient(*cell[:2], control, cell[2], xs, targets), expected) > 1e-3


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("window", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize(("name", "rule", "control"), rows(quick_ones=(0, 4)))
def test_windows_follow_the_equations(name, rule, control, window):
    xs, targets = data()
    learner, _ = make(name, rule, xs[0], vjp_method="multi-step")

    found = sequence_gradient(learner, xs, targets, window=window)

    learner.reset_state()
    cell = cell_of(name, learner)
    expected = rule_gradient(*cell[:2], rule, cell[2], xs, targets, window=window)
    assert relative_error(found, expected) < 1e-12
    assert relative_error(rule_gradient(*cell[:2], control, cell[2], xs, targets, window=window), expected) > 1e-4
