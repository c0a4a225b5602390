"""Run programs of the campaign on sources that may be mutated; `tests.power.mutations` starts it.

A program that does not call a mutated function cannot find the mutation. If the eager results are
right and the scheduled code equals the code recorded before the mutation, the compiled results are
right too, so nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import needle as ndl
from needle.torch.loading import loaded
from needle.trace import trace
from needle_tvm._tvm.names import structural_hash
from needle_tvm.check.campaign import campaign
from needle_tvm.check.campaign.draw import draw
from needle_tvm.check.campaign.failures import FAILURES
from needle_tvm.check.campaign.judge import GRADIENT, OPS, TORCH, judged
from needle_tvm.check.campaign.program import Program
from needle_tvm.check.campaign.torch import programs as torch_programs
from needle_tvm.check.campaign.torch import recipes as torch_recipes
from needle_tvm.check.campaign.torch.draw import TorchProgram
from needle_tvm.check.campaign.verdicts import FOREIGN, REFUSED, RIGHT, VARIANTS
from needle_tvm.compiler.torch_models import traced
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.target.spec import resolve
from needle_tvm.tune.measure.workers import Workers

KINDS = (OPS, GRADIENT, TORCH)
RECORD = Path("recorded.jsonl")  # in the working directory


class Called:
    """A context that notes the functions of needle called within it, as (file, line).

    Functions called earlier, while modules were imported, are called by every program.
    """

    def __init__(self) -> None:
        self.found: set[tuple[str, int]] = set()
        self._folder = str(Path.cwd()) + "/needle"

    def __enter__(self) -> Called:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._folder):
            self.found.add((code.co_filename, code.co_firstlineno))

    def listed(self) -> list[str]:
        """The functions as FILE:LINE, the file relative to the tree."""
        return sorted(f"{Path(file).relative_to(Path.cwd())}:{line}" for file, line in self.found)


def record(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service: draw a program and record its verdict, its calls and hashes of its scheduled
    code."""
    seed, kind = int(request["seed"]), request["kind"]
    program = torch_recipes.draw(seed) if kind == TORCH else draw(seed, kind == GRADIENT)
    with Called() as called:
        where, verdict, what = _judged_eagerly(program)
        code = _code(program)
    if kind == TORCH and code is None:
        where, verdict, what = _judged(program)  # which says why
    answer = {"program": program.to_json(), "code": code, "called": called.listed()}
    return {"verdict": verdict, "where": where, "what": what, **answer}


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service: judge a program that was recorded."""
    known = recorded()[request["kind"], request["seed"]]
    read = TorchProgram if request["kind"] == TORCH else Program
    program = read.from_json(known["program"])
    where, verdict, what = _judged_eagerly(program)
    if verdict == RIGHT and (known["code"] is None or _code(program) != known["code"]):
        where, verdict, what = _judged(program)
    if verdict == REFUSED and known["code"] is not None:
        verdict = FOREIGN  # what is refused now was compiled
    return {"verdict": verdict, "where": where, "what": what}


def _judged_eagerly(program: Program | TorchProgram) -> tuple[str, str, str]:
    if isinstance(program, TorchProgram):
        return "", RIGHT, ""  # PyTorch is what it is compared with
    return judged(program.load, ())


def _judged(program: Program | TorchProgram) -> tuple[str, str, str]:
    if isinstance(program, TorchProgram):
        answer = torch_programs.judged({"program": program.to_json()})
        return answer["where"], answer["verdict"], answer["what"]
    return judged(program.load)


def _code(program: Program | TorchProgram) -> list[list[str]] | None:
    """For each stage and number of threads, the hash of the scheduled module with its constants,
    and the manifest's inputs and outputs. Returns None if the program cannot be scheduled."""
    found = []
    try:
        for stage, threads in VARIANTS:
            model, inputs = program.load()
            target = resolve("cpu", threads).to_tvm()
            if isinstance(program, TorchProgram):
                graph = traced(loaded(model, inputs, {}))
            else:
                graph = trace(model, *map(ndl.Tensor, inputs))
            signature = lowering.signature(graph)
            module = lowering.lower(graph, target, stage)
            module = build.schedule(module, target, stage)
            found.append([structural_hash(module), repr(signature)])
    except Exception:  # of whatever kind: the whole judge then says what it is
        return None
    return found


def reaching(functions: Sequence[str]) -> list[dict[str, Any]]:
    """The requests for the recorded programs that call one of these functions. Programs that fail
    without a mutation are left out."""
    return [
        {"kind": kind, "seed": seed, "number": entry["number"]}
        for (kind, seed), entry in recorded().items()
        if entry["verdict"] not in FAILURES
        and (not functions or set(functions) & set(entry["called"]))
    ]


_READ: dict[tuple[str, int], dict[str, Any]] = {}


def recorded() -> dict[tuple[str, int], dict[str, Any]]:
    if not _READ:
        for line in RECORD.read_text().splitlines():
            entry = json.loads(line)
            _READ[entry["kind"], entry["seed"]] = entry
    return _READ


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line: prints the verdict on the programs, as JSON, or records them."""
    parser = argparse.ArgumentParser(prog="tests.power.mutated", description=__doc__)
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    parser.add_argument(
        "--function", action="append", default=[], help="FILE:LINE of those mutated"
    )
    options = parser.parse_args(arguments)
    kinds = len(KINDS)
    requests = [
        {"kind": KINDS[i % kinds], "seed": i // kinds, "number": i + 1}
        for i in range(options.programs)
    ]
    if not options.record:
        requests = reaching(options.function)
    service = f"tests.power.mutated:{(record if options.record else check).__name__}"
    found: dict[str, Any] = {"verdict": "survived", "after": None, "what": ""}
    found["reached_by"] = len(requests)
    with Workers(
        "mutations", service, processes=options.processes, limits=campaign.LIMITS
    ) as workers:
        for number, outcome in workers.map(requests):
            answer = {**requests[number], **campaign.answer(outcome)}
            if options.record:
                with RECORD.open("a") as file:
                    file.write(json.dumps(answer) + "\n")
            elif answer["verdict"] in FAILURES:
                found |= {"after": answer["number"], **answer}
                break
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
