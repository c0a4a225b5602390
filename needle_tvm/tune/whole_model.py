"""Time the whole model with our rules' schedules and with the search's, and say which to keep.

The search chooses kernels one by one. It times each kernel alone, with its operands where the last
call left them. In a model, kernels evict each other's data from caches, so the compiler times the
whole model before it keeps a search's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import needle_runtime
from needle_runtime.artifact.layout import PARAMS
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant, Outputs, contest, ratio
from needle_runtime.random_inputs import random_inputs

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.target.spec import TargetSpec

RULES, TUNED = "rules", "tuned"

_ROUNDS = 9
_BLOCK_SECONDS = 0.05
_IDLE_SECONDS = 0.05  # pause after which the other process's thread pool sleeps


def compare(
    modules: Mapping[str, IRModule],
    signature: dict[str, Any],
    params: Mapping[str, np.ndarray[Any, Any]],
    spec: TargetSpec,
    target: Target,
) -> dict[str, Any]:
    """Time the scheduled `modules` of one model, named RULES and TUNED, and say which to keep.

    Each runs in its own process, in alternating blocks. In the result, `ratio` is the time of RULES
    over the time of TUNED: lower quartile, median, upper quartile. TUNED is kept if the median is
    at least 1. Raises TimingError if one of them does not run.
    """
    with scratch_folder("needle-whole-") as folder:
        contestants = []
        for name in (RULES, TUNED):
            path = folder / name
            path.mkdir()
            _write(path, modules[name], signature, params, spec, target)
            arguments = {"path": str(path), "device": spec.index}
            factory = f"{__name__}:contestant"
            contestants.append(Contestant(name, factory, arguments, threads=spec.threads))
        rules, tuned = contest(
            contestants,
            rounds=_ROUNDS,
            block_seconds=_BLOCK_SECONDS,
            idle_seconds=_IDLE_SECONDS,
        )
    spread = ratio(tuned, rules)
    return {
        "rules_seconds": rules.median,
        "tuned_seconds": tuned.median,
        "ratio": [spread.lower, spread.median, spread.upper],
        "kept": TUNED if spread.median >= 1 else RULES,
    }


def contestant(path: str, device: int) -> tuple[Callable[[], object], Callable[[], Outputs]]:
    """Load an artifact in the timed process. Return a function that runs one inference on random
    inputs to its end, and a function that returns the outputs."""
    program = needle_runtime.load(path, device=device)
    executor = program.executor
    tensors = executor.convert(random_inputs(program.artifact))

    def infer() -> None:
        executor.call(tensors)
        executor.synchronize()

    return infer, (lambda: executor.to_arrays(executor.call(tensors)))


def _write(
    path: Path,
    module: IRModule,
    signature: dict[str, Any],
    params: Mapping[str, np.ndarray[Any, Any]],
    spec: TargetSpec,
    target: Target,
) -> None:
    from safetensors.numpy import save_file

    from needle_tvm.lower import build

    build.write_library(module, target, path)
    save_file({n: np.asarray(a, order="C") for n, a in params.items()}, path / PARAMS)
    write_manifest(path, build.describe(signature, module, spec, target, {}))
