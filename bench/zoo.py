"""Load, compile and time 120 architectures from PyTorch and ONNX, and compare with PyTorch.

    python -m bench.zoo others timm                      # groups, or single models by name
    python -m bench.zoo --steps load eager gradients     # without compiling
    python -m bench.zoo --steps times                    # against other frameworks (make bench-zoo)
    python -m bench.zoo --table                          # the results so far

The models are the 60 of `bench.zoo_models` and the 60 that `bench.zoo_drawn` draws. Each runs in
its own process with a time limit, and appends a line of JSON to zoo.jsonl with each step's result:

- load: `needle.torch.load`; eager: needle's run of the model; onnx: ONNX Runtime's run of the file
  that `needle.onnx.export` writes; gradients: the gradients of the parameters of 30 models
- tuned: `compile_torch`; imported: `compile_onnx` of the file that PyTorch's exporter writes,
  `dynamo` (its default; needs onnxscript) or `torchscript`
- times, only on request: a contest (`bench.contests`) of whole calls of the exported artifact, the
  model in PyTorch, and the frameworks that read its ONNX file; zoo.md is the page of all contests

A result may differ from PyTorch's by 1e-4 of its largest element, and a gradient by 1e-3. Code must
give the same bits after it is exported and loaded again. A refused model counts as wrong. Steps
that already have a right result are skipped, so an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apps.peers
from apps.contestants import SETS
from bench import charts, contests, tables
from bench.cpu import kernels
from bench.zoo_steps import MOST, OURS, STEPS, Found, Subject, groups
from needle_runtime.errors import InstallError, UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.process.child import ChildError

PEERS = ("torch", "torch-compile", "onnxruntime", "openvino")
CHECKS = tuple(step for step in STEPS if step != "times")
NEARLY = 0.95
NOTES = (
    f"{OURS} is the exported artifact, called with NumPy arrays; all take {SETS} sets of inputs in "
    "turn; torch.compile: inductor's C++, max-autotune, weights frozen",
    f"a model that {OURS} refuses, or whose results differ from PyTorch's, counts as 0",
    "roofline: the least time that the kernels need, by arithmetic or traffic at limits measured "
    "with each model, over the time of a call or a kernel; the rest is beyond it. Operations "
    "on padding count; a kernel with operations that TVM cannot count reaches nothing",
)
DIFFERENTIATED = 30


def differentiated() -> set[tuple[str, str]]:
    """Return the models (group, name) whose gradients are compared: drawn with seed 17 from the
    first 100 models."""
    first = {group: models for group, models in groups().items() if group != "drawn timm 20"}
    names = [(group, name) for group, models in first.items() for name in models]
    return set(random.Random(17).sample(names, DIFFERENTIATED))


def measured(group: str, name: str, steps: Sequence[str], options: Mapping[str, Any]) -> Found:
    """Return a model's line of the file: the result of each step, or the reason why it failed."""
    row: Found = {"exporter": options["exporter"]}
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(group, name, Path(folder), argparse.Namespace(**options))
        for step in steps:
            began = time.perf_counter()
            try:
                row[step] = STEPS[step](subject)
            except Exception as error:  # any failure goes into the line
                row[step] = {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
            row[step]["s"] = round(time.perf_counter() - began, 1)
    return row


def is_right(step: str, found: Found) -> bool:
    """Return whether a step of a model gave PyTorch's result."""
    if "fails" in found:
        return False
    return step not in MOST or (found["error"] <= MOST[step] and found.get("reloads", True))


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Found]:
    """As a service, answer with the result of `measured` with the keywords `setup`."""
    yield measured(**setup)


def _in_a_process(group: str, name: str, steps: Sequence[str], asked: argparse.Namespace) -> Found:
    options = {key: value for key, value in vars(asked).items() if key != "out"}
    setup = {"group": group, "name": name, "steps": steps, "options": options}
    try:
        return contests.ask("bench.zoo:serve", setup, asked.limit, name=f"{group}/{name}")
    except ChildError as error:
        return {step: {"fails": str(error)[:400]} for step in steps}


def _known(path: Path) -> dict[str, Found]:
    """Return the latest result of each step of each model."""
    known: dict[str, Found] = {}
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        known.setdefault(row["model"], {}).update(row)
    return known


def table(rows: Mapping[str, Found]) -> str:
    """Return the rows' checks as a table in Markdown, with counts at the end; steps that were never
    requested are left out."""
    steps = [step for step in CHECKS if any(step in row for row in rows.values())]
    if not steps:
        return ""
    body = [
        [name, *(_cell(step, row[step]) if step in row else "" for step in steps)]
        for name, row in rows.items()
    ]
    lines = [tables.markdown_rows([["model", *steps], *body]).rstrip()]
    for step in steps:
        tried = [row for row in rows.values() if step in row or step != "gradients"]
        right = sum(is_right(step, row[step]) for row in tried if step in row)
        lines += ["", f"{step}: {right} of {len(tried)} are right"]
    return "\n".join(lines)


def _cell(step: str, found: Found) -> str:
    if "fails" in found:
        return found["fails"].replace("|", "/")
    if step == "load":
        return f"{found['s']} s"
    reloads = "" if found.get("reloads", True) else ", reloaded otherwise"
    seconds = f", compiled in {found['compile_s']} s" if "compile_s" in found else ""
    return f"{found['error']:.1e}{reloads}{seconds}"


