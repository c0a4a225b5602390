"""One candidate in a session on a server: its arrays are copied to and fro and compared here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm import bfloat16
from needle_tvm._tvm import about_server, remote_view, tvm
from needle_tvm.memory import aligned_copy
from needle_tvm.tune.gate import ORDINARY, Array, Gate

_GUARD, _UNWRITTEN = 16 << 10, 0xFF  # bytes behind a result, and what each is


def check_and_time(session: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """What `remote.measure` answers, without the server's address. What the candidate or the
    session raises passes through."""
    server = json.loads(about_server(session) or "{}")
    gate = Gate.load(request["gate"])
    path = Path(request["path"])
    session.upload(bytearray(path.read_bytes()), path.name)
    library = session.load_module(path.name)
    device = session.cpu(0)
    spilled = False

    def call(inputs: list[Array], outputs: list[Array]) -> None:
        nonlocal spilled
        there = _Arrays(device, inputs, outputs)
        library["main"](*gate.arguments(there.inputs, there.outputs))
        spilled |= there.fetch()

    verdict = gate.check(call)
    if verdict.passed:
        outputs = gate.outputs()
        inputs, results = gate.inputs(ORDINARY), [each.array for each in outputs]
        there = _Arrays(device, inputs, results)
        evaluator = library.time_evaluator(
            "main",
            device,
            number=int(request["number"]),
            repeat=int(request["repeat"]),
            min_repeat_ms=int(request["min_repeat_ms"]),
        )
        times = evaluator(*gate.arguments(there.inputs, there.outputs)).results
        spilled |= there.fetch()
        before, verdict = verdict, gate.compare(ORDINARY, inputs, outputs)
        verdict = replace(verdict, difference=max(before.difference, verdict.difference))
        if not verdict.passed:
            verdict = replace(verdict, wrong=f"after many calls, {verdict.wrong}")
    answer = {"difference": verdict.difference, "server": server}
    wrong = verdict.wrong or ("memory behind an output was written" if spilled else "")
    if wrong:
        return {**answer, "wrong": wrong}
    return {**answer, "run_secs": [float(seconds) for seconds in times]}


class _Arrays:
    """A call's arrays copied to a server, each output with a guard behind it.

    There is none before it: compiled functions take arrays only from the start of their memory.
    """

    def __init__(self, device: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._here = [bfloat16.to_tensor(tvm.runtime, array) for array in inputs]
        self.inputs = [_copy(tensor, device) for tensor in self._here]
        self._results = list(outputs)
        self._memory = [aligned_copy(_guarded(array)) for array in outputs]
        self._there = [_copy(bfloat16.to_tensor(tvm.runtime, m), device) for m in self._memory]
        self.outputs = [
            remote_view(memory, array.shape, array.dtype.name)
            for memory, array in zip(self._there, outputs, strict=True)
        ]

    def fetch(self) -> bool:
        """Copy all back, the inputs, which may have been changed, too; whether a guard was."""
        for here, there in zip(self._here, self.inputs, strict=True):
            there.copyto(here)
        changed = False
        for result, memory, there in zip(self._results, self._memory, self._there, strict=True):
            there.copyto(bfloat16.to_tensor(tvm.runtime, memory))
            result.reshape(-1).view(np.uint8)[...] = memory[: result.nbytes]
            changed |= bool((memory[result.nbytes :] != _UNWRITTEN).any())
        return changed


def _guarded(array: Array) -> Array:
    bytes_ = array.reshape(-1).view(np.uint8)
    return np.concatenate([bytes_, np.full(_GUARD, _UNWRITTEN, np.uint8)])


def _copy(tensor: Any, device: Any) -> Any:
    return tensor.copyto(tvm.runtime.empty(tensor.shape, str(tensor.dtype), device))
