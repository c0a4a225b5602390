"""Programs of the campaign on sources that may have been mutated: see `benchmarks.mutations`.

Where eager results are right and the code that is scheduled is what the sources gave before, its
results are too: most programs need no compiler to find nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import needle as ndl
from needle.trace import trace
from needle_tvm import build
from needle_tvm._tvm import structural_hash
from needle_tvm.check import campaign
from needle_tvm.check.draw import draw
from needle_tvm.check.failures import FAILURES
from needle_tvm.check.judge import GRADIENT, OPS, judged
from needle_tvm.check.program import Program
from needle_tvm.check.verdicts import FOREIGN, REFUSED, RIGHT, VARIANTS
from needle_tvm.target import resolve
from needle_tvm.tune.workers import Workers

KINDS = (OPS, GRADIENT)
RECORD = Path("recorded.jsonl")  # in the working directory


def record(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service: a program, and what stands for its code at every stage."""
    program = draw(int(request["seed"]), gradient=request["kind"] == GRADIENT)
    answer = {"program": program.to_json(), "code": _code(program)}
    return {"verdict": RIGHT, "where": "", "what": "", **answer}


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service: the verdict on a program that was recorded."""
    known = _recorded()[request["kind"], request["seed"]]
    program = Program.from_json(known["program"])
    where, verdict, what = judged(program.load, ())
    if verdict == RIGHT and (known["code"] is None or _code(program) != known["code"]):
        where, verdict, what = judged(program.load)
    if verdict == REFUSED and known["code"] is not None:
        verdict = FOREIGN  # what is refused now was compiled
    return {"verdict": verdict, "where": where, "what": what}


def _code(program: Program) -> list[list[str]] | None:
    """Of each stage and number of threads: hashes of the scheduled module, with its constants, and
    what the manifest says of inputs and outputs. None where that cannot be made."""
    found = []
    try:
        for stage, threads in VARIANTS:
            model, inputs = program.load()
            graph = trace(model, *map(ndl.Tensor, inputs))
            target = resolve("cpu", threads).to_tvm()
            module = build.schedule(build.lower(graph, target, stage), target, stage)
            found.append([structural_hash(module), repr(build.signature(graph))])
    except Exception:  # of whatever kind: the whole judge then says what it is
        return None
    return found


_READ: dict[tuple[str, int], dict[str, Any]] = {}


def _recorded() -> dict[tuple[str, int], dict[str, Any]]:
    if not _READ:
        for line in RECORD.read_text().splitlines():
            entry = json.loads(line)
            _READ[entry["kind"], entry["seed"]] = entry
    return _READ


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line: prints the verdict on the programs, as JSON, or records them."""
    parser = argparse.ArgumentParser(prog="benchmarks.mutated", description=__doc__)
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    requests = [{"kind": KINDS[i % 2], "seed": i // 2} for i in range(options.programs)]
    service = f"benchmarks.mutated:{(record if options.record else check).__name__}"
    found: dict[str, Any] = {"verdict": "survived", "after": None, "what": ""}
    with Workers(
        "mutations", service, processes=options.processes, limits=campaign.LIMITS
    ) as workers:
        for done, (number, outcome) in enumerate(workers.map(requests), 1):
            answer = {**requests[number], **campaign.answer(outcome)}
            if options.record:
                with RECORD.open("a") as file:
                    file.write(json.dumps(answer) + "\n")
            elif answer["verdict"] in FAILURES:
                found = {"after": done, **answer}
                break
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
