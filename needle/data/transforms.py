"""Random changes to images, so that a model sees each in many forms.

Images are arrays of shape (H, W, C). Random numbers come from needle's generator (see needle.rng);
a DataLoader gives every batch one of its own, so they do not depend on the number of workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import rng
from ..backend_ndarray.arguments import count, share

Array = np.ndarray[Any, Any]


class Transform:
    """Base of all transforms: define `__call__` (an image of shape (H, W, C) to another one)."""

    def __call__(self, x: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")


class RandomFlipHorizontal(Transform):
    """Left and right exchanged with probability `p`. ValueError unless p is in [0, 1]."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = share("RandomFlipHorizontal", "p", p)

    def __call__(self, img: Array) -> Array:
        flip = float(rng.uniform((), 0.0, 1.0)) < self.p
        return np.flip(img, axis=1) if flip else img


class RandomCrop(Transform):
    """The image moved by up to `padding` pixels along each of H and W, with zeros moving in.

    That is padding on all sides, and a crop of the old size. ValueError for a negative padding.
    """

    def __init__(self, padding: int = 3) -> None:
        self.padding = count("RandomCrop", "padding", padding, 0)

    def __call__(self, img: Array) -> Array:
        p = self.padding
        rows, columns = (int(n) for n in rng.integers((2,), -p, p + 1))
        widths = [(p, p), (p, p), *[(0, 0)] * (img.ndim - 2)]
        height, width = img.shape[:2]
        padded = np.pad(img, widths)
        return padded[p + rows : p + rows + height, p + columns : p + columns + width]
