"""Cutting a sequence into windows."""

import numpy as np
import pytest

from dni_synth._sequence import live_boundaries


@pytest.mark.parametrize(
    ("weights", "live"),
    [
        ([[1, 1], [1, 1], [1, 1]], [1, 1, 0]),
        ([[0, 0], [0, 0], [0, 1]], [1, 1, 0]),
        ([[1, 0], [0, 0], [0.5, 0]], [1, 1, 0]),
        ([[1, 1], [0, 1], [0, 0]], [1, 0, 0]),
        ([[1, 1], [0, 0], [0, 0]], [0, 0, 0]),
    ],
)
def test_a_boundary_is_live_if_any_later_step_has_a_weight(weights, live):
    found = live_boundaries(None, np.asarray(weights, float), ())

    np.testing.assert_array_equal(found, live)


def test_done_takes_the_place_of_the_weights():
    found = live_boundaries([False, True, False], np.ones((3, 2)), (2,))

    np.testing.assert_array_equal(found, [[1, 1], [0, 0], [1, 1]])
