"""Layers of PyTorch in many shapes, compiled without a search, beside other frameworks: what the
schedule rules are worth on shapes they were not made for."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import apps.peers
import apps.report
import needle_tvm
from apps.contestants import CODE
from bench import contests, tables
from needle_tvm.errors import InstallError, UsageError
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant, save_arrays

OURS = "needle tuned"
DEFAULT_PEERS = ("onnxruntime", "openvino")
_SEED = 0


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.layers", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a layer's name (all layers)")
    keys = [key for key, peer in apps.peers.PEERS.items() if peer.reads_onnx]
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=keys,
        default=DEFAULT_PEERS,
        metavar="PEER",
        help=f"of {', '.join(keys)} ({', '.join(DEFAULT_PEERS)})",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.layers", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests one after the other, print each as it ends, write all of them."""
    if importlib.util.find_spec("torch") is None:
        raise InstallError("the layers are PyTorch's: pip install torch")
    from bench.torch_layers import LAYERS

    chosen = [
        name for name in LAYERS if not options.parts or any(part in name for part in options.parts)
    ]
    if not chosen:
        raise UsageError(f"no layer's name has any of {options.parts}: {', '.join(LAYERS)}")
    target = options.out / "layers.json"
    cli.check_writable(target)
    report = contests.new_report(options, "mlp", options.peers)
    report["notes"] = [f"{OURS} is needle_tvm.runtime's call with NumPy arrays", contests.NOTES[0]]
    for name in chosen:
        with scratch_folder("needle-layers-") as folder:
            entries, exact = entries_of(name, options, folder)
            report["cases"].append(contests.run(name, entries, options, exact=exact))
        tables.print_case(report["cases"][-1])
        apps.report.write_json(report, target)  # kept if a later one fails
    parts = [("beside the fastest peer of each layer", tables.summary(report["cases"]))]
    tables.publish(report, options.out, "layers", parts)
    return cli.OK


def entries_of(
    name: str, options: argparse.Namespace, folder: Path
) -> tuple[list[Contestant], list[np.ndarray]]:
    """The contestants, whose files are in the folder, and PyTorch's results in float64.

    The compiled layer and the peers come as they are called and, where they can, as code.
    """
    import torch

    from bench.torch_layers import LAYERS

    torch.manual_seed(_SEED)
    module, tensors = LAYERS[name]()
    module.eval()
    threads, read = options.threads, {"inputs": str(folder / "inputs.npz")}
    arrays = {f"x{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
    save_arrays(read["inputs"], arrays)
    executable = needle_tvm.compile_torch(module, *tensors, threads=threads)
    artifact = {"path": str(executable.export(folder / "artifact")), **read}
    entries = [
        Contestant(name, f"apps.contestants:{way}", artifact, threads=threads)
        for name, way in ((OURS, "program"), (OURS + CODE, "artifact"))
    ]
    onnx = str(folder / "model.onnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about shapes that it takes for constants, which they are
        torch.onnx.export(module, tensors, onnx, dynamo=False, opset_version=17)
        wide = module.double()
        exact = [
            wide(*(torch.from_numpy(array).double() for array in given)).numpy()
            for given in apps.contestants.fresh(list(arrays.values()))
        ]
    given = {**read, "onnx": onnx, "threads": threads}
    peers = [apps.peers.PEERS[key] for key in options.peers]
    for bound in (False, True):
        entries += [
            apps.peers.contestant(peer, given, threads, bound)
            for peer in peers
            if not peer.missing and (peer.binds or not bound)
        ]
    return entries, exact


if __name__ == "__main__":
    sys.exit(main())
