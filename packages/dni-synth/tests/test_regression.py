"""The error that a regression step descends."""

import jax.numpy as jnp
import numpy as np
import pytest

from dni_synth._fit.regression import squared_error
from dni_synth._window import Boundary


@pytest.mark.parametrize("unit", [1.0, 1e-3])
@pytest.mark.parametrize("live", [None, (1.0, 0.0, 1.0)], ids=["all", "one ended"])
def test_the_error_is_the_mean_square_in_the_groups_unit_over_those_that_go_on(unit, live):
    estimate, target = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

    boundary = Boundary(live=None if live is None else jnp.asarray(live))
    found = squared_error({"h": jnp.asarray(estimate)}, {"h": jnp.asarray(target)}, boundary, {"h": jnp.asarray(unit)})

    rows = slice(None) if live is None else [0, 2]
    assert float(found) == pytest.approx(np.mean(((estimate - target)[rows] / unit) ** 2), rel=1e-5)
