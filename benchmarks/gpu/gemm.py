"""One square matrix product: what needle compiles and PyTorch (cuBLAS), in every precision.

A call is several products in a row and one wait for the last: a product of bfloat16 takes little
longer than the wait. Operands lie on the device in the precision that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import apps.peers
from benchmarks.gpu import compiling, contest
from benchmarks.gpu.settings import PRECISIONS, Settings, named
from benchmarks.products import operands
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import available_cores
from needle_tvm.process.timing import Contestant
from needle_tvm.stages import MEASURED
from needle_tvm.stages import OWN as OWN_KERNELS

Made = tuple[Callable[[], object], Callable[[], list[np.ndarray]]]

PRODUCTS = 20  # of a call, in a row
OWN, CHOSEN, EAGER, TORCH = "needle, own kernel", "needle, chosen", "needle eager", "PyTorch"

_PRODUCTS = {OWN: OWN_KERNELS, CHOSEN: MEASURED}


def measure(size: int, settings: Settings) -> dict[str, Any]:
    """`contest.run`'s JSON values; times are those of one product. Own kernels and what the
    compiler chose, with a library of the GPU's maker among its choices, stand apart."""
    compiling.use_caches()
    size = settings.extent(size)
    with scratch_folder("needle-gpu-") as folder:
        ready: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        for name, by_whom in _PRODUCTS.items():
            jobs = {
                named(name, precision): {
                    "recipe": {"size": size, "dtype": _dtype(precision)},
                    "options": _options(precision, by_whom, settings),
                    "path": str(folder / named(name, precision).replace(" ", "-")),
                }
                for precision in PRECISIONS
            }
            at_once = 1 if by_whom == MEASURED else compiling.AT_ONCE
            compiled, not_compiled = compiling.compile_all(jobs, settings, COMPILER, at_once)
            ready |= compiled
            failed |= not_compiled
        a, b = (x.astype(np.float64) for x in operands(size))
        exact = [a @ b]
        told = {"size": size, "operations": 2 * size**3, "compiled": ready}
        entries = _entries(size, ready, settings)
        found = contest.run(entries, exact, settings)
        for entry in found["contestants"]:
            for key in ("median", "lower_quartile", "upper_quartile"):
                entry[key] /= PRODUCTS
            entry["blocks"] = [seconds / PRODUCTS for seconds in entry["blocks"]]
        if "torch" in apps.peers.PEERS["torch"].missing:
            failed[TORCH] = "not installed: torch"
        return {**told, **contest.gather(found, failed)}


def _options(precision: str, by_whom: str, settings: Settings) -> dict[str, Any]:
    """Keywords of needle_tvm.compile. Operands that are bfloat16 already need no dtype."""
    asked = "float32" if precision == "bfloat16" else precision
    return {"target": settings.device, "dtype": asked, "products": by_whom}


def _dtype(precision: str) -> str:
    """Of the operands: tf32 has no form in memory."""
    return "float32" if precision == "tf32" else precision


def _entries(
    size: int, ready: dict[str, dict[str, Any]], settings: Settings
) -> list[contest.Entry]:
    threads, device = available_cores(), settings.device

    def entry(name: str, precision: str, function: str, ours: bool, **kwargs: Any) -> contest.Entry:
        given = {"size": size, "dtype": _dtype(precision), **kwargs}
        one = Contestant(name, f"{__name__}:{function}", given, threads=threads)
        return contest.Entry(one, precision, ours)

    found = [entry(EAGER, "float32", "eager", True, device=device)]
    for precision in PRECISIONS:
        for name in _PRODUCTS:
            title = named(name, precision)
            if title in ready:
                found.append(entry(title, precision, "artifact", True, path=ready[title]["path"]))
        if apps.peers.PEERS["torch"].missing or (settings.rehearsal and precision == "tf32"):
            continue
        kwargs = {"device": device, "tf32": precision == "tf32"}
        found.append(entry(named(TORCH, precision), precision, "torch_product", False, **kwargs))
    return found


# The children's side.

COMPILER = f"{__name__}:compile_product"


def compile_product(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As `compiling.compile_service`, of a matrix product."""
    yield compiling.export(lambda a, b: a @ b, rounded(**setup["recipe"]), setup)


def rounded(size: int, dtype: str) -> list[np.ndarray]:
    """The operands in a dtype."""
    import ml_dtypes

    wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [x.astype(wanted) for x in operands(size)]


def artifact(path: str, size: int, dtype: str) -> Made:
    """An exported product."""
    from needle_tvm import runtime

    executor = runtime.load(path).executor
    tensors = executor.convert(rounded(size, dtype))
    return _repeated(lambda: executor.call(tensors), executor.synchronize, executor.to_arrays)


def eager(size: int, dtype: str, device: str) -> Made:
    """NDArray's @ on a device."""
    from needle import backend_ndarray as nd

    place = getattr(nd, device)()
    a, b = (nd.array(x, device=place) for x in rounded(size, dtype))
    return _repeated(lambda: a @ b, place.synchronize, lambda found: [found.numpy()])


def torch_product(size: int, dtype: str, device: str, tf32: bool) -> Made:
    """PyTorch's matmul in inference mode."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.from_numpy(x).to(device, getattr(torch, dtype)) for x in operands(size))

    def product() -> Any:
        with torch.inference_mode():
            return torch.matmul(a, b)

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return _repeated(product, wait, lambda found: [found.float().cpu().numpy()])


def _repeated(
    product: Callable[[], Any],
    wait: Callable[[], None],
    to_numpy: Callable[[Any], Sequence[np.ndarray]],
) -> Made:
    def call() -> Any:
        for _ in range(PRODUCTS):
            found = product()
        wait()
        return found

    return call, lambda: [np.asarray(x, np.float32) for x in to_numpy(call())]
