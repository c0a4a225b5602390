"""Measure one candidate in a session on a server: arrays are copied both ways and checked here.

`remote.measure` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from needle_tvm.lower.libraries import about_server
from needle_tvm.tune.gate.gate import ORDINARY, Array, Gate
from needle_tvm.tune.measure.arrays import SPILLED, Arrays


def check_and_time(session: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `remote.measure` without the server's address.

    Exceptions of the candidate and of the session pass through.
    """
    server = json.loads(about_server(session) or "{}")
    gate = Gate.load(request["gate"])
    path = Path(request["path"])
    session.upload(bytearray(path.read_bytes()), path.name)
    library = session.load_module(path.name)
    device = session.cpu(0)
    spilled = False

    def call(inputs: list[Array], outputs: list[Array]) -> None:
        nonlocal spilled
        there = Arrays(device, gate, inputs, outputs)
        library["main"](*there.tensors)
        spilled |= there.fetch()

    verdict = gate.check(call)
    if verdict.passed:
        outputs = gate.outputs()
        inputs, results = gate.inputs(ORDINARY), [each.array for each in outputs]
        there = Arrays(device, gate, inputs, results)
        evaluator = library.time_evaluator(
            "main",
            device,
            number=int(request["number"]),
            repeat=int(request["repeat"]),
            min_repeat_ms=int(request["min_repeat_ms"]),
        )
        times = evaluator(*there.tensors).results
        spilled |= there.fetch()
        before, verdict = verdict, gate.compare(ORDINARY, inputs, outputs)
        verdict = replace(verdict, difference=max(before.difference, verdict.difference))
        if not verdict.passed:
            verdict = replace(verdict, wrong=f"after many calls, {verdict.wrong}")
    answer = {"difference": verdict.difference, "server": server}
    wrong = verdict.wrong or (SPILLED if spilled else "")
    if wrong:
        return {**answer, "wrong": wrong}
    return {**answer, "run_secs": [float(seconds) for seconds in times]}
