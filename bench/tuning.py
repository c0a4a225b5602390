"""Our search beside TVM's stock tune_relax: candidates a minute, and the speed of what each finds.

A search cannot be cut into blocks, so whole ones run in turn (stock, ours, ours, stock), each in
a process of its own with nothing stored before it. Both measure a candidate as TVM does by
default: 3 calls, or as many as take 100 ms. Ours also checks every candidate's results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apps.report
from apps.subjects import Subject
from bench import cases, charts, contests, searches, tables
from needle_tvm.artifact.cache import CACHE_VARIABLE
from needle_tvm.process import command_line as cli
from needle_tvm.process.child import Child
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import thread_environment
from needle_tvm.process.timing import Contestant, Spread

# Names that begin with "needle" get a column of ratios (see contests.run).
EAGER, RULE, OURS, STOCK = "eager", "compiled, no search", "needle tuned", "TVM tune_relax"
_SERVICES = {OURS: "ours", STOCK: "stock"}
_START_SECONDS, _TRIAL_SECONDS = 1200.0, 60.0  # limits: to begin and end a search, and of a trial


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.tuning", __doc__)
    add, positive = parser.add_argument, cli.positive
    add("-m", "--model", choices=tuple(cases.MODELS), default="conv", help="(%(default)s)")
    add("--trials", type=positive, default=128, metavar="N", help="of a search (%(default)s)")
    add("--stock-trials", type=positive, metavar="N", help="of a stock search (as many)")
    batch = "stock's num_trials_per_iter: the candidates of one kernel in a row (TVM's %(default)s)"
    add("--stock-batch", type=positive, default=64, metavar="N", help=batch)
    add("--searches", type=positive, default=2, metavar="N", help="of each (%(default)s)")
    add("--seed", type=cli.natural, default=0, metavar="N", help="of the first (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.tuning", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the searches one after the other, then a contest of what they found; write both."""
    target = options.out / "tuning.json"
    cli.check_writable(target)
    case = cases.Case(options.model, cases.MODELS[options.model].batches[0])
    report = contests.new_report(options)
    report |= {"model": options.model, "searches": [], "stock_batch": options.stock_batch}
    with scratch_folder("needle-bench-") as folder:
        subject = case.subject(folder)
        entries = unsearched(subject, options.threads)
        order = search_order(options.searches)
        with cli.progress() as bar:
            for number, name in enumerate(order):
                title = f"{name} {1 + order[:number].count(name)}"
                bar(number, len(order), f"{title}: searching")
                out = folder / str(number)
                found = search(name, out, subject, options, order[:number])
                report["searches"].append({"name": title, "kind": name, **found})
                entries.append(contestant(name, title, out, subject, options.threads))
        report["ratio"] = throughput_ratio(report["searches"])
        report["notes"] = notes(report)
        apps.report.write_json(report, target)  # kept if the contest fails
        title = f"{case.name}, after {options.trials} trials"
        report["cases"].append(contests.run(title, entries, options))
    tables.print_case(report["cases"][0])
    parts = [(f"searches over {options.model}", table(report["searches"]))]
    tables.publish(report, options.out, "tuning", parts, charts.draw_ratios)
    return cli.OK


def search_order(count: int) -> list[str]:
    """The order of `count` searches of each: stock, ours, ours, stock, ..., so that a drift of the
    machine falls on both alike."""
    turns = [[STOCK, OURS], [OURS, STOCK]]
    return [name for number in range(count) for name in turns[number % 2]]


def unsearched(subject: Subject, threads: int) -> list[Contestant]:
    """The contestants that need no search."""
    compiled = subject.compiled(RULE, subject.compile(threads), threads)
    return [replace(subject.eager(threads), name=EAGER), compiled]


def search(
    name: str,
    out: Path,
    subject: Subject,
    options: argparse.Namespace,
    before: Sequence[str],
) -> dict[str, Any]:
    """Run one search in a process of its own, with an empty cache; returns its counts and times."""
    out.mkdir()
    trials = options.trials if name == OURS else options.stock_trials or options.trials
    setup = {
        "recipe": subject.recipe,
        "threads": options.threads,
        "trials": trials,
        "seed": options.seed + before.count(name),
        "batch": min(options.stock_batch, trials),
        "folder": str(out),
    }
    with Child(
        name,
        f"bench.searches:{_SERVICES[name]}",
        setup,
        timeout=_START_SECONDS + _TRIAL_SECONDS * trials,
        environment={
            **thread_environment(options.threads),
            CACHE_VARIABLE: str(out / "cache"),
        },
    ) as child:
        found = child.receive("search")
    return {**found, "per_minute": 60 * found["distinct"] / found["seconds"]}


def contestant(name: str, title: str, out: Path, subject: Subject, threads: int) -> Contestant:
    """The result of a search, which it wrote into `out`, as a contestant."""
    if name == OURS:
        return subject.exported(title, out / "artifact", threads)
    kwargs = {"folder": str(out), "inputs": subject.files.inputs}
    return Contestant(title, f"{searches.__name__}:stock_library", kwargs, threads=threads)


def throughput_ratio(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Distinct candidates a minute, ours over stock's: the median, lowest and highest of all pairs
    of one of ours with one of stock's."""
    rates = {
        kind: [one["per_minute"] for one in found if one["kind"] == kind] for kind in _SERVICES
    }
    pairs = [mine / its for mine in rates[OURS] for its in rates[STOCK] if its > 0]
    if not pairs:
        return {}
    return {"median": Spread.of(pairs).median, "lowest": min(pairs), "highest": max(pairs)}


def table(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings and a row for each search: its trials and its time."""
    rows = [["", "wall time", "trials", "did not pass", "distinct", "a minute", "kernels"]]
    for one in found:
        kinds = ", ".join(f"{n} {kind}" for kind, n in one["rejected"].items()) or "none"
        kernels = f"{one['tasks_searched']} of {one['tasks']}"
        numbers = [f"{one['seconds']:.0f} s", str(one["trials"]), kinds, str(one["distinct"])]
        rows.append([one["name"], *numbers, f"{one['per_minute']:.1f}", kernels])
    return rows


def notes(report: Mapping[str, Any]) -> list[str]:
    """The meaning of the columns of `table`, and the ratio of the rates."""
    lines = [
        "distinct: scheduled modules that differ, of those that ran; ours also passed the gate, "
        "TVM's were not checked",
        "wall time: from the call to the compiled library; kernels: searched, of all there are; "
        f"TVM takes {report['stock_batch']} trials of one kernel in a row",
    ]
    if report["ratio"]:
        ratio = report["ratio"]
        lines.append(
            f"candidates a minute, ours / TVM's: {ratio['median']:.2f} "
            f"({ratio['lowest']:.2f}-{ratio['highest']:.2f}, all pairs)"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
