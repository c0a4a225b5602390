"""Inference on the CPU: needle eager and compiled beside other frameworks, model by model.

Besides times: each model's kernels against what this machine can do, and what compiling, a first
result and memory cost. With --ablation, what each pass and schedule rule is worth; with --scaling,
speed over batch and threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import apps.peers
import apps.report
from bench import (
    ablation,
    cases,
    charts,
    contests,
    costs,
    kernels,
    scaling,
    sections,
    tables,
)
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder

COSTS = ("onnxruntime",)  # whose first result and memory stand beside ours


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.cpu", __doc__)
    add, positive = parser.add_argument, cli.positive
    models, peers = ", ".join(cases.MODELS), apps.peers
    default, quick = ", ".join(cases.DEFAULT), ", ".join(peers.QUICK)
    add(
        "--models",
        nargs="+",
        choices=tuple(cases.MODELS),
        default=cases.DEFAULT,
        metavar="NAME",
        help=f"of {models} ({default})",
    )
    add("--batches", nargs="+", type=positive, metavar="N", help="(each model's own)")
    add("--all", action="store_true", help="all models, at all of their batches")
    add("--trials", type=cli.natural, default=0, metavar="N", help="also one tuned so long")
    add("--minutes", type=cli.minutes, metavar="M", help="also one tuned so long")
    add(
        "--peers",
        nargs="*",
        choices=(*peers.PEERS, "all"),
        default=peers.QUICK,
        metavar="PEER",
        help=f"of {', '.join(peers.PEERS)}, or all ({quick})",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--times", action="store_true", help="no kernels, no costs")
    only.add_argument("--ablation", action="store_true", help="each pass and rule left out in turn")
    only.add_argument("--scaling", action="store_true", help="batches 1 to 256, threads 1 and 2")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if "all" in options.peers:
        options.peers = tuple(apps.peers.PEERS)
    kind = run_ablation if options.ablation else run_scaling if options.scaling else run
    return cli.guarded("bench.cpu", lambda: kind(options))


def run(options: argparse.Namespace) -> int:
    """Runs the contests one after the other, printing each as it ends; writes JSON and a chart."""
    cli.check_writable(options.out / "cpu.json")
    report = _new_report(options)
    limits = None if options.times else kernels.measure_limits(options.threads)
    for case in cases.chosen(options.models, options.batches, options.all):
        found = run_case(case, options, limits)
        report["cases"].append(found)
        tables.print_case(found)
        apps.report.write_json(report, options.out / "cpu.json")  # should a later one fail
    found = report["cases"]
    parts = [("beside the fastest peer of each case", tables.summary(report))]
    if limits is not None:
        report["limits"] = limits.to_json()
        line = sections.limits_line(report["limits"])
        parts += [
            (f"the slowest kernels; {line}", sections.roofline(found, report["limits"])),
            (
                "in a fresh process: compile without a search, first result, memory at its most",
                sections.costs(found),
            ),
        ]
    for title, rows in parts:
        tables.print_rows(title, rows)
    tables.print_conditions(report)
    base = list(found[0]["ratios"])[-1]
    pages = [f"## {title}\n\n{tables.markdown_rows(rows)}" for title, rows in parts]
    _write(report, options, "cpu", "\n".join([*pages, "## all times\n", tables.markdown(report)]))
    charts.draw_ratios(report, options.out / "cpu.png", base)
    return cli.OK


def run_case(
    case: cases.Case, options: argparse.Namespace, limits: Any | None = None
) -> dict[str, Any]:
    """One contest, as JSON values; results are compared before anything is timed. With `limits`,
    also the model's kernels and costs."""
    with scratch_folder("needle-bench-") as folder:
        subject = cases.Subject.of(case, folder)
        entries = subject.contestants(options)
        found = contests.run(case.name, entries, options, exact=subject.exact())
        found |= {"model": case.model, "batch": case.batch, **contests.fastest_peer(found)}
        if limits is not None:
            executable = subject.compile(options.threads)
            found["profile"] = kernels.measure(subject, executable, options.threads, limits)
            beside = {apps.peers.PEERS[key].name for key in COSTS} | {cases.TUNED}
            few = [entry for entry in entries if entry.name in beside]
            found["costs"] = costs.measure(subject, few, options.threads)
    return found


def run_ablation(options: argparse.Namespace) -> int:
    """A table of time without each pass and rule over time with all of them; writes JSON."""
    cli.check_writable(options.out / "ablation.json")
    report = _new_report(options)
    for case in cases.chosen(options.models, options.batches, options.all):
        report["cases"].append(ablation.run_case(case, options))
        apps.report.write_json(report, options.out / "ablation.json")  # should a later one fail
    rows = ablation.table(report["cases"])
    tables.print_rows("time without / time with everything on; = compiles to the same", rows)
    tables.print_conditions(report)
    _write(report, options, "ablation", tables.markdown_rows(rows))
    return cli.OK


def run_scaling(options: argparse.Namespace) -> int:
    """Speed over the batch and threads of each model; writes JSON and a chart."""
    cli.check_writable(options.out / "scaling.json")
    report = _new_report(options)
    names = tuple(cases.MODELS) if options.all else options.models
    report["models"] = []
    for name in names:
        report["models"].append(scaling.run_model(name, options))
        apps.report.write_json(report, options.out / "scaling.json")  # should a later one fail
    tables.print_rows("seconds of a call", scaling.table(report["models"]))
    tables.print_conditions(report)
    _write(report, options, "scaling", tables.markdown_rows(scaling.table(report["models"])))
    charts.draw_scaling(report, options.out / "scaling.png")
    return cli.OK


def _new_report(options: argparse.Namespace) -> dict[str, Any]:
    return contests.new_report(options, cases.MODELS["mlp"].peer, options.peers)


def _write(report: dict[str, Any], options: argparse.Namespace, name: str, page: str) -> None:
    """NAME.json and NAME.md."""
    apps.report.write_json(report, options.out / f"{name}.json")
    (options.out / f"{name}.md").write_text(f"{tables.conditions(report)}\n\n{page}")
    tables.console().print(f"wrote {options.out / name}.json, .md")


if __name__ == "__main__":
    sys.exit(main())
