"""CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), from its Python or its binary files.

The Python files are pickles, and a pickle can make Python run any code. The unpickler in this file
allows only a few names and replaces each with a class or function from this file, so no other code
is ever called.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import read_regular
from .dataset import Dataset, Transform

Array = np.ndarray[Any, Any]

_SHAPE = (3, 32, 32)
_PIXELS = 3072
_CLASSES = 10
_FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_TEST = ("test_batch",)


class CIFAR10Dataset(Dataset):
    """Items (x, y) of the training set if `train`, else of the test set. x is float32 (3, 32, 32)
    in [0, 1], y an int32 class 0..9.

    `base_folder` contains the files data_batch_1 .. data_batch_5 and test_batch (or the same with
    .bin), or the archive's folder with these files. `transforms` get x as (H, W, C). `p` is part of
    the course's signature and is not used. Indexing with a slice or an array returns a batch.
    Raises FileNotFoundError for a missing file and ValueError for a damaged one.
    """

    def __init__(
        self,
        base_folder: str | os.PathLike[str],
        train: bool,
        p: float | None = 0.5,
        transforms: Sequence[Transform] | None = None,
    ) -> None:
        super().__init__(transforms)
        parts = [_read(path) for path in _find(Path(base_folder), _TRAIN if train else _TEST)]
        self.images = np.concatenate([images for images, _ in parts])  # (N, 3, 32, 32), uint8
        self.y = np.concatenate([labels for _, labels in parts])

    @property
    def X(self) -> Array:
        """All images as float32 in [0, 1], without transforms; a new array at each access."""
        return _scaled(self.images)

    def __getitem__(self, index: Any) -> tuple[Array, Array]:
        x, y = _scaled(self.images[index]), self.y[index]
        if self.transforms:
            if x.ndim == 3:
                x = self._transformed(x)
            elif len(x):
                x = np.stack([self._transformed(image) for image in x])
        return x, y

    def _transformed(self, x: Array) -> Array:
        return np.moveaxis(self.apply_transforms(np.moveaxis(x, 0, -1)), -1, 0)

    def __len__(self) -> int:
        return len(self.y)

    def extra_repr(self) -> str:
        return f"float32{list(_SHAPE)}, int32[]"

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return self[indices]


def _scaled(images: Array) -> Array:
    return images.astype(np.float32) / np.float32(255)


def _find(base: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of the files `names`, or of `names` with .bin, in `base` or its folders."""
    for folder in _FOLDERS:
        for suffix in ("", ".bin"):
            paths = [base / folder / f"{name}{suffix}" for name in names]
            found = [path for path in paths if path.is_file()]
            if len(found) == len(paths):
                return paths
            if found:
                (missing, *_) = [path for path in paths if path not in found]
                raise FileNotFoundError(f"CIFAR10Dataset: {missing} is missing")
    raise FileNotFoundError(
        f"CIFAR10Dataset: {base} has neither {names[0]} nor {names[0]}.bin, nor a folder "
        f"{' or '.join(_FOLDERS[1:])} with these files"
    )


def _read(path: Path) -> tuple[Array, Array]:
    """Return (images (N, 3, 32, 32) uint8, labels (N,)) of one file."""
    raw = read_regular(path)
    images, labels = _from_binary(path, raw) if path.suffix == ".bin" else _from_pickle(path, raw)
    wrong = [label for label in labels if not 0 <= label < _CLASSES]
    if wrong:
        raise _damaged(path, f"label {wrong[0]} is not in 0..{_CLASSES - 1}")
    return images.reshape(-1, *_SHAPE), np.array(labels, np.int32)


def _from_binary(path: Path, raw: bytes) -> tuple[Array, list[int]]:
    """Return the images and labels in `raw`, whose records have one label byte and 3072 image
    bytes."""
    record = 1 + _PIXELS
    if not raw or len(raw) % record:
        raise _damaged(path, f"{len(raw)} bytes are not a whole number of records of {record}")
    records = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return records[:, 1:], records[:, 0].tolist()


def _from_pickle(path: Path, raw: bytes) -> tuple[Array, list[int]]:
    """Return the images and labels in `raw`, a pickled dict with b"data", uint8 (N, 3072), and
    b"labels", N integers."""
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except MemoryError:
        raise _damaged(path, "it asks for more memory than there is") from None
    except Exception as error:  # damaged pickles raise errors of nearly every class
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    if not isinstance(content, dict):
        raise _damaged(path, f"it contains a {type(content).__name__}, not a dict")
    named = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, _Array) or data.state is None:
        raise _damaged(path, "its 'data' is not an array")
    if not isinstance(labels, list) or not all(type(n) is int for n in labels):
        raise _damaged(path, "its 'labels' are not a list of ints")
    try:
        _, shape, dtype, in_columns, values = data.state
    except (TypeError, ValueError):
        raise _damaged(path, "its 'data' is not an array") from None
    rows = len(labels)
    good = isinstance(dtype, _Dtype) and isinstance(values, bytes) and not in_columns
    if not good or shape != (rows, _PIXELS) or len(values) != rows * _PIXELS:
        raise _damaged(path, f"its 'data' is not {_PIXELS} bytes for each of {rows} labels")
    return np.frombuffer(values, np.uint8).reshape(rows, _PIXELS), labels


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path}: not a CIFAR-10 batch: {why}")


class _Array:
    """Replaces numpy.ndarray in a pickle and keeps the array's pickled state."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype:
    """Replaces numpy.dtype("u1"), the only dtype in these files."""

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"dtype {code!r} is not u1")

    def __setstate__(self, state: Any) -> None:
        """Ignore the state, such as the byte order, which does not matter for bytes."""


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _Array:
        raise pickle.UnpicklingError("it reconstructs something that is not an array")
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it uses an encoding other than latin1")
    return text.encode("latin1")


# The names in pickles of byte arrays. The last one is only in pickles written by Python 3.
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """An unpickler for numbers, strings, lists, tuples, dicts, and the names in _NAMES."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in it") from None
