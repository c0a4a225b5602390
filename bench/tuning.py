"""Compare schedules after equal minutes: our rules alone, our search, and TVM's tune_relax.

Our search runs for --minutes. TVM's search then gets the time that our search took from the call to
the compiled library. Each search runs in its own process with an empty store. TVM's search is
the documented pipeline for static shapes with packed weights: gradient scheduler, evolutionary
search and xgboost, with batches small enough that every kernel gets one. Both searches time a
candidate as TVM does by default: 3 calls, or more if these take less than 100 ms. Our search also
checks every candidate's results.

Each model's results are saved when they are complete; the same command then runs the models that
are left.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apps.contestants
import apps.report
from apps.subjects import Subject
from bench import cases, charts, contests, tables
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.process.child import ChildError
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Calls, Contestant, load_arrays, save_arrays
from needle_runtime.text import error_line
from needle_tvm import terminal
from needle_tvm.cache import CACHE_VARIABLE

# Names that begin with "needle" get a column of ratios (see contests.run).
RULES, OURS, STOCK = "needle, rules alone", "needle, searched", "TVM tune_relax"
TEN = (
    *("mlp", "conv", "transformer", "mlp-784", "bert", "resnet18", "lstm", "mobilenet"),
    *("mlp-391-777-333-50", "encoder"),
)
LIBRARY, PARAMS = "stock.so", "params.npz"

_SPARE_SECONDS = 3600.0  # a search may exceed its budget by this much
_BATCH = 16  # candidates of a kernel in a batch of TVM's search; its default reaches few kernels
_FAILED = 1e9  # seconds in TVM's record of a candidate that did not run


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.tuning", __doc__)
    parser.set_defaults(strict=False)
    add, models = parser.add_argument, tuple(cases.MODELS)
    add("-m", "--models", nargs="+", choices=models, default=TEN, metavar="NAME", help="(ten)")
    add("--minutes", type=cli.minutes, default=10.0, metavar="M", help="search time (%(default)s)")
    add("--seed", type=cli.natural, default=0, metavar="N", help="seed of a search (%(default)s)")
    add("--name", default="tuning", help="name of the files written to DIR (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    options.command = shlex.join(["python", "-m", "bench.tuning", *(arguments or sys.argv[1:])])
    return cli.guarded("bench.tuning", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run all searches and contests that the report lacks; save the report after each."""
    target = options.out / f"{options.name}.json"
    cli.check_writable(target)
    report = begun(target, options)
    names = {case["case"] for case in report["cases"]}
    wanted = [cases.Case(each, cases.MODELS[each].batches[0]) for each in options.models]
    left = [case for case in wanted if case.name not in names]
    for number, case in enumerate(left):
        with scratch_folder("needle-bench-") as folder, terminal.progress() as bar:
            subject = case.subject(folder)
            bar(number, len(left), f"{case.name}: our search")
            ours = search("ours", folder, subject, options, 60 * options.minutes)
            bar(number, len(left), f"{case.name}: TVM's search")
            try:
                stock = search("stock", folder, subject, options, ours["seconds"])
            except ChildError as error:  # the contest below reports the failed contestant
                stock = {"error": error_line(error)}
            found = contests.run(case.name, entries(subject, folder, options), options)
        report["cases"].append({**found, "searches": {OURS: ours, STOCK: stock}})
        apps.report.write_json(report, target)
    parts = [("results", table(report["cases"]))]
    tables.publish(report, options.out, options.name, parts, charts.draw_ratios)
    return cli.OK


