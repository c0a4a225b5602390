"""Compile a model in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apps.contestants

SERVICE = f"{__name__}:serve"


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
