"""Single operations: needle eager and compiled, compared with PyTorch and ONNX Runtime, each in its
own process and called as its users call it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apps.peers
from apps.contestants import Calls, as_tensors, calls, fresh, load_arrays
from bench import contests, harness
from bench.operation_cases import CASES
from needle_runtime.process import command_line as cli
from needle_runtime.process.timing import Contestant, save_arrays

OURS = "needle compiled"
PEERS = ("onnxruntime",)


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.make_parser("bench.operations", __doc__).parse_args(arguments)
    return cli.guarded("bench.operations", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests of the operations."""
    options.strict = False  # a contestant that lacks an operation is left out of the row
    cases = {
        f"{name} {'-'.join(map(str, size))}": partial(entries_of, name, number)
        for name, case in CASES.items()
        for number, size in enumerate(case.sizes)
    }
    return harness.run(options, "operations", cases, PEERS)


def entries_of(
    name: str, number: int, options: argparse.Namespace, folder: Path
) -> harness.Entries:
    """Return the contestants of a case at one of its sizes; their files are in the folder."""
    case, threads = CASES[name], options.threads
    inputs = str(folder / "inputs.npz")
    arrays = case.inputs(case.sizes[number])
    save_arrays(inputs, {f"x{i}": array for i, array in enumerate(arrays)})
    given = {"name": name, "number": number, "inputs": inputs, "threads": threads}
    ways: dict[str, tuple[str, dict[str, Any]]] = {OURS: ("compiled", {})}
    ways[contests.EAGER] = ("eager", {})
    ways |= {"needle, scan": ("compiled", {"scan": True})} if case.scan else {}
    ways |= {"PyTorch": ("pytorch", {})} if case.torch else {}
    entries = [
        Contestant(each, f"bench.operations:{way}", {**given, **more}, threads=threads)
        for each, (way, more) in ways.items()
    ]
    onnx = write_onnx(name, number, folder / "model.onnx")
    return entries + (apps.peers.readers(PEERS, onnx, inputs, threads) if onnx else []), None


def write_onnx(name: str, number: int, path: Path) -> str | None:
    """Export PyTorch's operation and return the path; None if ONNX lacks the operation."""
    import torch

    from apps.torch_peers import to_onnx
    from bench.torch_layers import Function

    case = CASES[name]
    size = case.sizes[number]
    if case.torch is None:
        return None
    try:
        tensors = map(torch.from_numpy, case.inputs(size))
        return to_onnx(Function(case.torch(torch, size)).eval(), list(tensors), path)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        print(f"{name}: no ONNX ({str(error).splitlines()[0]})", file=sys.stderr)
        return None


def eager(name: str, number: int, inputs: str, threads: int) -> Calls:
    """Return a contestant: needle, without a gradient tape."""
    import needle as ndl

    case = CASES[name]
    function = case.needle(ndl, case.sizes[number])

    def run(tensors: Sequence[Any]) -> Any:
        with ndl.no_grad():
            return function(*tensors)

    return calls(run, [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))])


def compiled(name: str, number: int, inputs: str, threads: int, scan: bool = False) -> Calls:
    """Return a contestant: needle's compiled function; with `scan`, the one written as a scan."""
    import needle as ndl
    import needle_tvm

    sets = [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))]
    make: Any = CASES[name].scan if scan else CASES[name].needle
    executable = needle_tvm.compile(make(ndl, CASES[name].sizes[number]), *sets[0], threads=threads)
    return calls(lambda tensors: executable(*tensors), sets)


def pytorch(name: str, number: int, inputs: str, threads: int) -> Calls:
    """Return a contestant: PyTorch eager, without a gradient tape."""
    import torch

    from apps.torch_peers import called

    torch.set_num_threads(threads)
    case = CASES[name]
    assert case.torch is not None
    sets = [(list(map(torch.from_numpy, arrays)), {}) for arrays in fresh(load_arrays(inputs))]
    return called(case.torch(torch, case.sizes[number]), sets, lambda found: [found.numpy()])


if __name__ == "__main__":
    sys.exit(main())
