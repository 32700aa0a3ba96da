"""The handwritten digits of scikit-learn, as images and as sequences.

The 1,797 scans of 8 x 8 pixels ship inside scikit-learn, so nothing is downloaded.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

TEST_SIZE = 360


@dataclass(frozen=True)
class Digits:
    """Inputs and labels of the train and the test half; the last axes of the inputs are up to the reader."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def images() -> Digits:
    """Return images of shape (samples, 8, 8) with values in [0, 1], split with the same class shares."""
    raw = load_digits()
    scaled = (raw.images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        scaled, raw.target, test_size=TEST_SIZE, random_state=0, stratify=raw.target
    )
    return Digits(train_x, train_y, test_x, test_y)


def sequences(steps: int) -> Digits:
    """Return the images read in `steps` pieces: 8 gives rows, 64 gives pixels; shape (steps, samples, inputs)."""
    digits = images()

    def read(x: np.ndarray) -> np.ndarray:
        return np.moveaxis(x.reshape(len(x), steps, 64 // steps), 0, 1)

    return Digits(read(digits.train_x), digits.train_y, read(digits.test_x), digits.test_y)
