"""A pool of processes for work that may crash, hang, or use up memory. This module imports no TVM.

`bench` uses it to build and run candidates. Each request runs in its own process, forked from one
that has already imported the function's module. So a request needs no import, and requests cannot
affect one another. `template` describes the processes, and `forked` the work of a child.
"""

from __future__ import annotations

import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from needle_runtime.process.child import Child, ChildError
from needle_runtime.process.scratch import scratch_folder
from needle_tvm.errors import TuningError
from needle_tvm.tune.measure.forked import CRASH, ERROR, MEMORY, OK, TIMEOUT

__all__ = ["CRASH", "ERROR", "MEMORY", "OK", "TIMEOUT", "Limits", "Outcome", "Runner", "Workers"]

_START_SECONDS = 300.0  # limit for importing the function's module on a busy machine
_SILENT_SECONDS = 10.0  # a template that has work and stays silent for this long is given up
_STARTS = 3  # the most templates in a row that may end before they have started any request

# OpenBLAS starts its threads when it is loaded, and the template must have only one.
_THREADED_AT_IMPORT = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class Limits:
    """The limits of one request: wall-clock seconds and bytes of memory.

    Memory is the resident size of all the request's processes. It includes memory shared with the
    template (about 80 MB after an import of TVM).

    Raises ValueError for values that are not positive and finite.
    """

    seconds: float
    memory: int

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("memory", self.memory)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value}: must be positive and finite")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    `kind` is OK (`value` is the function's return value), ERROR (the function raised an exception),
    CRASH (its process ended without an answer), TIMEOUT or MEMORY (the process was killed at a
    limit, or an allocation failed). The first line of `detail` describes the failure; after a
    crash, the last printed lines follow. `seconds` is the time from the start of the process to its
    end.
    """

    kind: str
    value: Any = None
    detail: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether `value` is the function's return value."""
        return self.kind == OK


R = TypeVar("R", bound="Runner")


class Runner(ABC):
    """The interface for running requests, which `Workers` and `cluster.Cluster` implement."""

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(*error)

    def call(self, request: Mapping[str, Any], limits: Limits | None = None) -> Outcome:
        """Run one request; `limits` replaces the runner's own."""
        ((_, outcome),) = self.map([request], limits)
        return outcome

    @abstractmethod
    def map(
        self,
        requests: Sequence[Mapping[str, Any]],
        limits: Limits | None = None,
        processes: int | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (index of the request, outcome) for each request as it ends.

        `limits` and `processes` (how many run at once on this machine) replace the runner's own.
        """

    @abstractmethod
    def close(self, *error: object) -> None:
        """End all processes; takes the arguments of `__exit__`."""


class Workers(Runner):
    """Runs a function on requests, each in its own process, with up to `processes` at once. Works
    only on Linux.

    `function` is "package.module:function": it takes a request (a JSON object) and returns a JSON
    value. `limits` apply to each request, and `name` appears in errors. `environment` is set in
    the processes in addition to this process's variables (OpenBLAS still gets only one thread,
    because it starts its threads when it is imported). Temporary files go to a folder that is
    removed when the request ends. Whatever a request does to its process, it has exactly one
    outcome, and its processes end with the request, with `close`, or with this process.

    Only one `map` may run at a time. `map` and `call` raise TuningError if the function's module
    cannot be imported, and ValueError for bad arguments.
    """

    def __init__(
        self,
        name: str,
        function: str,
        *,
        processes: int,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise TuningError(f"{name}: worker processes need Linux, this is {sys.platform}")
        if processes < 1:
            raise ValueError(f"processes={processes}: must be at least 1")
        self.name = name
        self._function, self._processes, self._limits = function, processes, limits
        self._environment = dict(environment or {})
        self._child: Child | None = None
        self._ready = False
        self._mapping = False
        self._closed = False
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(scratch_folder("needle-workers-"))
        self._stack.callback(self._stop)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def map(
        self,
        requests: Sequence[Mapping[str, Any]],
        limits: Limits | None = None,
        processes: int | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (index of the request, outcome) for each request as it ends.

        `limits` and `processes` replace the pool's own. Other requests go on while the caller
        handles an outcome. If the caller leaves the loop early, unfinished requests are killed.
        Raises TypeError for a request that is not a JSON object.
        """
        if self._closed:
            raise ValueError(f"{self.name}: the workers are closed")
        if self._mapping:
            raise ValueError(f"{self.name}: another map is under way")
        allowed = limits or self._limits
        messages = {}
        for number, request in enumerate(requests):
            try:
                json.dumps(dict(request))
            except (TypeError, ValueError) as error:
                raise TypeError(f"request {number} is not a JSON object: {error}") from None
            messages[number] = {
                "id": number,
                "request": dict(request),
                "seconds": allowed.seconds,
                "memory": int(allowed.memory),
                "processes": processes or self._processes,
            }
        return self._map(messages)

    def close(self, *error: object) -> None:
        """End all processes. Takes the arguments of `__exit__` and ignores them."""
        self._closed = True
        self._stack.close()

    def _map(self, pending: dict[int, dict[str, Any]]) -> Iterator[tuple[int, Outcome]]:
        self._mapping = True
        fruitless = 0
        try:
            while pending:
                started: set[int] = set()
                begun = False
                try:
                    for number, outcome in self._serve(pending, started):
                        begun = True
                        del pending[number]
                        started.discard(number)
                        yield number, outcome
                except ChildError as error:
                    ready = self._ready
                    self._stop()
                    fruitless = 0 if begun or started else fruitless + 1
                    if not ready or fruitless == _STARTS:
                        raise _failure(error) from error
                    for number in sorted(started):
                        del pending[number]
                        yield number, Outcome(CRASH, detail=f"the workers failed: {error}")
        finally:
            self._mapping = False
            if pending:
                self._stop()

    def _serve(
        self, pending: Mapping[int, dict[str, Any]], started: set[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Send all pending requests to one template, and yield its outcomes."""
        child = self._child or self._start()
        if not self._ready:
            child.receive("start", timeout=_START_SECONDS)
            self._ready = True
        left = set(pending)
        failed: ChildError | None = None
        try:
            for message in list(pending.values()):
                child.send(**message)
        except ChildError as error:
            failed = error
        while left:
            # If the template accepts no messages, only read the answers it has already sent.
            try:
                answer = child.receive("a request", timeout=0 if failed else _SILENT_SECONDS)
            except ChildError as error:
                raise failed or error from None
            if "started" in answer:
                started.add(answer["started"])
            elif "id" in answer:
                number = answer.pop("id")
                left.remove(number)
                yield number, Outcome(**answer)

    def _start(self) -> Child:
        loaded = self._environment.get(_THREADED_AT_IMPORT, os.environ.get(_THREADED_AT_IMPORT))
        temporary = {"TMPDIR": str(self._folder)}
        self._ready = False
        self._child = Child(
            self.name,
            "needle_tvm.tune.measure.template:serve",
            {
                "function": self._function,
                "environment": {**self._environment, _THREADED_AT_IMPORT: loaded, **temporary},
                "folder": str(self._folder),
            },
            timeout=_SILENT_SECONDS,
            environment={**self._environment, _THREADED_AT_IMPORT: "1", **temporary},
        )
        return self._child

    def _stop(self) -> None:
        """End the template; the guard above it kills all processes below it."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ChildError):
                child.close()


def _failure(error: ChildError) -> TuningError:
    lines = [str(error), *error.details.splitlines()[-5:]]
    return TuningError("\n".join(lines))
