"""Measure inference on the CPU, model by model: needle, eager and compiled, compared with other
frameworks. Each framework is called as its users call it.

Besides times, the benchmark measures each model's kernels against the limits of this machine, and
the time to compile and to a first result, and the memory. Options measure something else instead:
--ablation, the gain of each pass and schedule rule; --tails, the slowest of many calls while other
processes keep the cores busy; --beside, eager and compiled in one process; --sizes, one artifact
for all sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apps.peers
from apps.subjects import Subject
from bench import cases, charts, contests, harness, tables
from bench.contests import CODE, RUNTIME
from bench.cpu import ablation, beside, costs, kernels, sizes, tails
from needle.trace import trace
from needle_runtime.process import command_line as cli
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant

COSTS = ("onnxruntime",)  # peers whose first result and memory are also measured
DRAWN = 20  # number of randomly drawn models in a run that names no models


@dataclass(frozen=True)
class Section:
    """A measurement that the option --`name` selects instead of the contests of models. The results
    of `run` for each of `cases` go into the report's list `key`, which `table` shows. `how` says
    how they are measured if not in a contest."""

    name: str
    help: str
    title: str
    cases: Callable[[argparse.Namespace], Iterable[Any]]
    run: Callable[[Any, argparse.Namespace], dict[str, Any]]
    table: Callable[[Any], list[list[str]]]
    key: str = "section"
    how: Callable[[argparse.Namespace], str] | None = None


def _models(options: argparse.Namespace) -> list[cases.Case]:
    return cases.chosen(options.models or cases.EVALUATED, options.batches, options.all)


def _of_tails(options: argparse.Namespace) -> Iterable[cases.Case]:
    named = options.models or options.batches or options.all
    return _models(options) if named else tails.CASES


SECTIONS = (
    Section(
        "ablation",
        "each pass and rule left out in turn",
        'time of the code without the part, divided by the time with all parts; "=" means that '
        "the module is the same",
        *(_models, ablation.run_case, ablation.table),
        key="cases",
    ),
    Section(
        "tails",
        "the slowest of many calls while other processes keep the cores busy",
        "the slowest of many calls while other processes keep the cores busy",
        *(_of_tails, tails.run_case, tails.table),
        how=tails.how,
    ),
    Section(
        "beside",
        "eager and compiled in one process",
        "time of eager and compiled calls in turn in one process, divided by the sum of the times "
        "of each alone",
        *(_models, beside.run_case, beside.table),
        key="cases",
    ),
    Section(
        "sizes",
        "one artifact for all sizes, compared with a separate artifact for each size",
        "one artifact for all sizes (1 to 256), compared with one for only the current size",
        *(lambda options: sizes.chosen(options.models), sizes.run_case, sizes.table),
    ),
)


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.cpu", __doc__)
    add, positive = parser.add_argument, cli.positive
    models, peers = ", ".join(cases.MODELS), apps.peers
    default, quick = "; ".join(case.name for case in cases.DEFAULT), ", ".join(peers.QUICK)
    add(
        "--models",
        nargs="+",
        choices=tuple(cases.MODELS),
        metavar="NAME",
        help=f"models to run, from: {models} (default: {default})",
    )
    add(
        "--batches",
        nargs="+",
        type=positive,
        metavar="N",
        help="batch sizes (default: each model's own)",
    )
    add("--all", action="store_true", help="all models, at all of their batches")
    add(
        "--drawn",
        type=cli.natural,
        metavar="N",
        help=f"number of randomly drawn models ({DRAWN}; 0 with --models, --batches, --all)",
    )
    add("--seed", type=cli.natural, default=0, metavar="N", help="seed of the draw (%(default)s)")
    add("--trials", type=cli.natural, default=0, metavar="N", help="also search with N trials")
    add("--minutes", type=cli.minutes, metavar="M", help="also search for M minutes")
    add(
        "--peers",
        nargs="*",
        choices=(*peers.PEERS, "all"),
        default=peers.QUICK,
        metavar="PEER",
        help=f"peers to run, from: {', '.join(peers.PEERS)}, or all (default: {quick})",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--times", action="store_true", help="measure no kernels and no costs")
    for section in SECTIONS:
        only.add_argument(f"--{section.name}", action="store_true", help=section.help)
    add(
        "--count",
        type=positive,
        default=100_000,
        metavar="N",
        help="number of calls for --tails (%(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if "all" in options.peers:
        options.peers = tuple(apps.peers.PEERS)
    section = next((each for each in SECTIONS if getattr(options, each.name)), None)
    return cli.guarded(
        "bench.cpu", lambda: run_section(section, options) if section else run(options)
    )


def run(options: argparse.Namespace) -> int:
    """Run the contests one after another, print each when it ends, and write all of them."""
    limits = None if options.times else kernels.measure_limits(options.threads)
    named = cases.chosen(options.models, options.batches, options.all)
    count = options.drawn
    if count is None:
        count = 0 if options.models or options.batches or options.all else DRAWN
    jobs = [partial(run_case, case, options, limits) for case in named]
    jobs += [partial(run_case, case, options) for case in cases.drawn(options.seed, count)]

    def parts(report: Mapping[str, Any]) -> list[tuple[str, tables.Rows]]:
        known, unseen = report["cases"][: len(named)], report["cases"][len(named) :]
        sections = (
            [("against the fastest peer of each case", tables.summary(known))] if known else []
        )
        if unseen:
            sections += [(f"models of shapes drawn by seed {options.seed}", tables.summary(unseen))]
        sections += [
            ("time that a call takes in addition to its code, µs", tables.added(report["cases"]))
        ]
        if limits is not None:
            line = kernels.limits_line(report["limits"])
            fresh = "in a fresh process: compile without a search, first result, peak memory"
            sections += [(f"the slowest kernels; {line}", kernels.table(known))]
            sections += [(fresh, costs.table(known))]
        return sections

    facts = {"notes": list(contests.NOTES), "seed": options.seed}
    facts |= {"limits": limits.to_json()} if limits is not None else {}
    return harness.record(
        options, "cpu", jobs, parts, peers=options.peers, draw=charts.draw_ratios, **facts
    )


def run_case(
    case: cases.Case, options: argparse.Namespace, limits: Any | None = None
) -> dict[str, Any]:
    """Run one contest and return JSON values. If `limits` is given, they include the model's
    kernels and costs."""
    with scratch_folder("needle-bench-") as folder:
        subject = case.subject(folder)
        entries = entries_of(subject, options)
        result = contests.run_decided(case.name, entries, options, exact=subject.exact())
        result |= {"model": case.model, "batch": case.batch}
        if limits is not None:
            graph = trace(subject.model, *subject.tensors)
            code = next(entry for entry in entries if entry.name == cases.TUNED + CODE)
            result["profile"] = kernels.measure(graph, code.kwargs, options.threads, limits)
            names = {apps.peers.PEERS[key].name for key in COSTS} | {cases.TUNED + RUNTIME}
            few = [entry for entry in entries if entry.name in names]
            result["costs"] = costs.measure(subject, few, options.threads)
    return result


def entries_of(subject: Subject, options: argparse.Namespace) -> list[Contestant]:
    """Return the contestants: needle eager, needle compiled without a search and, if requested,
    with a search, and the peers. Each is called as users call it; where possible, its code alone is
    a contestant too."""
    threads = options.threads
    found = [subject.eager(threads), *subject.ways(cases.TUNED, threads)]
    search = {"trials": options.trials, "minutes": options.minutes}
    if options.trials or options.minutes:
        budget = f"{options.minutes:g} min" if options.minutes else f"{options.trials} trials"
        found += subject.ways(f"{cases.TUNED}, {budget}", threads, **search)
    return found + subject.peers(options.peers, threads, code=True)


def run_section(section: Section, options: argparse.Namespace) -> int:
    """Run the cases of a section one after another; print and write its table."""
    return harness.record(
        options,
        section.name,
        [partial(section.run, case, options) for case in section.cases(options)],
        lambda report: [(section.title, section.table(report[section.key]))],
        key=section.key,
        peers=options.peers,
        **({"how": section.how(options)} if section.how else {}),
    )


if __name__ == "__main__":
    sys.exit(main())
