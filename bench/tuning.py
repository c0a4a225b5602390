"""Our search beside TVM's stock tune_relax: candidates a minute, and how fast what each finds is.

A search cannot be cut into blocks, so whole ones run in turn (stock, ours, ours, stock), each in
a process of its own with nothing stored before it. Both measure a candidate as TVM does by
default: 3 calls, or as many as take 100 ms. Ours also checks every candidate's results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

import apps.contestants
import apps.models
import apps.report
import needle_tvm
from bench import contests, searches, tables
from needle_tvm.artifact.cache import CACHE_VARIABLE
from needle_tvm.process import command_line as cli
from needle_tvm.process.child import Child
from needle_tvm.process.threads import thread_environment
from needle_tvm.process.timing import Contestant, Spread

# Those that begin with "needle" get a column of ratios (see contests.run).
EAGER, RULE, OURS, STOCK = "eager", "compiled, no search", "needle tuned", "TVM tune_relax"
_SERVICES = {OURS: "ours", STOCK: "stock"}
_START_SECONDS, _TRIAL_SECONDS = 1200.0, 60.0  # what a search may take: to begin and end, a trial


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.tuning", __doc__)
    add, positive = parser.add_argument, cli.positive
    names = tuple(apps.models.FACTORIES)
    add("-m", "--model", choices=names, default="conv", help="(%(default)s)")
    add("--trials", type=positive, default=128, metavar="N", help="of a search (%(default)s)")
    add("--stock-trials", type=positive, metavar="N", help="of a stock search (as many)")
    batch = "stock's num_trials_per_iter: the candidates of one kernel in a row (TVM's %(default)s)"
    add("--stock-batch", type=positive, default=64, metavar="N", help=batch)
    add("--searches", type=positive, default=2, metavar="N", help="of each (%(default)s)")
    add("--seed", type=cli.natural, default=0, metavar="N", help="of the first (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write the JSON here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.tuning", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """The searches one after the other, then a contest of what they found; writes JSON, chart."""
    for path in (options.out / "tuning.json", *([options.json] if options.json else [])):
        cli.check_writable(path)
    report = contests.new_report(options, options.model)
    report |= {"model": options.model, "searches": []}
    report["stock_batch"] = options.stock_batch
    with tempfile.TemporaryDirectory(prefix="needle-bench-") as temporary:
        folder = Path(temporary)
        entries = prepare(folder, options)
        order = search_order(options.searches)
        with cli.progress() as bar:
            for number, name in enumerate(order):
                title = f"{name} {1 + order[:number].count(name)}"
                bar(number, len(order), f"{title}: searching")
                found = search(name, folder / str(number), folder, options, order[:number])
                report["searches"].append({"name": title, "kind": name, **found})
                entries.append(_contestant(name, title, folder / str(number), folder, options))
        report["ratio"] = throughput_ratio(report["searches"])
        print_searches(report)
        _write_json(report, options)  # should the contest fail, hours of searching are not lost
        case = f"{options.model}, after {options.trials} trials"
        report["cases"].append(contests.run(case, entries, options))
    tables.print_case(report["cases"][0])
    tables.print_conditions(report)
    tables.write(report, options.out, "tuning")
    page = options.out / "tuning.md"
    page.write_text(f"{markdown(report)}\n{page.read_text()}")
    _write_json(report, options)
    return cli.OK


def search_order(count: int) -> list[str]:
    """Who searches when: stock, ours, ours, stock, ..., so that a drift of the machine falls on
    both alike."""
    turns = [[STOCK, OURS], [OURS, STOCK]]
    return [name for number in range(count) for name in turns[number % 2]]


def prepare(folder: Path, options: argparse.Namespace) -> list[Contestant]:
    """Writes weights and inputs into `folder`; the contestants that need no search."""
    factory = apps.models.factory(options.model)
    model, inputs = apps.contestants.build_model(factory)
    model.eval()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    arrays = [x if hasattr(x, "dtype") and not hasattr(x, "numpy") else x.numpy() for x in inputs]
    apps.contestants.save_arrays(folder / "weights.npz", weights)
    apps.contestants.save_arrays(folder / "inputs.npz", {f"x{i}": x for i, x in enumerate(arrays)})
    files = {name: str(folder / f"{name}.npz") for name in ("weights", "inputs")}
    eager = {"factory": factory, "options": {}, "device": "cpu", **files}
    executable = needle_tvm.compile(model, *arrays, threads=options.threads)
    path = str(executable.export(folder / "rule"))
    rule = {"path": path, "inputs": files["inputs"]}
    return [
        Contestant(EAGER, "apps.contestants:eager", eager, threads=options.threads),
        Contestant(RULE, "apps.contestants:artifact", rule, threads=options.threads),
    ]


def search(
    name: str, out: Path, files: Path, options: argparse.Namespace, before: Sequence[str]
) -> dict[str, Any]:
    """One search in a process of its own, with an empty cache; its counts and times."""
    out.mkdir()
    trials = options.trials if name == OURS else options.stock_trials or options.trials
    setup = {
        "factory": apps.models.factory(options.model),
        "weights": str(files / "weights.npz"),
        "inputs": str(files / "inputs.npz"),
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


def _contestant(
    name: str, title: str, out: Path, files: Path, options: argparse.Namespace
) -> Contestant:
    inputs, threads = str(files / "inputs.npz"), options.threads
    if name == STOCK:
        kwargs = {"folder": str(out), "inputs": inputs}
        return Contestant(title, f"{searches.__name__}:stock_library", kwargs, threads=threads)
    kwargs = {"path": str(out / "artifact"), "inputs": inputs}
    return Contestant(title, "apps.contestants:artifact", kwargs, threads=threads)


def throughput_ratio(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Ours over stock's in distinct candidates a minute: median, lowest and highest of all pairs
    of one of ours with one of stock's."""
    rates = {
        kind: [one["per_minute"] for one in found if one["kind"] == kind] for kind in _SERVICES
    }
    pairs = [mine / its for mine in rates[OURS] for its in rates[STOCK] if its > 0]
    if not pairs:
        return {}
    return {"median": Spread.of(pairs).median, "lowest": min(pairs), "highest": max(pairs)}


