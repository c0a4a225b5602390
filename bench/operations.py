"""Single operations in three sizes each: needle eager and compiled beside PyTorch and ONNX Runtime,
each in a process of its own and called as its users call it."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apps.peers
import apps.report
from apps.contestants import Calls, as_tensors, calls, fresh, load_arrays
from bench import contests, tables
from bench.operation_cases import CASES
from needle_tvm.errors import UsageError
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant, save_arrays

OURS = "needle compiled"
PEERS = ("onnxruntime",)


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.operations", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of an operation's name (all)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.operations", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests one after the other, print each as it ends, write all of them."""
    chosen = [
        name for name in CASES if not options.parts or any(part in name for part in options.parts)
    ]
    if not chosen:
        raise UsageError(f"no operation's name has any of {options.parts}: {', '.join(CASES)}")
    options.strict = False  # an operation that one lacks is a row without it
    target = options.out / "operations.json"
    cli.check_writable(target)
    report = contests.new_report(options, "mlp", PEERS)
    for name in chosen:
        for number, size in enumerate(CASES[name].sizes):
            title = f"{name} {'-'.join(map(str, size))}"
            with scratch_folder("needle-operations-") as folder:
                entries = entries_of(name, number, options, folder)
                report["cases"].append(contests.run(title, entries, options))
            tables.print_case(report["cases"][-1])
            apps.report.write_json(report, target)  # kept if a later one fails
    parts = [("beside the fastest peer of each operation", tables.summary(report["cases"]))]
    tables.publish(report, options.out, "operations", parts)
    return cli.OK


def entries_of(
    name: str, number: int, options: argparse.Namespace, folder: Path
) -> list[Contestant]:
    """The contestants of a case at one of its sizes; their files are in the folder."""
    case = CASES[name]
    arrays = case.inputs(case.sizes[number])
    inputs = str(folder / "inputs.npz")
    save_arrays(inputs, {f"x{i}": array for i, array in enumerate(arrays)})
    given = {"name": name, "number": number, "inputs": inputs}
    ours = ((OURS, "compiled"), (contests.EAGER, "eager"), ("PyTorch", "pytorch"))
    entries = [
        Contestant(
            each,
            f"bench.operations:{way}",
            {**given, "threads": options.threads},
            threads=options.threads,
        )
        for each, way in ours
    ]
    onnx = folder / "model.onnx"
    if write_onnx(name, number, onnx):
        files = {"inputs": inputs, "onnx": str(onnx), "threads": options.threads}
        entries += [
            apps.peers.contestant(apps.peers.PEERS[key], files, options.threads, bound=False)
            for key in PEERS
            if not apps.peers.PEERS[key].missing
        ]
    return entries


def write_onnx(name: str, number: int, path: Path) -> bool:
    """Export PyTorch's operation; False if ONNX has none."""
    import torch

    from bench.torch_layers import Function

    case = CASES[name]
    size = case.sizes[number]
    tensors = tuple(map(torch.from_numpy, case.inputs(size)))
    module = Function(case.torch(torch, size)).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(module, tensors, str(path), dynamo=False, opset_version=17)
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            print(f"{name}: no ONNX ({str(error).splitlines()[0]})", file=sys.stderr)
            return False
    return True


def eager(name: str, number: int, inputs: str, threads: int) -> Calls:
    """needle, without a gradient tape."""
    import needle as ndl

    case = CASES[name]
    function = case.needle(ndl, case.sizes[number])

    def run(tensors: Sequence[Any]) -> Any:
        with ndl.no_grad():
            return function(*tensors)

    return calls(run, [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))])


def compiled(name: str, number: int, inputs: str, threads: int) -> Calls:
    """needle's compiled function on Tensors."""
    import needle as ndl
    import needle_tvm

    case = CASES[name]
    sets = [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))]
    function = case.needle(ndl, case.sizes[number])
    executable = needle_tvm.compile(function, *sets[0], threads=threads)
    return calls(lambda tensors: executable(*tensors), sets)


def pytorch(name: str, number: int, inputs: str, threads: int) -> Calls:
    """PyTorch eager, without a gradient tape."""
    import torch

    torch.set_num_threads(threads)
    case = CASES[name]
    function = case.torch(torch, case.sizes[number])

    def run(tensors: Sequence[Any]) -> Any:
        with torch.inference_mode():
            return function(*tensors)

    sets = [list(map(torch.from_numpy, arrays)) for arrays in fresh(load_arrays(inputs))]
    return calls(run, sets, lambda found: [found.numpy()])


if __name__ == "__main__":
    sys.exit(main())
