"""`make gpu-bench`: run the contests until the deadline, and write the archive after each."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import shutil
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu import plan
from bench.gpu.host import CONTESTS, LAST, ROOT, UNPACKED, Host, Refusal, versions

RESULTS = "results.json"  # name in the archive

_LEAST_SECONDS = 15.0  # in less time, the processes of a contest cannot start


def run(options: argparse.Namespace, here: Host, manifest: dict[str, Any], deadline: float) -> int:
    """Measure the contests requested in `options` and write the archive.

    Returns 1 if nothing was measured or step 1 found something wrong. Raises Refusal if the archive
    cannot be written, or an archive to resume cannot be read.
    """
    result = new_result(options, here, manifest)
    path = ROOT / options.out / f"{result['date'][:10]}-gpu-{here.slug}.tar.xz"
    if options.resume:
        take_over(result, options.resume)
    write(result, path)
    everything = plan.contests(manifest["small"])
    kept = set(result["contests"])
    wanted = [name for name in plan.chosen(options.only, everything) if name not in kept]
    result["not_measured"] = dict.fromkeys(wanted, "it was not started")
    for number, name in enumerate(wanted):
        contest = everything[name]
        seconds = min(deadline - time.time(), contest.seconds)
        if seconds < _LEAST_SECONDS:
            result["not_measured"][name] = "no time was left"
            write(result, path)
            continue
        print(f"[{number + 1}/{len(wanted)}] {name}: up to {seconds:.0f} s", flush=True)
        start = time.time()
        outcome = measured(contest, seconds, options.rounds, manifest["small"])
        if isinstance(outcome, str):
            print(f"  not measured: {outcome}", flush=True)
            result["not_measured"][name] = outcome
        else:
            outcome["took"] = time.time() - start
            result["contests"][name] = outcome
            del result["not_measured"][name]
        write(result, path)
    print(f"wrote {path}")
    for name, why in result["not_measured"].items():
        print(f"not measured: {name}: {why}")
    right = all(check["ok"] for check in smoke_checks(result))
    return 0 if right and (set(result["contests"]) - kept or not wanted) else 1


def measured(
    contest: plan.Contest, seconds: float, rounds: int, small: bool
) -> dict[str, Any] | str:
    """Return the result of a contest, or in one line the reason that it could not be measured."""
    from bench.gpu import measure, smoke
    from needle_runtime.process.child import Child, ChildError
    from needle_runtime.text import error_line

    folder = UNPACKED / CONTESTS / contest.name
    if contest.kind == plan.SMOKE:
        return smoke.run(contest, folder, lambda line: print(f"  {line}", flush=True))
    setup = {"name": contest.name, "rounds": rounds, "small": small, "folder": str(folder)}
    try:
        with Child(contest.name, f"{measure.__name__}:serve", setup, timeout=seconds) as child:
            return child.receive("contest")
    except ChildError as error:
        print(error.details)
        return error_line(error).removeprefix(f"{contest.name}: ")


def smoke_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of step 1; none if it has not run."""
    return list(result["contests"].get(plan.SMOKE, {}).get("checks", []))


def new_result(options: argparse.Namespace, here: Host, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a report without contests."""
    from bench import contests
    from bench.gpu import measure

    conditions = measure.make_conditions(options.rounds, manifest["small"])
    result = contests.new_report(conditions, ("torch", "torch-compile"))
    result["machine"]["processor"] = f"{here.name} ({here.arch}), driver {here.driver}"
    command = "make gpu-bench" + (f' ARGS="{options.given}"' if options.given else "")
    result |= {"command": command, "bundle": manifest, "versions": versions()}
    result |= {"gpu": here.name, "slug": here.slug}
    return {**result, "contests": {}, "not_measured": {}}


def take_over(result: dict[str, Any], path: Path) -> None:
    """Put the contests of an earlier call into a result.

    Raises Refusal if the earlier archive cannot be read, or was measured on another GPU, with other
    versions or from another bundle.
    """
    earlier = read(path)

    def facts(of: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that must be equal; the system may differ between hosts of one kind."""
        known = {"bundle": of["bundle"], "GPU": of["machine"]["processor"], **of["versions"]}
        return {name: value for name, value in known.items() if name != "system"}

    theirs = facts(earlier)
    for what, value in facts(result).items():
        if theirs.get(what) != value:
            raise Refusal(f"--resume {path}: {what} differs there: {str(theirs.get(what))[:200]}")
    result["contests"] = earlier["contests"]


def write(result: Mapping[str, Any], path: Path) -> None:
    """Write the whole archive or nothing. Raises Refusal if that fails."""
    data = json.dumps(result).encode()
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fresh, "w:xz") as archive:
            entry = tarfile.TarInfo(RESULTS)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise Refusal(f"--out {path} cannot be written: {error.strerror}") from error
    LAST.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, LAST)


def read(path: Path) -> dict[str, Any]:
    """Return the report in an archive. Raises Refusal if there is none."""
    try:
        with tarfile.open(path, "r:xz") as archive:
            member = archive.extractfile(RESULTS)
            found = json.load(member) if member else None
    except (OSError, EOFError, ValueError, KeyError, tarfile.TarError, lzma.LZMAError) as error:
        raise Refusal(f"{path}: cannot read results of make gpu-bench: {error}") from error
    if not isinstance(found, dict) or "contests" not in found:
        raise Refusal(f"{path}: has no results of make gpu-bench")
    return found
