"""One square matmul: needle's eager one beside the kernel lab's peers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench import contests
from kernel_lab import peers, registry
from needle_tvm.process.timing import Calls, Contestant, load_arrays, save_arrays

NAME = "gemm"


def run(size: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A contest (see `contests.run`) of a float32 matmul of `size` x `size`."""
    workload, threads = registry.workload(NAME), options.threads
    extents = workload.size("cpu", dict.fromkeys("MNK", size))
    arrays = workload.inputs(extents, 0)
    inputs = str(folder / "inputs.npz")
    save_arrays(inputs, {f"x{number}": array for number, array in enumerate(arrays)})
    factory = f"{__name__}:eager"
    entries = [Contestant(contests.EAGER, factory, {"inputs": inputs}, threads=threads)]
    entries += [
        peers.contestant(peer, workload, inputs, extents, threads)
        for peer in peers.of(workload, "cpu")
        if not peer.missing
    ]
    exact = [workload.reference(extents, arrays)]
    return contests.run(f"{NAME} {size}", entries, options, exact=exact)


def eager(inputs: str) -> Calls:
    """A factory: NDArray's @."""
    from needle import backend_ndarray as nd

    a, b = (nd.array(x, device=nd.cpu()) for x in load_arrays(inputs))
    return lambda: a @ b, lambda: [(a @ b).numpy()]
