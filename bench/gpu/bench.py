"""`make gpu-bench`: the sections one after the other, each in a process of its own, the result
written after each. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.gpu import bars, host, report, sections, steps, turns
from bench.gpu.host import ROOT, Gpu, Refusal
from bench.gpu.sections import Section
from bench.gpu.settings import Settings

SECONDS = 570.0  # in all: a host that takes a command for ten minutes sees its end
_LEAST_SECONDS = 20.0  # a section's processes are not even up within less
_ENDING_SECONDS = 5.0  # before it is killed a section may say what it has


def run(options: argparse.Namespace, gpu: Gpu, started: float) -> int:
    """Measures what was asked for and writes the results; 1 where nothing was measured, or where a
    result is needed that cannot be read."""
    out = writable(options.out)
    result = new_result(options, gpu)
    stem = out / f"{result['date'][:10]}-gpu-{gpu.slug}"
    wanted = sections.chosen(options.only)
    if options.resume:
        take_over(result, Path(options.resume))
        wanted = {n: s for n, s in wanted.items() if n not in result["sections"]}
    deadline = started + options.seconds
    before = set(result["sections"])
    result["not_measured"] = {name: "not asked for" for name in sections.SECTIONS}
    result["not_measured"] |= dict.fromkeys(wanted, "it was not begun")
    for name in before:
        del result["not_measured"][name]
    write(result, stem)
    if not options.rehearse:
        steps.require(gpu.architecture)

    def one(name: str, seconds: float) -> None:
        found = run_section(wanted[name], options, seconds)
        if isinstance(found, str):
            result["not_measured"][name] = found
        else:
            result["not_measured"].pop(name)
            result["versions"] |= found.pop("versions", {})
            result["sections"][name] = found
        write(result, stem)

    turns.in_turn(
        {name: section.share for name, section in wanted.items()},
        deadline,
        _LEAST_SECONDS,
        one,
        lambda name, why: result["not_measured"].__setitem__(name, why),
    )
    write(result, stem)
    report.draw(result, stem)
    print("\n".join(report.summary(result)))
    print(f"wrote {stem}.md and {stem.name}.json")
    return 0 if set(result["sections"]) - before or not wanted else 1


def writable(folder: str) -> Path:
    """The folder for results, made where it is missing; Refusal where nothing can be written."""
    out = (ROOT / folder).resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {folder}: {error}") from error
    if not os.access(out, os.W_OK):
        raise Refusal(f"--out {folder} is not writable")
    return out


def new_result(options: argparse.Namespace, gpu: Gpu) -> dict[str, Any]:
    """What stands above the sections."""
    given = f' ARGS="{options.given}"' if options.given else ""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": asdict(gpu),
        "rehearsal": options.rehearse,
        "command": f"make gpu-bench{given}",
        "rounds": options.rounds,
        "versions": host.versions(),
        "sections": {},
        "not_measured": {},
    }


def take_over(result: dict[str, Any], path: Path) -> None:
    """Puts an earlier call's sections into a result. Refusal where they cannot be read, or are of
    another GPU or other versions, which nothing may be mixed with."""
    try:
        earlier = json.loads((ROOT / path).read_text())
        found, versions, gpu = (earlier[key] for key in ("sections", "versions", "gpu"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"--resume {path}: {error!r}") from error
    theirs = {"GPU": gpu.get("name"), **versions}
    ours = {"GPU": result["gpu"]["name"], **result["versions"]}
    for what, value in ours.items():
        if what != "system" and theirs.get(what) != value:
            raise Refusal(f"--resume {path}: it was measured with {what} {theirs.get(what)}")
    result["sections"] = {n: one for n, one in found.items() if n in sections.SECTIONS}
    result["versions"] = {**versions, **result["versions"]}


def run_section(
    section: Section, options: argparse.Namespace, seconds: float
) -> dict[str, Any] | str:
    """A section in a process of its own: its result, or why there is none."""
    print(f"{section.name}: up to {seconds:.0f} s", flush=True)
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        command = [sys.executable, "-m", "bench.gpu", "section", section.name]
        command += ["--deadline", str(start + seconds - _ENDING_SECONDS), "--json", str(path)]
        command += ["--rounds", str(options.rounds)]
        command += ["--rehearse"] * options.rehearse
        code, said = turns.run_for(command, seconds, cwd=ROOT, stderr=subprocess.PIPE)
        taken = time.time() - start
        if code != 0 or not path.is_file():
            lines = said.strip().splitlines()
            print("\n".join(lines[-20:]), file=sys.stderr)
            if code is None:
                return f"it was not done within the {seconds:.0f} s it was given"
            return lines[-1][:300] if lines else f"it ended with code {code}"
        found: dict[str, Any] = json.loads(path.read_text())
    print(f"{section.name}: {taken:.0f} s", flush=True)
    for who, reason in found.get("failed", {}).items():
        print(f"{section.name}: left out: {who}: {reason}", flush=True)
    return {"group": section.group, "took": taken, **found}


def run_one(options: argparse.Namespace) -> int:
    """The process of one section: its result as JSON, or why there is none as one line."""
    from needle_tvm.errors import NeedleTVMError

    settings = Settings(
        deadline=options.deadline,
        rounds=options.rounds,
        device="cpu" if options.rehearse else "cuda",
    )
    try:
        found = sections.measure(sections.SECTIONS[options.name], settings)
    except NeedleTVMError as error:
        details = getattr(error, "details", "")  # what a contestant's process wrote
        sys.stderr.write(f"{details}\n{' '.join(str(error).split())}\n")
        return 1
    if "versions" not in found:
        from bench.gpu.compiling import stamp

        found["versions"] = stamp()
    Path(options.json).write_text(json.dumps(found, allow_nan=False))
    return 0


def write(result: Mapping[str, Any], stem: Path) -> None:
    """STEM.json, with what is wanted and whether it is there, and STEM.md. A page that cannot be
    made stops nothing: `page` makes it again from the JSON, and figures take a GPU."""
    wanted, text = [], ""
    try:
        wanted, text = [bar.to_json() for bar in bars.of(result)], report.markdown(result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        traceback.print_exc()
    _replace(stem, ".json", json.dumps({**result, "bars": wanted}, indent=1, allow_nan=False))
    if text:
        _replace(stem, ".md", text)


def _replace(stem: Path, suffix: str, text: str) -> None:
    path = stem.with_name(stem.name + suffix)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def page(path: Path) -> int:
    """Writes the page and the chart of a result again, beside it. Refusal where it is none."""
    try:
        result = json.loads(path.read_text())
        stem = path.with_suffix("")
        _replace(stem, ".md", report.markdown(result))
        report.draw(result, stem)
    except (OSError, ValueError, KeyError) as error:
        raise Refusal(f"{path}: {error!r}") from error
    print(f"wrote {stem}.md")
    return 0