def print_searches(report: Mapping[str, Any]) -> None:
    """What each search tried in how much time."""
    table = Table(title=f"searches over {report['model']}", title_justify="left", box=SIMPLE_HEAD)
    headings, *rows = _rows(report)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        table.add_row(*row)
    out = tables.console()
    out.print(table)
    for line in _notes(report):
        out.print(line)
    out.print()


def markdown(report: Mapping[str, Any]) -> str:
    """The same as a Markdown table."""
    headings, *rows = _rows(report)
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    lines.insert(1, "|---" * len(headings) + "|")
    return "\n".join([*lines, "", *(f"{line}  " for line in _notes(report))]) + "\n"


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    rows = [["", "wall time", "trials", "did not pass", "distinct", "a minute", "kernels"]]
    for one in report["searches"]:
        kinds = ", ".join(f"{n} {kind}" for kind, n in one["rejected"].items()) or "none"
        kernels = f"{one['tasks_searched']} of {one['tasks']}"
        numbers = [f"{one['seconds']:.0f} s", str(one["trials"]), kinds, str(one["distinct"])]
        rows.append([one["name"], *numbers, f"{one['per_minute']:.1f}", kernels])
    return rows


def _notes(report: Mapping[str, Any]) -> list[str]:
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


def _write_json(report: Mapping[str, Any], options: argparse.Namespace) -> None:
    for path in (options.out / "tuning.json", *([options.json] if options.json else [])):
        apps.report.write_json(report, path)


if __name__ == "__main__":
    sys.exit(main())
