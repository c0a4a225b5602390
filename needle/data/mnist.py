"""MNIST, and other datasets in the idx format (http://yann.lecun.com/exdb/mnist/).

A file has a header and the values, which are bytes in these datasets. The header is big-endian: two
zero bytes, a code for the dtype, the number of axes, and the extent of each axis in 4 bytes. A file
may be gzipped.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import read_regular
from .dataset import Dataset, Transform

Array = np.ndarray[Any, Any]

_UBYTE = 8
_GZIP = b"\x1f\x8b"


class MNISTDataset(Dataset):
    """Items (x, y) from a file of images (image_filename) and a file of labels (label_filename).
    Both are in idx format, gzipped or not.

    x is float32 (H, W, 1) in [0, 1], to which the transforms are applied; y is the int32 class.
    Indexing with a slice or an array returns a batch. Raises FileNotFoundError for a missing file
    and ValueError for a malformed one.
    """

    def __init__(
        self,
        image_filename: str | os.PathLike[str],
        label_filename: str | os.PathLike[str],
        transforms: Sequence[Transform] | None = None,
    ) -> None:
        super().__init__(transforms)
        self.images = read_idx(image_filename, ndim=3)  # (N, H, W), uint8
        self.labels = read_idx(label_filename, ndim=1).astype(np.int32)
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"{image_filename} has {len(self.images)} images, but {label_filename} has "
                f"{len(self.labels)} labels"
            )

    def __getitem__(self, index: Any) -> tuple[Array, Array]:
        images, labels = self.images[index], self.labels[index]
        x = (images[..., None] / np.float32(255)).astype(np.float32)
        if self.transforms:
            if x.ndim == 3:
                x = self.apply_transforms(x)
            elif len(x):
                x = np.stack([self.apply_transforms(image) for image in x])
        return x, labels

    def __len__(self) -> int:
        return len(self.labels)

    def extra_repr(self) -> str:
        height, width = self.images.shape[1:]
        return f"float32{[height, width, 1]}, int32[]"

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return self[indices]


def _unpacked(raw: bytes, ndim: int) -> bytes:
    """Decompress a gzip file and return its bytes, but at most one byte more than the idx header
    declares."""
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        header = file.read(4 + 4 * ndim)
        extents = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
        left, parts = prod(extents) + 1, [header]
        while left > 0 and (part := file.read(min(left, 1 << 24))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def read_idx(path: str | os.PathLike[str], ndim: int) -> Array:
    """Return the bytes in the idx file `path` as an array of `ndim` axes.

    Raises OSError if the file cannot be read, and ValueError, with the reason, if it is malformed.
    """
    path = Path(path)
    raw = read_regular(path)
    if raw.startswith(_GZIP):
        try:
            raw = _unpacked(raw, ndim)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: damaged gzip file ({error})") from None
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise ValueError(f"{path}: not an idx file")
    if raw[2] != _UBYTE or raw[3] != ndim:
        raise ValueError(
            f"{path}: an idx file of type {raw[2]} with {raw[3]} axes; expected {ndim} axes of "
            f"bytes (type {_UBYTE})"
        )
    start = 4 + 4 * ndim
    if len(raw) < start:
        raise ValueError(f"{path}: truncated in the header: {len(raw)} of {start} bytes")
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4))
    expected = start + prod(shape)
    if len(raw) != expected:
        kind = "truncated" if len(raw) < expected else "too long"
        raise ValueError(f"{path}: {kind}: {len(raw)} bytes, but shape {shape} needs {expected}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
