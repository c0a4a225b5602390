"""Make the corpus anew: `python -m tests.corpus.make --out FOLDER` (half an hour).

The campaign draws the programs; those stay that are small and whose right answers are sure. The
graphs of ONNX's own operators (`onnx-SEED`), which nothing draws, are copied as they are. The
results are those of `answers`, in float64. The errors are the campaign's own (`frontend.bounds`),
widened so that they hold around these results. A program stays out if ONNX's evaluator or PyTorch
cannot run it in float64, or disagrees with the bounds; the last lines count the reasons.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch

import needle as ndl
import needle_tvm
from needle.onnx.emit import find
from needle.torch.arrays import array_of
from needle.torch.loading import loaded
from needle.trace import trace
from needle.trace.graph import Graph
from needle_runtime.errors import UsageError
from needle_tvm.check.campaign import draw, judge
from needle_tvm.check.campaign.program import Program
from needle_tvm.check.campaign.torch.recipes import draw as draw_torch
from needle_tvm.check.campaign.verdicts import REFUSALS
from needle_tvm.compiler.torch_models import traced
from needle_tvm.frontend.bounds import Evaluation, Expected
from needle_tvm.lower.libraries import unoptimized

from . import answers
from .reading import ONNX, PT2, SOURCE, archives, folders

SHARES = {"ops": 4, "gradient": 2, "dims": 3, "torch": 3}  # of an archive's programs
_RUNS = 48  # disturbed evaluations: each misses a tie with probability 1/2
_MOST_BYTES = 30_000  # of a program's arrays and weights, before compression
_MOST_SIZES = 2  # at which a program with dims is compared

Array = np.ndarray[Any, Any]
Files = dict[str, bytes]


class LeftOut(Exception):
    """Why a program is not in the corpus."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.corpus.make", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the archives")
    parser.add_argument("--archives", type=int, help="how many; default: all")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out: Counter[str] = Counter()
    drawn = {kind: _drawn(kind, out) for kind in SHARES}
    for archive in archives()[: options.archives]:
        made = [next(drawn[kind]) for kind, count in SHARES.items() for _ in range(count)]
        made += [each for each in folders(archive).items() if each[0].startswith("onnx-")]
        path = options.out / archive.name
        _write(path, made)
        print(path, path.stat().st_size, flush=True)
    for reason, count in out.most_common():
        print(count, reason)
    return 0


def _write(path: Path, programs: Sequence[tuple[str, Files]]) -> None:
    """Write an archive, whose bytes depend on nothing but its files."""
    with tarfile.open(path, "w:xz", preset=9) as tar:
        files = [(f"{name}/{file}", data) for name, held in programs for file, data in held.items()]
        for name, data in sorted(files, key=lambda each: each[0].rpartition(".")[2]):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _drawn(kind: str, out: Counter[str]) -> Iterator[tuple[str, Files]]:
    """Yield the programs of a kind that stay, each as its folder's name and files."""
    for seed in range(1_000_000):
        try:
            yield f"{kind}-{seed}", (_of_torch(seed) if kind == "torch" else _of_own(kind, seed))
        except LeftOut as reason:
            out[f"{kind}: {reason}"] += 1
        except REFUSALS as error:  # the campaign counts these
            print(f"{kind}-{seed}: {error}", flush=True)


# needle's own programs


def _of_own(kind: str, seed: int) -> Files:
    """An even seed goes in by the needle door, an odd one by ONNX where that takes dims."""
    if kind == "dims":
        program = draw.draw_with_dims(seed)
    else:
        program = draw.draw(seed, gradient=kind == "gradient", allows=_has_rules)
    dims, others = program.at_sizes()
    model, inputs = program.load()
    sized = [inputs, *sorted(others, key=lambda each: sum(np.size(x) for x in each))]
    sized = [[np.asarray(x) for x in each] for each in sized[:_MOST_SIZES]]
    if sum(x.nbytes for each in sized for x in each) > _MOST_BYTES:
        raise LeftOut("large")
    with TemporaryDirectory(prefix="needle-corpus-") as folder:
        path = Path(folder) / ONNX
        try:
            ndl.onnx.export(model, tuple(map(ndl.Tensor, sized[0])), path, dims=dims)
        except ndl.errors.UnsupportedError as error:
            raise LeftOut("ONNX does not have its ops") from error
        data = path.read_bytes()
    fields = {"sizes": {d.name: [d.min, d.max, d.multiple_of] for d in program.dims}}
    leaves = [leaf for leaf in program.leaves if leaf.kind == "input"]
    names = [name for name, _ in zip(_inputs(data), leaves, strict=True)]
    fields["axes"] = {n: leaf.axes() for n, leaf in zip(names, leaves, strict=True) if leaf.axes()}
    files = _of_proto(data, sized, fields, program)
    if seed % 2 and _is_taken(data, sized[0], dims):
        return files
    return {**files, SOURCE: program.to_json().encode()}


