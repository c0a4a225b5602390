"""What each pass and schedule rule is worth: a model compiled without it, beside the whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import apps.contestants
import apps.report
from bench import cases, contests
from needle_tvm.lower import pipeline
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.child import Child, ChildError
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import thread_environment
from needle_tvm.process.timing import Contestant
from needle_tvm.words import error_line

ALL_ON = "needle tuned"
STAGE = "tuned"
UNCHANGED = "compiles to the same"
_SECONDS = 600.0  # for a child to compile


def run_case(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """One model, each switch turned off by itself, in one contest; as JSON values.

    `ratios` are the time without over the time with everything on. Switches that change nothing
    are not timed, nor those without which it does not compile or computes something else: `untimed`
    says so by name.
    """
    names = pipeline.switches(STAGE)
    with scratch_folder("needle-ablation-") as folder, cli.progress() as bar:
        subject = cases.Subject.of(case, folder)
        whole = compiled(subject, (), options.threads)
        entries, untimed = [whole[0]], {}
        for number, name in enumerate(names):
            bar(number, len(names), f"{case.name} without {name}")
            try:
                entry, script = compiled(subject, (name,), options.threads)
                if script == whole[1]:
                    untimed[name] = UNCHANGED
                    continue
                outputs = timing.collect_outputs([whole[0], entry])
                apps.contestants.check_agreement(outputs)
            except (ChildError, apps.contestants.Disagreement) as error:
                untimed[name] = error_line(error)
                continue
            entries.append(entry)
        found = contests.run(case.name, entries, options)
    return {
        "case": case.name,
        "seconds": {entry["name"]: entry["median"] for entry in found["contestants"]},
        "ratios": found["ratios"][ALL_ON],
        "untimed": untimed,
    }


def compiled(subject: Any, disable: tuple[str, ...], threads: int) -> tuple[Contestant, str]:
    """The model without some switches as a contestant, and the script it was compiled from.

    Compiled in a process of its own: what is left of a pipeline may bring the compiler down. Raises
    ChildError where it does not compile.
    """
    name = f"without {disable[0]}" if disable else ALL_ON
    path = subject.folder / f"artifact-{'-'.join(disable)}"
    setup = {**subject.recipe, "threads": threads, "disable": list(disable), "path": str(path)}
    environment = thread_environment(threads)
    with Child(
        name, f"{__name__}:compiling", setup, timeout=_SECONDS, environment=environment
    ) as child:
        script = child.receive("compile")["script"]
    kwargs = {"path": str(path), "inputs": subject.files.inputs}
    factory = "apps.contestants:artifact"
    return Contestant(name, factory, kwargs, threads=threads), script


def compiling(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: exports the model compiled without `disable` to `path`; answers with its code."""
    import needle_tvm

    model, _, tensors = apps.contestants.load_needle(
        setup["factory"], setup["options"], setup["weights"], setup["inputs"]
    )
    model.eval()
    executable = needle_tvm.compile(
        model, *tensors, threads=setup["threads"], disable=setup["disable"]
    )
    executable.export(setup["path"])
    yield {"script": executable.script}


def table(results: list[dict[str, Any]]) -> list[list[str]]:
    """Headings and rows: a row per switch that does something to any model, a column per model."""
    names = pipeline.switches(STAGE)
    rows = [["without", *(result["case"] for result in results)]]
    for name in names:
        cells = []
        for result in results:
            ratio = result["ratios"].get(f"without {name}")
            untimed = result["untimed"].get(name)
            if ratio:
                cells.append(apps.report.ratio(ratio))
            else:
                cells.append("=" if untimed == UNCHANGED else "fails")
        if set(cells) != {"="}:
            rows.append([name, *cells])
    return rows