def _ratio(case: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the fastest peer's time over ours; empty without a peer."""
    return case["ratios"][OURS].get(case.get("fastest"), {})


def publish(rows: Mapping[str, Found], folder: Path, missing: Sequence[str]) -> None:
    """Print and write the page, the JSON and the picture of the rows' contests, with the models
    that are furthest behind first. Do nothing without a contest."""
    timed = {name: row["times"] for name, row in rows.items() if "times" in row}
    refused = {name: found["fails"] for name, found in timed.items() if "fails" in found}
    reports = [found for found in timed.values() if "fails" not in found]
    if not reports:
        return
    cases = [case for found in reports for case in found["cases"]]
    cases.sort(key=lambda case: _ratio(case).get("median", math.inf))
    spreads = [each for each in map(_ratio, cases) if each]
    spreads += [{"median": 0.0, "upper": 0.0} for _ in refused]
    medians = [each["median"] for each in spreads] or [math.nan]
    title = (
        f"ahead of the fastest peer on {sum(x > 1 for x in medians)} of {len(spreads)}, upper "
        f"quartile at least {NEARLY} on {sum(each['upper'] >= NEARLY for each in spreads)}; "
        f"median {statistics.median(medians):.2f}, least {min(medians):.2f}"
    )
    left_out = [[name, OURS, why] for name, why in refused.items()]
    left_out += [[case["case"], *each] for case in cases for each in case["failed"].items()]
    left_out = [[cell.replace("|", "/") for cell in row] for row in left_out]
    parts = [(title, tables.summary(cases))]
    parts += [("the kernels that lose most", kernels.table(cases, by="beyond"))]
    parts += [("left out", [["model", "contestant", "reason"], *left_out])] * bool(left_out)
    days = [{**each, "date": each["date"][:10]} for each in reports]
    runs = dict.fromkeys(f"`{each['command']}`: {tables.conditions(each)}" for each in days)
    report = {**reports[-1], "cases": cases, "notes": [*runs, *NOTES, *missing]}
    report["head"] = "![each peer's time over needle's](zoo.png)"
    tables.publish(report, folder, "zoo", parts, charts.draw_ratios)


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.zoo", __doc__.splitlines()[0])
    slow = [peer.name for peer in apps.peers.PEERS.values() if peer.slow]
    parser.set_defaults(strict=False, alone=slow)
    add = parser.add_argument
    add("which", nargs="*", metavar="GROUP|MODEL", help="(all)")
    add("--limit", type=cli.seconds, default=3600.0, metavar="S", help="time limit (%(default)s)")
    add("--steps", nargs="+", choices=STEPS, default=CHECKS, help="steps to run (all but times)")
    keys = [key for key, peer in apps.peers.PEERS.items() if key in PEERS or peer.reads_onnx]
    names = f"peers, of {', '.join(keys)} ({', '.join(PEERS)})"
    add("--peers", nargs="*", choices=keys, default=PEERS, metavar="PEER", help=names)
    newer = importlib.util.find_spec("onnxscript") is not None
    add(
        "--exporter",
        choices=("dynamo", "torchscript"),
        default="dynamo" if newer else "torchscript",
        help="PyTorch's exporter (default: dynamo if onnxscript is installed)",
    )
    add("--table", action="store_true", help="only print the results so far, and write their page")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "-m", "bench.zoo", *given])
    return cli.guarded("bench.zoo", lambda: run(options))


def run(asked: argparse.Namespace) -> int:
    """Run the models that were requested and have no right result yet."""
    if importlib.util.find_spec("torch") is None:
        raise InstallError("the models need PyTorch: pip install torch")
    names = {
        each
        for group, models in groups().items()
        for name in models
        for each in (group, name, f"{group}/{name}")
    }
    unknown = set(asked.which) - names
    if unknown:
        raise UsageError(f"{min(unknown)!r} is neither a group ({', '.join(groups())}) nor a model")
    asked.out.mkdir(parents=True, exist_ok=True)
    lines, missing = asked.out / "zoo.jsonl", []
    chosen = differentiated()
    for group, models in () if asked.table else groups().items():
        package = group.removeprefix("drawn ").split()[0]
        for name in models:
            model = f"{group}/{name}"
            known = _known(lines).get(model, {})
            steps = [
                step
                for step in asked.steps
                if (step != "gradients" or (group, name) in chosen)
                and not (step in known and is_right(step, known[step]))
            ]
            if not steps or (asked.which and not {group, name, model} & set(asked.which)):
                continue
            if package != "others" and importlib.util.find_spec(package) is None:
                missing.append(f"{group}: not installed: pip install {package}")
                break
            row = {"model": model, **_in_a_process(group, name, steps, asked)}
            with lines.open("a") as file:
                file.write(json.dumps(row) + "\n")
            finished = row.get("times", {}).get("cases", ())
            for case in finished:
                tables.print_case(case)
            if not finished:
                print(json.dumps(row), flush=True)
    print(table(_known(lines)))
    publish(_known(lines), asked.out, missing)
    for line in missing:
        print(f"bench.zoo: {line}", file=sys.stderr)
    return cli.OK


if __name__ == "__main__":
    sys.exit(main())