def _is_taken(data: bytes, inputs: Sequence[Array], dims: Any) -> bool:
    """Whether needle compiles a file with these dims: it unrolls most loops, of one length."""
    proto = onnx.load_from_string(data)
    try:
        with judge.own_cache(), unoptimized():
            needle_tvm.compile_onnx(proto, *inputs, dims=dims, stage="noopt", threads=1)
    except (UsageError, *REFUSALS):
        return False
    return True


def _has_rules(graph: Graph) -> bool:
    return all(node.op is None or find(node.op) is not None for node in graph.nodes)


def _inputs(data: bytes) -> list[str]:
    return [each.name for each in onnx.load_from_string(data).graph.input]


def _of_proto(
    data: bytes, sized: Sequence[Sequence[Array]], fields: dict[str, Any], program: Program
) -> Files:
    proto = onnx.load_from_string(data)
    if len(data) > _MOST_BYTES:
        raise LeftOut("large")
    held: Files = {ONNX: data}
    for number, arrays in enumerate(sized):
        try:
            results = answers.of_onnx(proto, arrays)
        except Exception as error:  # onnx's evaluator may raise anything
            raise LeftOut("onnx.reference does not run it in float64") from error
        models = [ndl.onnx.load(proto), program.load()[0]]
        bounds: list[list[Expected]] = []
        for model in models:
            tensors = [ndl.Tensor(x) for x in arrays]
            graph = trace(model, *tensors)
            weights = {leaf.name: leaf.value.numpy() for leaf in graph.params}
            bounds.append(Evaluation(graph, arrays, weights).expected(_RUNS))
            eager = judge.flat(model(*tensors))
        fields["outputs"] = [each.dtype.name for each in eager]
        held[f"{number}.npz"] = _case(arrays, results, bounds)
    fields["inputs"] = [x.dtype.name for x in sized[0]]
    return {"program.json": json.dumps(fields).encode(), **held}


def _case(
    inputs: Sequence[Array], results: Sequence[Array], bounds: Sequence[Sequence[Expected]]
) -> bytes:
    """The file of a case. An error is a 16-bit number: the 4th root of 2 to that power."""
    arrays: dict[str, Array] = {}
    for i, x in enumerate(inputs):
        arrays[f"input_{i}"] = x.astype(np.float32) if x.dtype.name == "bfloat16" else x
    for i, (result, *around) in enumerate(zip(results, *bounds, strict=True)):
        error = np.maximum.reduce([_error(result, each) for each in around])
        with np.errstate(divide="ignore"):
            code = np.clip(np.ceil(4 * np.log2(error)), -(2**15), 2**15 - 1)
        arrays[f"result_{i}"], arrays[f"error_{i}"] = result, code.astype(np.int16)
    if sum(x.nbytes for x in arrays.values()) > _MOST_BYTES:
        raise LeftOut("large")
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _error(result: Array, around: Expected) -> Array:
    """The error around `result` within which lies whatever is right by `around`."""
    value = around.value
    if result.shape != value.shape or (result.dtype.kind == "f") != (value.dtype.kind == "f"):
        raise LeftOut("results differ in shape or dtype")
    both = np.isfinite(result) & np.isfinite(value)
    same = (result == value) | (np.isnan(result) & np.isnan(value))
    with np.errstate(invalid="ignore"):
        apart = np.where(both, np.abs(np.subtract(result, value, dtype=np.float64)), 0.0)
    if (around.known & ~same & ~(both & (apart <= around.error))).any():
        raise LeftOut("the evaluations do not agree")
    return np.where(around.known, around.error + apart, np.inf)


# PyTorch's modules


def _of_torch(seed: int) -> Files:
    program = draw_torch(seed)
    model, inputs = program.load()
    held = [*inputs, *model.state_dict().values()]
    if sum(x.numel() * x.element_size() for x in held) > _MOST_BYTES:
        raise LeftOut("large")
    exported = torch.export.export(model, inputs)
    exported._example_inputs = None  # pickled
    file = io.BytesIO()
    torch.export.save(exported, file)
    graph = traced(loaded(model, inputs, {}))
    params = {name: array.numpy() for name, array in graph.weights.values().items()}
    reference = Evaluation(graph, [array_of(x) for x in inputs], params)
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(model(*inputs))
    eager = [x for x in leaves if isinstance(x, torch.Tensor)]
    if reference.difference([array_of(x) for x in eager]):
        raise LeftOut("the evaluations do not agree")
    try:
        results = answers.of_torch(exported, inputs)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise LeftOut("PyTorch does not run it in float64") from error
    fields = {
        "inputs": [array_of(x).dtype.name for x in inputs],
        "outputs": [array_of(x).dtype.name for x in eager],
    }
    case = _case([array_of(x) for x in inputs], results, [reference.expected(_RUNS)])
    return {"program.json": json.dumps(fields).encode(), PT2: file.getvalue(), "0.npz": case}


if __name__ == "__main__":
    sys.exit(main())
