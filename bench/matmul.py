"""One square matmul: needle's, eager and compiled, beside the kernel lab's peers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import compiling, contests
from kernel_lab import peers, registry
from needle_tvm.process.timing import Calls, Contestant, load_arrays, save_arrays
from needle_tvm.stages import MEASURED, OWN

NAME = "gemm"
EAGER = "needle eager"
COMPILED = {"needle, own kernel": OWN, "needle, chosen": MEASURED}

_LAUNCHES = {"cpu": 1, "cuda": 20}  # of a call: a product of halves takes little longer than a wait
_COMPILER = f"{__name__}:serve"


def run(
    size: int,
    options: argparse.Namespace,
    folder: Path,
    precision: str = "float32",
    compiled: bool = False,
) -> dict[str, Any]:
    """A contest (see `contests.run`) of a matmul of `size` x `size` with operands in a precision.

    `folder` is for files. With `compiled` needle's matmul is there compiled too: once with needle's
    own kernel, and once with the faster one of that and cuBLAS's, chosen by measuring.
    """
    workload, device, threads = registry.workload(NAME), options.device, options.threads
    extents = workload.size(device, dict.fromkeys("MNK", size))
    arrays = workload.inputs(extents, 0)
    inputs = str(folder / "inputs.npz")
    save_arrays(inputs, {f"x{number}": array for number, array in enumerate(arrays)})
    common = {"inputs": inputs, "dtype": _dtype(precision), "launches": _LAUNCHES[device]}

    def ours(name: str, function: str, **kwargs: Any) -> Contestant:
        factory, repeats = f"{__name__}:{function}", common["launches"]
        return Contestant(name, factory, {**common, **kwargs}, threads=threads, repeats=repeats)

    entries = [ours(EAGER, "eager", device=device)] if precision == "float32" else []
    failed: dict[str, str] = {}
    for name, products in COMPILED.items() if compiled else ():
        # Operands that are bfloat16 already need no dtype.
        dtype = "float32" if precision == "bfloat16" else precision
        setup = {
            **{"inputs": inputs, "dtype": common["dtype"], "path": str(folder / products)},
            "options": {"target": device, "dtype": dtype, "products": products},
        }
        ready, wrong = compiling.compile_all({name: setup}, options.timeout, service=_COMPILER)
        failed |= wrong
        entries += [ours(name, "artifact", path=found["path"]) for found in ready.values()]
    for peer in _peers(workload, device, precision):
        launches = common["launches"]
        entries.append(
            peers.contestant(
                peer, workload, inputs, extents, threads, device=device, launches=launches
            )
        )
    title = f"{NAME} {size}" if precision == "float32" else f"{NAME} {size}, {precision}"
    exact = [workload.reference(extents, arrays)]
    found = contests.run(title, entries, options, exact=exact, precision=precision)
    return {**found, "failed": {**failed, **found["failed"]}}


def _peers(workload: Any, device: str, precision: str) -> list[peers.Peer]:
    """The installed peers of the lab that round as `precision` says."""
    found = [peer for peer in peers.of(workload, device) if not peer.missing]
    if precision == "bfloat16":
        return [replace(peer, precision=precision) for peer in found if peer.name == "PyTorch"]
    return [peer for peer in found if peer.precision == precision]


def _dtype(precision: str) -> str:
    """The dtype of the operands in memory, where TF32 is float32."""
    return "float32" if precision == "tf32" else precision


# The child's side.


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: `compiling.export` of the matmul of saved inputs in a dtype."""
    yield compiling.export(lambda a, b: a @ b, rounded(setup["inputs"], setup["dtype"]), setup)


def rounded(inputs: str, dtype: str) -> list[np.ndarray]:
    """The saved inputs in a dtype."""
    import ml_dtypes

    wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [array.astype(wanted) for array in load_arrays(inputs)]


def artifact(path: str, inputs: str, dtype: str, launches: int) -> Calls:
    """A factory: a compiled matmul."""
    from needle_tvm import runtime

    executor = runtime.load(path).executor
    tensors = executor.convert(rounded(inputs, dtype))

    def call() -> Any:
        for _ in range(launches):
            found = executor.call(tensors)
        executor.synchronize()
        return found

    return call, lambda: [np.asarray(x, np.float32) for x in executor.to_arrays(call())]


def eager(inputs: str, dtype: str, launches: int, device: str) -> Calls:
    """A factory: NDArray's @ on a device."""
    from needle import backend_ndarray as nd

    place = getattr(nd, device)()
    a, b = (nd.array(x, device=place) for x in rounded(inputs, dtype))

    def call() -> Any:
        for _ in range(launches):
            found = a @ b
        place.synchronize()
        return found

    return call, lambda: [np.asarray(call().numpy(), np.float32)]
