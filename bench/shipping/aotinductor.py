"""AOTInductor: a model's package with frozen weights, and the package as a contestant."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from apps import torch_peers
from apps.contestants import calls, fresh
from needle_runtime.process.timing import Calls, load_arrays


def export(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, compile a model and write the package to `path`; the rest of `setup` loads
    the model (see torch_peers.load)."""
    path = setup.pop("path")
    net, (tensors, *_) = torch_peers.load(**setup)
    settings = {"freezing": True, "max_autotune": True}
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{path}.cache"
    with warnings.catch_warnings(), torch.no_grad():  # freezing needs no_grad
        warnings.simplefilter("ignore")
        exported = torch.export.export(net.eval(), tuple(tensors))
        torch._inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=settings
        )
    yield {"path": path}


def called(package: str, inputs: str, threads: int) -> Calls:
    """Return a contestant that calls the package on tensors, in inference mode. The runner is for
    calls from one thread and takes no locks."""
    torch.set_num_threads(threads)
    runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
    sets = [[torch.from_numpy(array) for array in arrays] for arrays in fresh(load_arrays(inputs))]

    def call(tensors: list[Any]) -> Any:
        with torch.inference_mode():
            return runner(*tensors)

    return calls(call, sets)
