"""Text as numbers: the words of the Penn Treebank files, which have one sentence per line."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count
from ..backend_ndarray.masked import as_numpy
from ..common.files import open_regular

Array = np.ndarray[Any, Any]

END = "<eos>"  # ends every line


class Dictionary:
    """A vocabulary, which maps words to numbers and numbers to words."""

    def __init__(self) -> None:
        self.word2idx: dict[str, int] = {}
        self.idx2word: list[str] = []

    def add_word(self, word: str) -> int:
        """Return the number of `word`; a new word gets a new number."""
        number = self.word2idx.setdefault(word, len(self.idx2word))
        if number == len(self.idx2word):
            self.idx2word.append(word)
        return number

    def __len__(self) -> int:
        return len(self.idx2word)


class Corpus:
    """The numbers of all words in the train and test files in `base_dir`, as int32 arrays.

    The files are train.txt, test.txt and optionally valid.txt (without it, `valid` is None), all
    with or without the prefix "ptb.". The first `max_lines` lines of each file are read (None:
    all). Raises FileNotFoundError for a missing file, and ValueError for one that is not text.
    """

    def __init__(self, base_dir: str | os.PathLike[str], max_lines: int | None = None) -> None:
        base = Path(base_dir)
        if max_lines is not None:
            count("Corpus", "max_lines", max_lines, 0)
        self.dictionary = Dictionary()
        self.train = self.tokenize(_find(base, "train.txt"), max_lines)
        self.test = self.tokenize(_find(base, "test.txt"), max_lines)
        valid = _find(base, "valid.txt", needed=False)
        # Read last, so that words have the same numbers with and without valid.txt.
        self.valid = None if valid is None else self.tokenize(valid, max_lines)

    def tokenize(self, path: Any, max_lines: int | None = None) -> Array:
        """Return the numbers of the words in the first `max_lines` lines (None: all) of the file
        `path`, with the number of END after each line."""
        numbers: list[int] = []
        add = self.dictionary.add_word
        try:
            with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
                for line in itertools.islice(file, max_lines):
                    numbers += [add(word) for word in (*line.split(), END)]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text file: {error}") from None
        if not numbers:
            raise ValueError(f"{path}: contains no text")
        return np.array(numbers, np.int32)


def _find(base: Path, name: str, needed: bool = True) -> Path | None:
    for path in (base / name, base / f"ptb.{name}"):
        if path.is_file():
            return path
    if needed:
        raise FileNotFoundError(f"Corpus: {base} has neither {name} nor ptb.{name}")
    return None


def batchify(
    data: Sequence[int] | Array,
    batch_size: int,
    device: DeviceLike | None = None,
    dtype: Any = None,
) -> Array:
    """Cut `data` into `batch_size` equal parts and return them as the columns of an array
    (len(data) // batch_size, batch_size).

    The remainder is dropped. The result has the dtype `dtype` (None: int32). `device` is part of
    the course's signature and is not used. Raises ValueError if the batch size is below 1 or above
    the length of the data.
    """
    size = count("batchify", "batch_size", batch_size)
    if not 1 <= size <= len(data):
        raise ValueError(f"batchify: batch_size {size} is not in 1..{len(data)}, the data's length")
    rows = len(data) // size
    columns = as_numpy(data, "batchify")[: rows * size].reshape(size, rows)
    return np.ascontiguousarray(columns.T, dtype="int32" if dtype is None else dtype)


def get_batch(
    batches: Array, i: int, bptt: int, device: DeviceLike | None = None, dtype: Any = None
) -> tuple[Tensor, Tensor]:
    """Return n rows of `batches` (a result of `batchify`), starting at row i, and for each of their
    elements the one that follows it in the text.

    n is bptt, or less at the end. The results are data of shape (n, batch_size) and target of shape
    (n * batch_size,): Tensors without gradient, of `dtype` (None: that of `batches`), on `device`.
    Raises IndexError if no row follows row i.
    """
    i, wanted = count("get_batch", "row", i, -len(batches)), count("get_batch", "bptt", bptt, 0)
    rows = min(wanted, len(batches) - 1 - i)
    if i < 0 or rows < 1:
        raise IndexError(
            f"get_batch: row {i} must be in 0..{len(batches) - 2}, and bptt {bptt} at least 1"
        )
    data, target = batches[i : i + rows], batches[i + 1 : i + 1 + rows].reshape(-1)
    make: Any = {"device": device, "dtype": dtype, "requires_grad": False}
    return Tensor(data, **make), Tensor(target, **make)
