"""The digits data set in the forms that models take, and a model's predictions on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import needle as ndl

FEATURES, CLASSES = 64, 10
SIDE = 8


class DigitImages(ndl.data.Dataset):
    """Items (x of shape (1, 8, 8), class); transforms get (8, 8, 1)."""

    def __init__(self, train: bool = True, transforms: Sequence[Any] | None = None) -> None:
        super().__init__(transforms)
        data = ndl.data.DigitsDataset(train=train)
        self.images = data.x.reshape(-1, SIDE, SIDE, 1)
        self.labels = data.y

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        image = self.apply_transforms(self.images[index])
        return np.moveaxis(image, -1, 0), self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Return (images of shape (N, 64) float32, labels of shape (N,)) of the fixed test split."""
    data = ndl.data.DigitsDataset(train=False)
    samples = [data[index] for index in range(len(data))]
    images = np.stack([np.asarray(image, np.float32).reshape(-1) for image, _ in samples])
    return images, np.array([int(label) for _, label in samples])


def predict(
    model: Callable[[Any], Any], images: np.ndarray, batch: int, device: Any = None
) -> np.ndarray:
    """Return the class of each image, computed in batches of `batch`; zeros pad the last one."""
    classes = []
    with ndl.no_grad():
        for start in range(0, len(images), batch):
            rows = images[start : start + batch]
            filling = np.zeros((batch - len(rows), *images.shape[1:]), images.dtype)
            x = np.concatenate([rows, filling])
            scores = model(ndl.Tensor(x, device=device, requires_grad=False))
            classes.append(scores.numpy()[: len(rows)].argmax(axis=1))
    return np.concatenate(classes)
