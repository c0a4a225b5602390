"""`python -m bench.cpu.compile_threads`: the cores that code generation in threads keeps busy.

Four models are lowered and scheduled. Their libraries are then written one after the other, and by
a thread each. Printed are seconds, the cores in use (seconds of processors, the linker's included,
over seconds), and the threads that could run: those in use, and those that waited for a core, which
other processes had.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import needle as ndl
from apps.models import mobilenet, resnet, transformer
from needle.trace import trace
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.target.spec import resolve

Work = Callable[[], object]


def _works(folder: Path) -> list[Work]:
    target = resolve("cpu").to_tvm()
    works: list[Work] = []
    for batch, make in enumerate((resnet.build, mobilenet.build, transformer.build, resnet.build)):
        model, x = make(1 + batch)
        graph = trace(model.eval(), ndl.Tensor(x))
        module = build.schedule(lowering.lower(graph, target, "tuned"), target, "tuned")
        place = folder / str(batch)
        place.mkdir()
        works.append(lambda module=module, place=place: build.write_library(module, target, place))  # type: ignore[misc]
    return works


def _in_threads(works: Sequence[Work]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one_by_one(works: Sequence[Work]) -> None:
    for work in works:
        _in_threads([work])


def _waited() -> float:
    """Seconds that this process's threads have been ready to run and without a core."""
    tasks = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def _measured(run: Callable[[Sequence[Work]], None], works: Sequence[Work]) -> str:
    waits, lasting = [0.0], threading.Event()

    def watch() -> None:  # while the threads are there
        while not lasting.wait(0.01):
            waits.append(max(waits[-1], _waited()))

    before, watcher = _waited(), threading.Thread(target=watch)
    watcher.start()
    start, began = time.perf_counter(), os.times()
    run(works)
    seconds, ended = time.perf_counter() - start, os.times()
    lasting.set()
    watcher.join()
    used = sum(ended[:4]) - sum(began[:4])
    ready = used + max(waits) - before
    return f"{seconds:5.2f} s, {used / seconds:.2f} cores in use, {ready / seconds:.2f} could run"


def main() -> None:
    """Measure and print."""
    with scratch_folder("needle-bench-") as folder:
        works = _works(folder)
        _one_by_one(works)  # imports, first pages
        load = os.getloadavg()[0]
        for name, run in (("one after the other", _one_by_one), ("in threads", _in_threads)):
            sys.stdout.write(f"{name:20}{_measured(run, works)} (load {load:.1f})\n")


if __name__ == "__main__":
    main()
