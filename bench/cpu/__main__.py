"""Inference on the CPU: needle eager and compiled beside other frameworks, model by model.

Besides times it measures each model's kernels against what this machine can do, and what compiling,
a first result and memory cost; with --ablation, what each pass and schedule rule is worth; with
--scaling, speed over batch and threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import apps.peers
import apps.report
from bench import cases, charts, contests, tables
from bench.cpu import ablation, costs, kernels, scaling
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder

COSTS = ("onnxruntime",)  # peers whose first result and memory are measured beside ours


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
    """Run the contests one after the other, print each as it ends, write all of them."""
    report = _new_report(options, "cpu")
    limits = None if options.times else kernels.measure_limits(options.threads)
    for case in cases.chosen(options.models, options.batches, options.all):
        found = run_case(case, options, limits)
        report["cases"].append(found)
        tables.print_case(found)
        apps.report.write_json(report, options.out / "cpu.json")  # kept if a later one fails
    found = report["cases"]
    parts = [("beside the fastest peer of each case", tables.summary(found))]
    if limits is not None:
        report["limits"] = limits.to_json()
        line = kernels.limits_line(report["limits"])
        fresh = "in a fresh process: compile without a search, first result, memory at its most"
        parts += [(f"the slowest kernels; {line}", kernels.table(found))]
        parts += [(fresh, costs.table(found))]
    tables.publish(report, options.out, "cpu", parts, charts.draw_ratios)
    return cli.OK


def run_case(
    case: cases.Case, options: argparse.Namespace, limits: Any | None = None
) -> dict[str, Any]:
    """One contest, as JSON values; with `limits` also the kernels and costs of the model."""
    with scratch_folder("needle-bench-") as folder:
        subject = cases.Subject.of(case, folder)
        entries = subject.contestants(options)
        found = contests.run(case.name, entries, options, exact=subject.exact())
        found |= {"model": case.model, "batch": case.batch}
        if limits is not None:
            executable = subject.compile(options.threads)
            found["profile"] = kernels.measure(subject, executable, options.threads, limits)
            beside = {apps.peers.PEERS[key].name for key in COSTS} | {cases.TUNED}
            few = [entry for entry in entries if entry.name in beside]
            found["costs"] = costs.measure(subject, few, options.threads)
    return found


def run_ablation(options: argparse.Namespace) -> int:
    """Time each model without each pass and rule, over the time with all of them."""
    report = _new_report(options, "ablation")
    for case in cases.chosen(options.models, options.batches, options.all):
        report["cases"].append(ablation.run_case(case, options))
        apps.report.write_json(report, options.out / "ablation.json")  # kept if a later one fails
    title = "time without / time with everything on; = compiles to the same"
    tables.publish(report, options.out, "ablation", [(title, ablation.table(report["cases"]))])
    return cli.OK


def run_scaling(options: argparse.Namespace) -> int:
    """Time each model over the batch and the number of threads."""
    report = _new_report(options, "scaling")
    report["models"] = []
    for name in cases.MODELS if options.all else options.models:
        report["models"].append(scaling.run_model(name, options))
        apps.report.write_json(report, options.out / "scaling.json")  # kept if a later one fails
    parts = [("seconds of a call", scaling.table(report["models"]))]
    tables.publish(report, options.out, "scaling", parts, charts.draw_scaling)
    return cli.OK


def _new_report(options: argparse.Namespace, name: str) -> dict[str, Any]:
    cli.check_writable(options.out / f"{name}.json")
    return contests.new_report(options, cases.MODELS["mlp"].peer, options.peers)


if __name__ == "__main__":
    sys.exit(main())
