"""Random augmentation of images.

Images are arrays of shape (H, W, C). Random numbers come from needle's generator (see needle.rng).
A DataLoader uses a new generator for every batch, so the numbers do not depend on how many workers
it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import rng
from ..backend_ndarray.arguments import count, share

Array = np.ndarray[Any, Any]


class Transform:
    """Base class of transforms: define `__call__`, which maps an image (H, W, C) to a new image."""

    def __call__(self, x: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


class RandomFlipHorizontal(Transform):
    """Swap left and right with probability `p`. Raises ValueError unless p is in [0, 1]."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = share("RandomFlipHorizontal", "p", p)

    def __call__(self, img: Array) -> Array:
        flip = float(rng.uniform((), 0.0, 1.0)) < self.p
        return np.flip(img, axis=1) if flip else img


class RandomCrop(Transform):
    """Shift the image by up to `padding` pixels along H and W, and fill the gaps with zeros.

    This is the same as padding all sides and cropping to the old size. Raises ValueError for
    negative padding.
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
