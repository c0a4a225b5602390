"""PyTorch's layers in many shapes, compiled without a search, compared with other frameworks. The
comparison shows how good the schedule rules are on shapes that they were not made for."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apps.contestants
import apps.peers
import needle_tvm
from apps.contestants import CODE
from bench import contests, harness
from needle_runtime.errors import InstallError
from needle_runtime.process import command_line as cli
from needle_runtime.process.timing import Contestant, save_arrays

OURS = "needle tuned"
DEFAULT_PEERS = ("onnxruntime", "openvino")
_SEED = 0


def make_parser() -> argparse.ArgumentParser:
    parser = harness.make_parser("bench.layers", __doc__)
    keys = [key for key, peer in apps.peers.PEERS.items() if peer.reads_onnx]
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=keys,
        default=DEFAULT_PEERS,
        metavar="PEER",
        help=f"peers, of {', '.join(keys)} ({', '.join(DEFAULT_PEERS)})",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.layers", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests of the layers."""
    if importlib.util.find_spec("torch") is None:
        raise InstallError("the layers need PyTorch: pip install torch")
    from bench.torch_layers import LAYERS

    cases = {name: partial(entries_of, name) for name in LAYERS}
    notes = [f"{OURS} is needle_runtime's call with NumPy arrays", contests.NOTES[0]]
    return harness.run(options, "layers", cases, options.peers, notes)


def entries_of(name: str, options: argparse.Namespace, folder: Path) -> harness.Entries:
    """Return the contestants, whose files are in the folder, and PyTorch's results in float64.

    The compiled layer and the peers are called as users call them and, where possible, again as
    code alone.
    """
    import torch

    from apps.torch_peers import to_onnx
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
    onnx = to_onnx(module, tensors, folder / "model.onnx")
    with torch.no_grad():
        wide = module.double()
        exact = [
            wide(*(torch.from_numpy(array).double() for array in given)).numpy()
            for given in apps.contestants.fresh(list(arrays.values()))
        ]
    entries += apps.peers.readers(options.peers, onnx, read["inputs"], threads, code=True)
    return entries, exact


if __name__ == "__main__":
    sys.exit(main())
