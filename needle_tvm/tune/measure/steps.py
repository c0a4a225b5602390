"""Services of tuning's worker processes: prepare a gate, build a candidate, check and time it.

Each service takes a request, a JSON object, and returns a JSON object; `tune.measure.services`
lists the services and `tune.measure.workers` runs them. A module is passed as TVM's JSON text, with
one PrimFunc called "main", and a target as TVM's description.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from needle_runtime.memory import aligned_copy
from needle_tvm._tvm.names import load_module, make_target
from needle_tvm.tune import library
from needle_tvm.tune.gate import reference
from needle_tvm.tune.gate.gate import ORDINARY, Array, Gate, Guarded, Verdict
from needle_tvm.tune.measure.devices import DEVICES, Call, Device

_BLOCKS, _BLOCK_SECONDS = 9, 0.03  # number and duration of the blocks in `compare`
_SLICE = 0.05  # duration of a slice, as a fraction of a candidate's timing


def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the gate of a task.

    request: `module` (the unscheduled function), `target`, `folder`, `seed`. Returns `Gate.facts`:
    {"tolerance", "cases", "reference", "left_out", ...}. Raises TuningError if the function has no
    fixed shapes or writes no result.
    """
    module = load_module(request["module"])
    target = make_target(request["target"])
    return reference.write(module, target, Path(request["folder"]), int(request["seed"]))


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a candidate into a shared library.

    request: `module`, `target`, `path` of the library, and optionally `spills`, the most bytes that
    a GPU thread may spill. Returns {"bytes": size of the library}, or {"unfit": reason}. Raises
    TVM's errors if TVM cannot compile the module, CudaCompilerError if nvcc cannot, and TuningError
    if linking fails.
    """
    module = load_module(request["module"])
    target = make_target(request["target"])
    path = Path(request["path"])
    kernels = library.write(module, target, path)
    most = request.get("spills")
    for kernel in kernels:
        spilled = kernel.spill_stores + kernel.spill_loads
        if most is not None and spilled > most:
            return {"unfit": f"{kernel.kernel}: {spilled} bytes are spilled, of at most {most}"}
    return {"bytes": path.stat().st_size}


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a candidate, and time it if it is correct.

    request: `path` of its library, `gate` (the folder), meta_schedule's `number`, `repeat` and
    `min_repeat_ms`, and the `device` on which it runs: [a key of DEVICES, index], by default the
    CPU. Returns {"run_secs": seconds per call in each repeat, "difference"}, or {"wrong": one line,
    "difference"}. The difference is relative to the result's scale and may be infinite. The results
    computed during the timing are checked too.
    """
    gate = Gate.load(request["gate"])
    device = _device(request)
    code = library.load(Path(request["path"]))
    verdict = check(gate, device, code)
    if not verdict.passed:
        return {"wrong": verdict.wrong, "difference": verdict.difference}
    inputs, outputs, call = _ordinary(gate, device, code)
    number, least = int(request["number"]), 1e-3 * float(request["min_repeat_ms"])
    number = min(max(number, _calls_in(_SLICE * least, call)), call.most_calls)
    seconds = [_repeat(call, number, least) for _ in range(int(request["repeat"]))]
    spilled = call.fetch()
    after = gate.compare(ORDINARY, inputs, outputs)
    difference = max(verdict.difference, after.difference)
    if spilled or not after.passed:
        wrong = after.wrong or f"{ORDINARY}: {spilled}"
        return {"wrong": f"after many calls, {wrong}", "difference": difference}
    return {"run_secs": seconds, "difference": difference}


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Time a candidate against our rule's code, in alternating blocks of calls.

    request: `rule` and `candidate`, paths of libraries, `gate`, and `device` as in `measure`.
    Returns {"speedup": median of rule's time / candidate's time, "quartiles": [lower, upper]}, or
    {"wrong", "difference"} if the candidate does not pass.
    """
    gate = Gate.load(request["gate"])
    device = _device(request)
    rule, candidate = (library.load(Path(request[name])) for name in ("rule", "candidate"))
    verdict = check(gate, device, candidate)
    if not verdict.passed:
        return {"wrong": verdict.wrong, "difference": verdict.difference}
    calls = [_ordinary(gate, device, code)[2] for code in (rule, candidate)]
    ratios = _ratios(*calls)
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"speedup": middle, "quartiles": [lower, upper]}


def check(gate: Gate, device: Device, code: Any) -> Verdict:
    """Check a library's function against the gate on a device."""
    wrong = ""

    def call(inputs: list[Array], outputs: list[Array]) -> None:
        nonlocal wrong
        there = device.call(code, gate, inputs, outputs)
        there.run()
        wrong = there.fetch() or wrong

    verdict = gate.check(call)
    return Verdict(math.inf, wrong) if wrong and verdict.passed else verdict


def _device(request: Mapping[str, Any]) -> Device:
    kind, index = request.get("device", ("cpu", 0))
    return DEVICES[kind](int(index))


def _calls_in(seconds: float, call: Call) -> int:
    """Return a number of calls that take at least `seconds`, or `most_calls`."""
    calls = 1
    while calls < call.most_calls and call.clock(calls) * calls < seconds:
        calls *= 2
    return calls


def _repeat(call: Call, number: int, seconds: float) -> float:
    """Return the seconds per call, over slices of `number` calls that take at least `seconds`.

    TVM's evaluator reaches `min_repeat_ms` by timing more and more calls, and discards its earlier
    timings. On a noisy machine, this takes two or three times as long.
    """
    times: list[float] = []
    while not times or math.fsum(times) * number < seconds:
        times.append(call.evaluate(number))
    return math.fsum(times) / len(times)


def _ordinary(gate: Gate, device: Device, code: Any) -> tuple[list[Array], list[Guarded], Call]:
    """Return inputs and outputs of the ordinary case, and a call on them for timing.

    The inputs are copied: a mapped file would have other memory pages than a model's arrays.
    """
    inputs, outputs = [aligned_copy(each) for each in gate.inputs(ORDINARY)], gate.outputs()
    return inputs, outputs, device.call(code, gate, inputs, [each.array for each in outputs])


def _ratios(rule: Call, candidate: Call) -> list[float]:
    """Return the rule's time / the candidate's time for each pair of alternating blocks."""
    for call in (rule, candidate):
        call.clock(1)
    calls = max(1, int(_BLOCK_SECONDS / max(rule.clock(3), 1e-7)))
    calls = min(calls, rule.most_calls)
    ratios = []
    for number in range(_BLOCKS):
        order = (rule, candidate) if number % 2 else (candidate, rule)
        seconds = {call: call.clock(calls) for call in order}
        ratios.append(seconds[rule] / seconds[candidate])
    return ratios
