"""Compile a model in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apps.contestants

SERVICE = f"{__name__}:serve"


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, compile the model that `recipe` (see `Subject.recipe`) loads, with the keywords
    `options` of needle_tvm.compile, and export it to `path`.

    The answer has the path, the scheduled script, and two times in seconds: `compile` is the whole
    time with TVM's import; `check` is the part after the code was finished, which is spent
    comparing the code with the model and loading it.
    """
    model, _, tensors = apps.contestants.load_needle(**setup["recipe"])
    model.eval()
    reports: list[float] = []  # the time of each progress report; the last one is the comparison's
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
