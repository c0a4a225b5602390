"""`make gpu-bench`: the sections one after the other until the deadline, written after each."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu import host, sections
from bench.gpu.host import ROOT, Gpu, Refusal

_MOST_SECONDS = 300.0  # of a section
_LEAST_SECONDS = 20.0  # the processes of a section are not even up within less


def run(options: argparse.Namespace, gpu: Gpu, deadline: float) -> int:
    """Measure the sections that `options` ask for and write the results.

    Returns 1 if nothing was measured. Raises Refusal if the results cannot be written, or those to
    go on with not be read.
    """
    from bench.tables import print_rows
    from needle_tvm.errors import UsageError
    from needle_tvm.process.child import Child, ChildError
    from needle_tvm.process.command_line import check_writable
    from needle_tvm.words import error_line

    result = new_result(options, gpu)
    out = ROOT / options.out
    stem = f"{result['date'][:10]}-gpu-{gpu.slug}"
    try:
        check_writable(out / f"{stem}.json")
    except UsageError as error:
        raise Refusal(f"--out {error}") from error
    if options.resume:
        take_over(result, options.resume)
    kept = set(result["sections"])
    wanted = [name for name in sections.chosen(options.only) if name not in kept]
    result["not_measured"] = dict.fromkeys(wanted, "it was not begun")
    for name in wanted:
        seconds = min(deadline - time.time(), _MOST_SECONDS)
        if seconds < _LEAST_SECONDS:
            result["not_measured"][name] = "no time was left"
            continue
        print(f"{name}: up to {seconds:.0f} s", flush=True)
        setup = {"name": name, "rounds": options.rounds, "rehearse": options.rehearse}
        try:
            with Child(name, f"{sections.__name__}:serve", setup, timeout=seconds) as child:
                result["sections"][name] = child.receive("section")
            del result["not_measured"][name]
        except ChildError as error:
            print(error.details)
            result["not_measured"][name] = error_line(error).removeprefix(f"{name}: ")
        write(result, out, stem)
    for title, rows in write(result, out, stem):
        print_rows(title, rows)
    print("\n".join(notes(result)), f"wrote {out / stem}.json, .md", sep="\n")
    return 0 if set(result["sections"]) - kept or not wanted else 1


def new_result(options: argparse.Namespace, gpu: Gpu) -> dict[str, Any]:
    """A report without sections."""
    from bench import contests

    conditions = sections.conditions(options.rounds, options.rehearse)
    result = contests.new_report(conditions, "mlp", sections.PEERS)
    result["machine"]["processor"] = f"{gpu.name} ({gpu.architecture}), driver {gpu.driver}"
    given = f' ARGS="{options.given}"' if options.given else ""
    result |= {"command": f"make gpu-bench{given}", "rehearsal": options.rehearse}
    return {**result, "versions": host.versions(), "sections": {}, "not_measured": {}}


def take_over(result: dict[str, Any], path: Path) -> None:
    """Put the sections of an earlier call into a result.

    Raises Refusal if they cannot be read, or were measured on another GPU or with other versions.
    """
    try:
        earlier = json.loads((ROOT / path).read_text())
        found, versions = earlier["sections"], earlier["versions"]
        theirs = {"GPU": earlier["machine"]["processor"], **versions}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"--resume {path}: {error!r}") from error
    ours = {"GPU": result["machine"]["processor"], **result["versions"]}
    for what, value in ours.items():
        if what != "system" and theirs.get(what) != value:
            raise Refusal(f"--resume {path}: it was measured with {what} {theirs.get(what)}")
    result["sections"] = {name: each for name, each in found.items() if name in sections.SECTIONS}


def write(result: dict[str, Any], out: Path, stem: str) -> list[tuple[str, Any]]:
    """Write STEM.json, .md and, if matplotlib is installed, .png; returns the tables of the
    page."""
    from apps import report
    from bench import charts, tables

    found = result["sections"].values()
    view = {**result, "cases": [case for each in found for case in each["cases"]]}
    view["notes"] = notes(result)
    parts = [("beside the fastest peer of each case", tables.summary(view["cases"]))]
    parts = parts if view["cases"] else []
    parts += [(title, rows) for each in found for title, rows in each["tables"]]
    report.write_json(result, out / f"{stem}.json")
    report.write_atomically(out / f"{stem}.md", tables.page(view, parts).encode())
    with suppress(ImportError):
        charts.draw_ratios(view, out / f"{stem}.png")
    return parts


def notes(result: dict[str, Any]) -> list[str]:
    """The lines above the tables: how the figures were taken, and the reason for each missing
    one."""
    lines = ["A rehearsal on the processor, in small: these figures mean nothing."]
    lines = lines if result["rehearsal"] else []
    lines += [
        f"`{result['command']}`; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        "Inputs lie on the device, results stay there, each call is waited for. Errors are those"
        " against float64, relative to the largest value. torch.compile is"
        ' mode="max-autotune", which includes CUDA graphs; unless it says "not frozen" weights are'
        " constants to it. TF32 is off unless the case says tf32; bfloat16 is the whole model in"
        " that dtype for PyTorch, and for needle the operands of matmuls and convolutions.",
    ]
    lines += [f"not measured: {name}: {why}" for name, why in result["not_measured"].items()]
    return lines + [
        f"left out: {name}, {who}: {why}"
        for name, section in result["sections"].items()
        for who, why in section["failed"].items()
    ]
