"""Read the corpus. Nothing here is needle's: NumPy and tarfile read the answers.

An archive `NN.tar.xz` holds a folder for each program, KIND-SEED: its `program.json`, its
`model.onnx` or `model.pt2`, for needle's own programs its `source.json` too, and `0.npz`, `1.npz`
...: inputs of one size, and what is right for them. Arrays are `input_N`, `result_N` and
`error_N`. Results are float64, or whole numbers and booleans as they are. An error is the largest
distance of a right element from the result; elements on which right programs differ have inf.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from needle_runtime.artifact.tolerance import compare

FOLDER = Path(__file__).parent / "programs"
ONNX, PT2, SOURCE = "model.onnx", "model.pt2", "source.json"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one size, and the right results with the error of each element."""

    inputs: tuple[Array, ...]
    results: tuple[Array, ...]
    errors: tuple[Array, ...]

    def wrong(self, found: Sequence[Array], dtypes: Sequence[str]) -> str | None:
        """Describe what is wrong with results; None if nothing is."""
        given = [(each.dtype.name, each.shape) for each in found]
        wanted = [(dtype, each.shape) for dtype, each in zip(dtypes, self.results, strict=True)]
        if given != wanted:
            return f"results of {given}, expected {wanted}"
        for number, (have, want, error) in enumerate(
            zip(found, self.results, self.errors, strict=True)
        ):
            known = ~np.isinf(error)
            compared = compare(want, have, error, scale=1.0, same_dtype=False, known=known)
            if not compared.right:
                return f"result {number}: {compared.what}"
        return None


@dataclass(frozen=True)
class Stored:
    """A program: its name, the fields of `program.json`, its files by name, and its cases.

    The fields are `inputs` and `outputs`, which are dtypes, and `dims`: for each input that has
    some, what its axes are, an expression of dims, each with [min, max, multiple_of].
    """

    name: str
    fields: dict[str, Any]
    files: dict[str, bytes]
    cases: tuple[Case, ...]

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def seed(self) -> int:
        return int(self.name.partition("-")[2])


def archives() -> list[Path]:
    """Return the files of the corpus."""
    return sorted(FOLDER.glob("*.tar.xz"))


def folders(archive: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of an archive's programs, by the programs' names and their own."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            folder, _, name = member.name.partition("/")
            file = tar.extractfile(member)
            assert file is not None, f"{archive.name}: {member.name} is no file"
            found.setdefault(folder, {})[name] = file.read()
    return found


def programs(archive: Path) -> Iterator[Stored]:
    """Yield the programs of an archive."""
    for name, files in folders(archive).items():
        fields = json.loads(files.pop("program.json"))
        held = sorted(each for each in files if each.endswith(".npz"))
        cases = tuple(_case(files.pop(each), fields) for each in held)
        yield Stored(name, fields, files, cases)


def _case(data: bytes, fields: dict[str, Any]) -> Case:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:

        def listed(what: str, count: int) -> list[Array]:
            return [arrays[f"{what}_{i}"] for i in range(count)]

        inputs = zip(listed("input", len(fields["inputs"])), fields["inputs"], strict=True)
        count = len(fields["outputs"])
        return Case(
            tuple(array.astype(_dtype(name)) for array, name in inputs),
            tuple(listed("result", count)),
            tuple(map(_error, listed("error", count))),
        )


def _error(code: Array) -> Array:
    """An error of its 16-bit number: the 4th root of 2 to that power, which may be 0 or inf."""
    with np.errstate(over="ignore"):
        return np.exp2(code.astype(np.float64) / 4)


def _dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
