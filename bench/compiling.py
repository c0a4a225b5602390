"""Compile models in processes of their own: the compiler may crash there, or take too long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apps.contestants
from needle_tvm.process.child import Child, ChildError
from needle_tvm.process.threads import available_cores
from needle_tvm.text import error_line

SERVICE = f"{__name__}:serve"
AT_ONCE = 6  # compilers beside each other: nvcc takes a core and some hundred MB each


def compile_one(
    name: str,
    setup: Mapping[str, Any],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    service: str = SERVICE,
) -> dict[str, Any]:
    """The answer of `service` to a setup (see `serve`). Raises ChildError if it fails."""
    with Child(name, service, setup, timeout=timeout, environment=environment) as child:
        return child.receive("compile")


def compile_all(
    setups: Mapping[str, Mapping[str, Any]],
    timeout: float,
    at_once: int = AT_ONCE,
    service: str = SERVICE,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The answers to the setups by name, and the reasons of those that failed.

    With `at_once` 1 one compiles after the other, as measuring needs that a compiler does itself.
    """
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        try:
            found[name] = compile_one(name, setups[name], timeout, service=service)
        except ChildError as error:
            failed[name] = error_line(error).removeprefix(f"{name}: ")
            sys.stderr.write(f"not compiled: {name}: {failed[name]}\n")

    workers = min(at_once, available_cores())
    with ThreadPoolExecutor(workers) as pool:  # a child ends with the thread that started it
        list(pool.map(one, setups))
    return {name: found[name] for name in setups if name in found}, failed


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: `export` of the model that `recipe` (see `Subject.recipe`) loads."""
    model, _, tensors = apps.contestants.load_needle(**setup["recipe"])
    model.eval()
    yield export(model, tensors, setup)


def export(model: Any, inputs: Sequence[Any], setup: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a model with the keywords `options` of needle_tvm.compile, export it to `path`.

    Returns the path, the scheduled script, what a search did, the number of GPU kernels and the
    bytes they spill, and the seconds of compiling, TVM's import included: all of them (`compile`)
    and those after the code was there (`check`: compared with the model, and loaded).
    """
    import needle_tvm
    from needle_tvm.tune.status import summary

    reports: list[float] = []  # when each came; the last one is that of the comparison
    start = time.perf_counter()
    executable = needle_tvm.compile(
        model,
        *inputs,
        **setup["options"],
        progress=lambda *_: reports.append(time.perf_counter()),
    )
    end = time.perf_counter()
    executable.export(setup["path"])
    kernels = executable.manifest.get("kernels") or []
    tuning = executable.manifest.get("tuning")
    return {
        "path": setup["path"],
        "compile": end - start,
        "check": end - reports[-1] if reports else 0.0,
        "script": executable.script,
        "search": summary(tuning) if tuning else "",
        "kernels": len(kernels),
        "spilled": sum(kernel["spill_stores"] for kernel in kernels),
    }
