"""Convolutions of one and three dimensions and transposed ones, eager and compiled without a
search, beside PyTorch and ONNX Runtime, on a CPU in float32."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import apps.peers
import apps.report
import needle as ndl
import needle_tvm
from apps.contestants import as_tensors, calls, fresh
from bench import contests, tables
from needle import nn
from needle_tvm.errors import InstallError, UsageError
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Calls, Contestant, load_arrays, save_arrays

TUNED = "needle tuned"
PEERS = ("onnxruntime",)
_TORCH = "PyTorch eager"

# A layer's class in needle and in PyTorch, the shape of its input, its positional arguments (input
# and output channels, kernel, stride, padding) and its keywords.
Case = tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]

CASES: dict[str, Case] = {
    "conv1d, 1 x 16 x 128": ("Conv1d", (1, 16, 128), (16, 32, 3, 1, 1), {}),
    "conv1d, 8 x 64 x 256": ("Conv1d", (8, 64, 256), (64, 64, 5, 1, 2), {}),
    "conv1d, 4 x 80 x 1500 / 2": ("Conv1d", (4, 80, 1500), (80, 256, 3, 2, 1), {}),
    "conv3d, 1 x 4 x 8^3": ("Conv3d", (1, 4, 8, 8, 8), (4, 8, 3, 1, 1), {}),
    "conv3d, 1 x 3 x 16 x 56^2": ("Conv3d", (1, 3, 16, 56, 56), (3, 32, 3, 1, 1), {}),
    "conv3d, 2 x 32 x 8 x 28^2": ("Conv3d", (2, 32, 8, 28, 28), (32, 64, 3, 1, 1), {}),
    "transposed 1d, 1 x 16 x 64": ("ConvTranspose1d", (1, 16, 64), (16, 16, 4, 2, 1), {}),
    "transposed 1d, 8 x 64 x 128": ("ConvTranspose1d", (8, 64, 128), (64, 64, 4, 2, 1), {}),
    "transposed 1d, 2 x 128 x 200 / 8": ("ConvTranspose1d", (2, 128, 200), (128, 64, 16, 8, 4), {}),
    "transposed 2d, 1 x 8 x 8^2": ("ConvTranspose2d", (1, 8, 8, 8), (8, 8, 2, 2), {}),
    "transposed 2d, 4 x 64 x 16^2": ("ConvTranspose2d", (4, 64, 16, 16), (64, 32, 4, 2, 1), {}),
    "transposed 2d, 1 x 64 x 56^2": (
        "ConvTranspose2d", (1, 64, 56, 56), (64, 64, 3, 2, 1), {"output_padding": 1}
    ),
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.convolutions", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a case's name (all cases)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.convolutions", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests one after the other, print each as it ends, then the table; write all."""
    if importlib.util.find_spec("torch") is None:
        raise InstallError("PyTorch is one of the contestants: pip install torch")
    chosen = [
        name for name in CASES if not options.parts or any(part in name for part in options.parts)
    ]
    if not chosen:
        raise UsageError(f"no case's name has any of {options.parts}: {', '.join(CASES)}")
    target = options.out / "convolutions.json"
    cli.check_writable(target)
    report = contests.new_report(options, "mlp", PEERS)
    for name in chosen:
        with scratch_folder("needle-convolutions-") as folder:
            entries = entries_of(name, options.threads, folder)
            report["cases"].append(contests.run(name, entries, options))
        tables.print_case(report["cases"][-1])
        apps.report.write_json(report, target)  # kept if a later one fails
    parts = [("beside the fastest peer of each case", tables.summary(report["cases"]))]
    tables.publish(report, options.out, "convolutions", parts)
    return cli.OK


def entries_of(name: str, threads: int, folder: Path) -> list[Contestant]:
    """The contestants of a case, whose files are in the folder."""
    import torch

    torch.manual_seed(0)
    _, shape, _, _ = CASES[name]
    module, x = in_torch(name), torch.randn(shape)
    weights, inputs, onnx = (str(folder / f) for f in ("weights.npz", "inputs.npz", "model.onnx"))
    save_arrays(weights, {key: value.numpy() for key, value in module.state_dict().items()})
    save_arrays(inputs, {"x": x.numpy()})
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about shapes that it takes for constants, which they are
        torch.onnx.export(module, (x,), onnx, dynamo=False, opset_version=17)
    kwargs = {"name": name, "weights": weights, "inputs": inputs}
    with_threads = {**kwargs, "threads": threads}
    return [
        Contestant(_TORCH, "bench.convolutions:torch_eager", with_threads, threads=threads),
        Contestant(contests.EAGER, "bench.convolutions:eager", kwargs, threads=threads),
        Contestant(TUNED, "bench.convolutions:compiled", with_threads, threads=threads),
        *(
            apps.peers.contestant(
                apps.peers.PEERS[peer],
                {"inputs": inputs, "onnx": onnx, "threads": threads},
                threads,
                False,
            )
            for peer in PEERS
            if not apps.peers.PEERS[peer].missing
        ),
    ]


def in_torch(name: str) -> Any:
    """The case's layer in PyTorch."""
    import torch

    kind, _, positional, keywords = CASES[name]
    return getattr(torch.nn, kind)(*positional, **keywords).eval()


def in_needle(name: str, weights: str) -> nn.Module:
    """The case's layer in needle, with the weights that PyTorch's layer has."""
    kind, _, positional, keywords = CASES[name]
    layer = getattr(nn, kind)(*positional, **keywords)
    with np.load(weights) as arrays:
        layer.load_state_dict(dict(arrays), layout="torch")
    layer.eval()
    return layer


def torch_eager(name: str, weights: str, inputs: str, threads: int) -> Calls:
    import torch

    torch.set_num_threads(threads)
    layer = in_torch(name)
    with np.load(weights) as arrays:
        layer.load_state_dict({key: torch.from_numpy(arrays[key]) for key in arrays.files})

    def call(tensors: Sequence[Any]) -> Any:
        with torch.inference_mode():
            return layer(*tensors)

    sets = [[torch.from_numpy(x) for x in arrays] for arrays in fresh(load_arrays(inputs))]
    return calls(call, sets)


def eager(name: str, weights: str, inputs: str) -> Calls:
    layer = in_needle(name, weights)

    def call(tensors: Sequence[Any]) -> Any:
        with ndl.no_grad():
            return layer(*tensors)

    return calls(call, [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))])


def compiled(name: str, weights: str, inputs: str, threads: int) -> Calls:
    sets = [as_tensors(arrays) for arrays in fresh(load_arrays(inputs))]
    executable = needle_tvm.compile(in_needle(name, weights), *sets[0], threads=threads)
    return calls(lambda tensors: executable(*tensors), sets)


if __name__ == "__main__":
    sys.exit(main())
