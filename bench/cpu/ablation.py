"""The gain of each pass and schedule rule: a model compiled without this part, compared with the
model compiled with all parts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import apps.contestants
import apps.report
from bench import cases, compiling, contests
from needle_runtime.process import timing
from needle_runtime.process.child import ChildError
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Contestant
from needle_runtime.text import error_line
from needle_tvm import terminal
from needle_tvm.lower import pipeline

STAGE = "tuned"
UNCHANGED = "compiles to the same"
_SECONDS = 600.0  # time limit of a child that compiles


def run_case(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """Run a contest (see `contests.run`) of one model, compiled in full and without each switch.

    `untimed` has the reason for each switch that is not timed: it changes nothing, or without it
    the model does not compile or gives different results.
    """
    names = pipeline.switches(STAGE)
    with scratch_folder("needle-ablation-") as folder, terminal.progress() as bar:
        subject = case.subject(folder)
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
        return {**contests.run(case.name, entries, options), "untimed": untimed}


def compiled(subject: Any, disable: tuple[str, ...], threads: int) -> tuple[Contestant, str]:
    """Return the model without some switches as a contestant, and the script of its compilation.

    Raises ChildError if it does not compile, which may crash the child process.
    """
    name = f"without {disable[0]}" if disable else cases.TUNED
    setup = subject.to_compile(name, threads=threads, disable=list(disable))
    environment = thread_environment(threads)
    found = contests.ask(compiling.SERVICE, setup, _SECONDS, environment, name)
    return subject.exported(name, found["path"], threads), found["script"]


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return headings and a row for each switch that changes any model; each model has a column."""
    rows = [["without", *(result["case"] for result in results)]]
    for name in pipeline.switches(STAGE):
        cells = []
        for result in results:
            ratio = result["ratios"][cases.TUNED].get(f"without {name}")
            if ratio:
                cells.append(apps.report.ratio(ratio))
            else:
                cells.append("=" if result["untimed"].get(name) == UNCHANGED else "fails")
        if set(cells) != {"="}:
            rows.append([name, *cells])
    return rows
