"""The digits test set, and how well a model does on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import needle as ndl

FEATURES, CLASSES = 64, 10


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """(images of shape (N, 64) float32, labels of shape (N,)) of the fixed test split."""
    data = ndl.data.DigitsDataset(train=False)
    samples = [data[index] for index in range(len(data))]
    images = np.stack([np.asarray(image, np.float32).reshape(-1) for image, _ in samples])
    return images, np.array([int(label) for _, label in samples])


def predict(model: Callable[[Any], Any], images: np.ndarray, batch: int) -> np.ndarray:
    """The class of each image, in batches of exactly `batch`, the last one filled up with zeros."""
    classes = []
    with ndl.no_grad():
        for start in range(0, len(images), batch):
            rows = images[start : start + batch]
            filling = np.zeros((batch - len(rows), *images.shape[1:]), images.dtype)
            scores = model(ndl.Tensor(np.concatenate([rows, filling]), requires_grad=False))
            classes.append(scores.numpy()[: len(rows)].argmax(axis=1))
    return np.concatenate(classes)
