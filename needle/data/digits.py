"""The handwritten digits that scikit-learn includes: 1797 grey images of 8 x 8 pixels."""

from __future__ import annotations

import numpy as np

from .dataset import NDArrayDataset

# One in five images of each class is a test image; the split is fixed.
_TEST_SHARE = 5
_SPLIT_SEED = 0


class DigitsDataset(NDArrayDataset):
    """Items (x, y): x is float32 (64,) in [0, 1], y an int32 class 0..9. With `train`, the dataset
    has the four fifths for training, otherwise the fifth for testing. The split is fixed and
    stratified.

    Raises ImportError if scikit-learn is not installed.
    """

    def __init__(self, train: bool = True) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ImportError(
                "DigitsDataset needs scikit-learn, which carries the data: pip install scikit-learn"
            ) from None
        pixels, labels = load_digits(return_X_y=True)
        rng = np.random.default_rng(_SPLIT_SEED)
        test = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            test[members[: len(members) // _TEST_SHARE]] = True
        chosen = ~test if train else test
        super().__init__((pixels[chosen] / 16).astype(np.float32), labels[chosen].astype(np.int32))

    @property
    def x(self) -> np.ndarray:
        """All images, (N, 64)."""
        return self.arrays[0]

    @property
    def y(self) -> np.ndarray:
        """All classes, (N,)."""
        return self.arrays[1]
