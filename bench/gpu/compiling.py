"""Preparing a contest: needle's models compiled, each in a process of its own, and torch.compile
tuned, one after the other.

torch.compile's max-autotune times candidates on the GPU. Where several did so at once, each would
choose by noise, so their tuning is done here in turn; contestants find what it chose in Inductor's
cache. needle compiles with nvcc on the processor meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apps.contestants
from bench.gpu.host import ROOT
from bench.gpu.settings import Settings
from needle_tvm._tvm import versions
from needle_tvm.process.child import Child, ChildError, load_function
from needle_tvm.process.threads import available_cores
from needle_tvm.process.timing import Contestant
from needle_tvm.words import error_line

WORK = ROOT / "build" / "gpu"  # what one call leaves for the next on the same machine
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
SERVICE = f"{__name__}:compile_service"

AT_ONCE = 6  # compilers: nvcc takes a core and some hundred MB each


def compile_all(
    jobs: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    service: str = SERVICE,
    at_once: int = AT_ONCE,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What `service` gives for each of `jobs` by name, several at once, and why the others failed.
    Where compiling measures on the GPU nothing else may: one at once."""
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        # A child ends with the thread that started it, which this one outlives.
        setup = dict(jobs[name])
        try:
            with Child(name, service, setup, timeout=max(settings.left, 1.0)) as child:
                found[name] = child.receive("compile")
        except ChildError as error:
            failed[name] = error_line(error).removeprefix(f"{name}: ")

    with ThreadPoolExecutor(min(at_once, available_cores())) as pool:
        list(pool.map(one, jobs))
    return {name: found[name] for name in jobs if name in found}, failed


def compile_service(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: `export` of the model that `recipe` loads."""
    model, _, tensors = apps.contestants.load_needle(**setup["recipe"])
    model.eval()
    yield export(model, tensors, setup)


def export(model: Any, inputs: Sequence[Any], setup: Mapping[str, Any]) -> dict[str, Any]:
    """Writes what needle_tvm.compile makes of a model to `path`; `options` are compile's. Returns
    the seconds compiling took, what a search did, kernels, and how many bytes of them spill."""
    import needle_tvm
    from needle_tvm.tune.status import summary

    start = time.perf_counter()
    executable = needle_tvm.compile(model, *inputs, **setup["options"])
    seconds = time.perf_counter() - start
    executable.export(setup["path"])
    kernels = executable.manifest.get("kernels") or []
    tuning = executable.manifest.get("tuning")
    return {
        "path": setup["path"],
        "seconds": seconds,
        "search": summary(tuning) if tuning else "",
        "kernels": len(kernels),
        "spilled": sum(kernel["spill_stores"] for kernel in kernels),
        "versions": stamp(),
    }


def stamp() -> dict[str, str]:
    """Versions of needle and of TVM, which only those that import them know."""
    import needle
    from needle_tvm._tvm.names import tvm

    return {"needle": needle.__version__, "TVM": str(tvm.__version__)}


def use_caches() -> None:
    """Lets this process and its children keep what they compile where the next call finds it."""
    from needle_tvm.artifact.cache import CACHE_VARIABLE

    os.environ.setdefault(CACHE_VARIABLE, str(WORK / "cache"))
    os.environ.setdefault(INDUCTOR, str(WORK / "inductor"))


def tune_peers(contestants: Sequence[Contestant], deadline: float) -> dict[str, str]:
    """Has torch.compile tune each of these contestants, one after the other, unless that was done
    before; why the others could not be, by name."""
    notes = Path(os.environ[INDUCTOR], "tuned")
    notes.mkdir(parents=True, exist_ok=True)
    waiting = [c for c in contestants if not (notes / _key(c)).exists()]
    failed: dict[str, str] = {}
    while waiting:
        left = deadline - time.time()
        if left <= 0:
            return failed | {c.name: "torch.compile was not done in time" for c in waiting}
        setup = {"jobs": [[c.name, c.factory, dict(c.kwargs)] for c in waiting]}
        environment = {k: v for c in waiting for k, v in c.env.items()}
        child = Child(
            "torch.compile",
            f"{__name__}:tune_service",
            setup,
            timeout=left,
            environment=environment,
        )
        with child:
            while waiting:
                try:
                    child.receive(waiting[0].name, max(deadline - time.time(), 0.1))
                except ChildError as error:
                    # A GPU whose program failed is lost to its process: the others get a new one.
                    failed[waiting.pop(0).name] = error_line(error).removeprefix(f"{child.name}: ")
                    break
                (notes / _key(waiting.pop(0))).touch()
    return failed


def tune_service(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: calls each contestant a few times, as a contest does at its start."""
    import torch

    for name, factory, kwargs in setup["jobs"]:
        call, outputs = load_function(factory)(**kwargs)
        for _ in range(3):  # compiled, recorded as a CUDA graph, and launched
            call()
        outputs()
        del call, outputs
        torch._dynamo.reset()
        yield {"name": name}


def _key(contestant: Contestant) -> str:
    """Stands for all that decides what torch.compile tunes, paths of scratch folders left out."""
    facts = {k: v for k, v in contestant.kwargs.items() if k not in ("weights", "inputs")}
    text = json.dumps([versions.installed("torch"), contestant.factory, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
