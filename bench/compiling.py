"""Compile models in processes of their own: the compiler may crash there, or take too long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import apps.contestants
from needle_tvm.process.child import Child

SERVICE = f"{__name__}:serve"


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


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: compile the model that `recipe` (see `Subject.recipe`) loads with the keywords
    `options` of needle_tvm.compile, export it to `path`.

    The answer has the path, the scheduled script, and the seconds of compiling, TVM's import
    included: all of them (`compile`) and those after the code was there (`check`: compared with the
    model, and loaded).
    """
    model, _, tensors = apps.contestants.load_needle(**setup["recipe"])
    model.eval()
    reports: list[float] = []  # when each came; the last one is that of the comparison
    start = time.perf_counter()
    import needle_tvm

    executable = needle_tvm.compile(
        model,
        *tensors,
        **setup["options"],
        progress=lambda *_: reports.append(time.perf_counter()),
    )
    end = time.perf_counter()
    executable.export(setup["path"])
    yield {
        "path": setup["path"],
        "compile": end - start,
        "check": end - reports[-1] if reports else 0.0,
        "script": executable.script,
    }
