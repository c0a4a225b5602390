"""Services of tuning's worker processes: prepare a gate, build a candidate, check and time it.

Each takes one request, a JSON object, and returns one; `needle_tvm.tune.workers` runs them. Modules
travel as TVM's JSON text, with one PrimFunc called "main"; targets as TVM's description.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from needle_tvm import bfloat16
from needle_tvm._tvm import load_module, make_target, tvm
from needle_tvm.ffi import load_ffi
from needle_tvm.memory import aligned_copy
from needle_tvm.tune import library, reference
from needle_tvm.tune.gate import ORDINARY, Array, Gate, Guarded

_MAIN = "main"
_BLOCKS, _BLOCK_SECONDS = 9, 0.03  # of `compare`'s timing
_SLICE = 0.05  # of the time a candidate is timed for: so much at once


def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the gate of a task.

    request: `module` (the unscheduled function), `target`, `folder`, `seed`. Answers with what
    `Gate.facts` holds: {"tolerance", "cases", "reference", "left_out", ...}. Raises TuningError for
    a function without fixed shapes or without a result.
    """
    module = load_module(request["module"])
    target = make_target(request["target"])
    return reference.write(module, target, Path(request["folder"]), int(request["seed"]))


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a candidate into a shared library.

    request: `module`, `target`, `path` of the library. Answers {"bytes": its size}. Raises what
    TVM raises for a module it cannot compile, and TuningError when it cannot be linked.
    """
    module = load_module(request["module"])
    target = make_target(request["target"])
    path = Path(request["path"])
    library.write(module, target, path)
    return {"bytes": path.stat().st_size}


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a candidate, and time it if it is right.

    request: `path` of its library, `gate` (the folder), and meta_schedule's `number`, `repeat` and
    `min_repeat_ms`. Answers {"run_secs": seconds of each repeat, "difference"}, or {"wrong": one
    line, "difference"}; the difference is relative to the result's scale and may be infinite.
    What it computed while it was timed is looked at, too.
    """
    gate = Gate.load(request["gate"])
    code = library.load(Path(request["path"]))
    run = code[_MAIN]
    verdict = gate.check(_caller(gate, run))
    if not verdict.passed:
        return {"wrong": verdict.wrong, "difference": verdict.difference}
    inputs, outputs, tensors = _ordinary(gate)
    number, least = int(request["number"]), 1e-3 * float(request["min_repeat_ms"])
    number = max(number, _calls_in(_SLICE * least, lambda: run(*tensors)))
    evaluator = code.time_evaluator(_MAIN, tvm.cpu(), number=number, repeat=1)
    seconds = [
        _repeat(lambda: float(evaluator(*tensors).results[0]), number, least)
        for _ in range(int(request["repeat"]))
    ]
    after = gate.compare(ORDINARY, inputs, outputs)
    difference = max(verdict.difference, after.difference)
    if not after.passed:
        return {"wrong": f"after many calls, {after.wrong}", "difference": difference}
    return {"run_secs": seconds, "difference": difference}


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Time a candidate against our rule's code, in alternating blocks of calls.

    request: `rule` and `candidate`, paths of libraries, and `gate`. Answers {"speedup": median of
    rule's time / candidate's time, "quartiles": [lower, upper]}, or {"wrong", "difference"} where
    the candidate does not pass.
    """
    gate = Gate.load(request["gate"])
    runs = {name: library.load(Path(request[name]))[_MAIN] for name in ("rule", "candidate")}
    verdict = gate.check(_caller(gate, runs["candidate"]))
    if not verdict.passed:
        return {"wrong": verdict.wrong, "difference": verdict.difference}
    _, _, tensors = _ordinary(gate)
    ratios = _ratios(lambda: runs["rule"](*tensors), lambda: runs["candidate"](*tensors))
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"speedup": middle, "quartiles": [lower, upper]}


def _calls_in(seconds: float, run: Callable[[], object]) -> int:
    """How many calls take at least `seconds`."""
    calls = 1
    while _block(run, calls) * calls < seconds:
        calls *= 2
    return calls


def _repeat(evaluate: Callable[[], float], number: int, seconds: float) -> float:
    """Seconds per call over slices of `number` calls that come to `seconds` together.

    TVM's evaluator reaches `min_repeat_ms` by timing more and more calls, but throws away what it
    has timed before: on a noisy machine as much again, or twice.
    """
    times: list[float] = []
    while not times or math.fsum(times) * number < seconds:
        times.append(evaluate())
    return math.fsum(times) / len(times)


def _caller(gate: Gate, run: Callable[..., object]) -> Callable[[list[Array], list[Array]], object]:
    """`run` as `Gate.check` calls it."""
    ffi = load_ffi()

    def call(inputs: list[Array], outputs: list[Array]) -> None:
        arrays = gate.arguments(inputs, outputs)
        run(*(bfloat16.to_tensor(ffi, array) for array in arrays))

    return call


def _ordinary(gate: Gate) -> tuple[list[Array], list[Guarded], list[Any]]:
    """Inputs and outputs of the ordinary case, and the tensors over them to time a function with.

    The inputs are copied: a file's pages are mapped in another way than memory is for a model.
    """
    ffi = load_ffi()
    inputs, outputs = [aligned_copy(each) for each in gate.inputs(ORDINARY)], gate.outputs()
    arrays = gate.arguments(inputs, [each.array for each in outputs])
    return inputs, outputs, [bfloat16.to_tensor(ffi, array) for array in arrays]


def _ratios(rule: Callable[[], object], candidate: Callable[[], object]) -> list[float]:
    """Rule's time / candidate's time over alternating blocks."""
    for run in (rule, candidate):
        _block(run, 1)
    calls = max(1, int(_BLOCK_SECONDS / max(_block(rule, 3), 1e-7)))
    ratios = []
    for number in range(_BLOCKS):
        order = (rule, candidate) if number % 2 else (candidate, rule)
        seconds = {run: _block(run, calls) for run in order}
        ratios.append(seconds[rule] / seconds[candidate])
    return ratios


def _block(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