def begun(target: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the report in the file, or a new one if there is no file. Raises UsageError if the
    file is from another machine or has results of other searches."""
    report = contests.new_report(options) | {
        "head": f"# Searching for {options.minutes:g} minutes\n\n`{options.command}`\n\n"
        f"![The times of each model over those with our search]({options.name}.png)",
        "minutes": options.minutes,
        "seed": options.seed,
        "notes": [
            f"{OURS}: wall time from the call to the compiled library; {STOCK} got as long, and "
            f"finished its current batch of {_BATCH}; its candidates were not checked, and "
            "kernels that it did not reach stay unscheduled",
            "the last columns are times over the times of the model from our search; our calls "
            "are as users write them, with fresh arrays; TVM's have arrays converted beforehand",
        ],
    }
    if target.exists():
        there: dict[str, Any] = json.loads(target.read_text())
        same = ("machine", "minutes", "seed", "rounds", "block_seconds")
        if all(there.get(key) == report[key] for key in same):
            return there
        raise UsageError(f"{target}: has results of other searches: choose another --name or --out")
    return report


def search(
    service: str, folder: Path, subject: Subject, options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    """Run one of the services below in its own process, with an empty cache."""
    setup = {
        "recipe": subject.recipe,
        "threads": options.threads,
        "seconds": seconds,
        "seed": options.seed,
        "folder": str(folder),
    }
    environment = {**thread_environment(options.threads), CACHE_VARIABLE: str(folder / "cache")}
    return contests.ask(f"bench.tuning:{service}", setup, seconds + _SPARE_SECONDS, environment)


def entries(subject: Subject, folder: Path, options: argparse.Namespace) -> list[Contestant]:
    """Return contestants: the model by our rules, by our search, and by TVM's search."""
    threads, inputs = options.threads, subject.files.inputs
    choices = _choices(threads, 60 * options.minutes, options.seed)
    return [
        subject.called(RULES, threads),
        Contestant(
            OURS,
            "apps.contestants:executable",
            {**subject.recipe, "choices": choices},
            threads=threads,
            env={CACHE_VARIABLE: str(folder / "cache")},
        ),
        Contestant(
            STOCK,
            "bench.tuning:stock_library",
            {"folder": str(folder), "inputs": inputs},
            threads=threads,
        ),
    ]


def _choices(threads: int, seconds: float, seed: int) -> dict[str, Any]:
    return {"threads": threads, "minutes": seconds / 60, "seed": seed}


def table(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each model: each search's time, candidates, kernels and gain."""
    rows = [["case"]]
    for whose in ("our", "TVM's"):
        rows[0] += [f"{whose} search", "candidates (failed)", "kernels"]
    rows[0] += ["rules / searched", "TVM / searched"]
    for case in found:
        row = [case["case"]]
        for one in case["searches"].values():
            if "error" in one:
                row += ["failed", "", ""]
                continue
            row += [f"{one['seconds']:.0f} s", f"{one['trials']} ({one['failed']})"]
            row.append(f"{one['tasks_searched']} of {one['tasks']}")
        for name in (RULES, STOCK):
            ratio = case["ratios"].get(OURS, {}).get(name)
            failed = case["failed"].get(name) or case["failed"].get(OURS, "")
            row.append(apps.report.ratio(ratio) if ratio else failed)
        rows.append(row)
    return rows


# Code of the processes of the searches and of TVM's contestant.


def ours(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, compile a model with our search; answer once with counts and seconds."""
    import needle_tvm

    model, _, tensors = _model(setup)
    start = time.perf_counter()
    choices = _choices(setup["threads"], setup["seconds"], setup["seed"])
    executable = needle_tvm.compile(model, *tensors, **choices, progress=False)
    seconds = time.perf_counter() - start
    notes = executable.manifest["tuning"]
    rejected: Counter[str] = sum((Counter(note["rejected"]) for note in notes), Counter())
    yield {
        "seconds": seconds,
        "trials": sum(note["trials"] for note in notes),
        "failed": rejected.total(),
        "rejected": dict(rejected),
        "tasks": len(notes),
        "tasks_searched": sum(note["trials"] > 0 for note in notes),
        "chosen": sum(note["chosen"] == "search" for note in notes),
    }


def stock(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, search with TVM's tune_relax until the time is over; compile the result."""
    from needle.trace import trace
    from needle_tvm._tvm.names import ms, relax, sequential, structural_hash, transform, tvm
    from needle_tvm.frontend.lowering import translated
    from needle_tvm.lower.variant import Variant
    from needle_tvm.target.spec import resolve
    from needle_tvm.tir.functions import prim_funcs

    model, _, tensors = _model(setup)
    folder, target = Path(setup["folder"]), resolve("cpu", setup["threads"]).to_tvm()
    start = time.perf_counter()

    @tvm.ir.utils.derived_object
    class Deadline(ms.measure_callback.PyMeasureCallback):
        def apply(self, *batch: Any) -> None:
            if time.perf_counter() - start > setup["seconds"]:
                raise TimeoutError("the time is over")

    def import_intrinsics() -> None:
        # Otherwise each process's first candidate would spend 10 s on this import.
        import tvm.s_tir.tensor_intrin  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="stock-tune-") as logs, target:
        graph = trace(model, *tensors)
        module = sequential(
            [
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                relax.get_pipeline("zero"),
                transform.AttachAttrLayoutFreeBuffers(),
            ]
        )(translated(graph, target, Variant("fused")))
        database = ms.database.MemoryDatabase()
        try:
            ms.relax_integration.tune_relax(
                module,
                {},
                target,
                logs,
                max_trials_global=1 << 30,
                num_trials_per_iter=_BATCH,
                database=database,
                measure_callbacks=[
                    ms.measure_callback.AddToDatabase(),
                    ms.measure_callback.RemoveBuildArtifact(),
                    ms.measure_callback.UpdateCostModel(),
                    Deadline(),
                ],
                builder=ms.builder.LocalBuilder(initializer=import_intrinsics),
                seed=setup["seed"] + 1,
            )
        except Exception:
            if time.perf_counter() - start < setup["seconds"]:
                raise
        with database:
            tuned = sequential(
                [
                    transform.MetaScheduleApplyDatabase(),
                    transform.SplitLayoutRewritePreproc(),
                    transform.LiftTransformParams(),
                    transform.FoldConstant(),
                ]
            )(module)
        relax.build(tuned, target=target).export_library(str(folder / LIBRARY))
    seconds = time.perf_counter() - start
    arrays = [leaf.value.numpy() for leaf in graph.params]
    save_arrays(folder / PARAMS, {f"param_{i}": x for i, x in enumerate(arrays)})
    records = list(database.get_all_tuning_records())
    yield {
        "seconds": seconds,
        "trials": len(records),
        "failed": sum(max(map(float, each.run_secs or [_FAILED])) >= _FAILED for each in records),
        "tasks": len(prim_funcs(module)),
        "tasks_searched": len({structural_hash(record.workload.mod) for record in records}),
    }


def stock_library(folder: str, inputs: str) -> Calls:
    """Return a contestant: the library from `stock` in TVM's virtual machine, weights packed."""
    from needle_tvm._tvm.names import relax, tvm

    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(Path(folder) / LIBRARY)), device)
    *sets, params = (
        [tvm.runtime.tensor(array, device) for array in arrays]
        for arrays in (
            *apps.contestants.fresh(load_arrays(inputs)),
            load_arrays(Path(folder) / PARAMS),
        )
    )
    packed = machine["main_transform_params"](params)
    main = machine["main"]
    return apps.contestants.calls(
        lambda tensors: main(*tensors, *packed),
        sets,
        lambda found: [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)],
    )


def _model(setup: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
    found: tuple[Any, Any, Sequence[Any]] = apps.contestants.load_needle(**setup["recipe"])
    found[0].eval()
    return found


if __name__ == "__main__":
    sys.exit(main())
