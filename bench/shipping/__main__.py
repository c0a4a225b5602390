"""Sizes and times of shipping a model: the environment, the import, the first answer, and calls
from Python and C++, for needle-runtime, ONNX Runtime and AOTInductor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apps.peers
import apps.report
from bench import contests, tables
from bench.shipping import cpp, environments, models, starts, summary
from bench.shipping.environments import Environment
from bench.shipping.models import AOTINDUCTOR, ONNXRUNTIME, OURS, Shipped
from needle_runtime.process import command_line as cli
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant

NOTES = (
    "all models at batch 1 in float32, with the same weights; results agree with the model in "
    "float64 before anything is timed; sizes, imports and first answers are of the first model",
    "import after NumPy: in a fresh process that has imported NumPy; start to first answer: a "
    "whole process that imports, loads the file, calls once, prints and ends; memory: the most "
    "resident until the first answer; libraries of C++: the libraries loaded from the package's "
    "folder",
    "calls from Python use this checkout; everything else is measured in the environments below",
    "AOTInductor: frozen weights, max_autotune, and the package loader for calls from one thread; "
    "both its Python and its C++ need torch",
    "C++: ONNX Runtime's Run takes values made once over the driver's memory; needle's input and "
    f"output are set once; {cpp.DIRECT}: the library's function main_into by itself, through "
    "tvm_ffi's C++",
)
PEERS = {ONNXRUNTIME: "onnxruntime", AOTINDUCTOR: "torch"}  # keys of apps.peers


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.shipping", __doc__)
    add = parser.add_argument
    folder = "folder with a wheel of needle-runtime for this Python (one is built)"
    add("--wheels", type=Path, metavar="DIR", help=folder)
    headers = "folder with onnxruntime_c_api.h (its C++ call is not measured)"
    add("--onnxruntime-include", type=Path, metavar="DIR", help=headers)
    for option, names in (("--models", list(models.KINDS)), ("--peers", list(PEERS.values()))):
        about = "of: %(choices)s (all)"
        add(option, nargs="+", choices=names, default=names, metavar="NAME", help=about)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.shipping", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Measure everything; write shipping.json, shipping.md and shipping.png."""
    target = options.out / "shipping.json"
    cli.check_writable(target)
    report = contests.new_report(options, options.peers) | {"notes": list(NOTES), "cpp": {}}
    with scratch_folder("needle-bench-") as folder:
        made = make_environments(options, folder)
        report["environments"] = {
            name: {"bytes": each.bytes, "distributions": each.bytes_of}
            for name, each in made.items()
        }
        origins = "; ".join(f"{name}: {each.origin}" for name, each in made.items())
        report["notes"].append(f"environments: {origins}")
        shipped = [
            models.export(name, made, options.threads, options.timeout, folder / name)
            for name in options.models
        ]
        started = starts.measure(made, shipped[0], options)
        report |= {key: started[key] for key in ("memory", "numpy")}
        report["cases"] += started["cases"]
        apps.report.write_json(report, target)  # the file stays if a later step fails
        for model in shipped:
            report["cases"].append(call_from_python(model, options))
            apps.report.write_json(report, target)
        programs = compile_drivers(made, options, folder, report["notes"])
        for model in shipped if programs else ():
            case, sizes = cpp.measure(programs, made, model, options)
            report["cases"].append(case)
            report["cpp"] = report["cpp"] or sizes
            apps.report.write_json(report, target)
    tables.publish(report, options.out, "shipping", summary.parts(report), summary.draw)
    return cli.OK


def make_environments(options: argparse.Namespace, folder: Path) -> dict[str, Environment]:
    """Return an environment for each requested runtime, except for peers that are not installed."""
    wheel = environments.wheel_of(options.wheels, folder)
    made = {OURS: environments.from_wheel(wheel, folder / "environment")}
    for name, peer in PEERS.items():
        if peer in options.peers and not apps.peers.PEERS[peer].missing:
            distribution = environments.DISTRIBUTIONS[name]
            made[name] = environments.from_installed(distribution, folder / distribution)
    return made


def call_from_python(model: Shipped, options: argparse.Namespace) -> dict[str, Any]:
    """Run the contest of calls from Python."""
    inputs, threads = model.subject.files.inputs, options.threads
    entries = [model.subject.exported(OURS, model.files[OURS], threads, "program")]
    if ONNXRUNTIME in model.files:
        entries += apps.peers.readers(
            ["onnxruntime"], str(model.files[ONNXRUNTIME]), inputs, threads
        )
    if AOTINDUCTOR in model.files:
        given = {"package": str(model.files[AOTINDUCTOR]), "inputs": inputs, "threads": threads}
        factory = "bench.shipping.aotinductor:called"
        entries.append(Contestant(AOTINDUCTOR, factory, given, threads=threads))
    title = f"Python call, {model.name}"
    case = contests.run(title, entries, options, model.subject.exact())
    tables.print_case(case)
    return case


def compile_drivers(
    made: Mapping[str, Environment], options: argparse.Namespace, folder: Path, notes: list[str]
) -> dict[str, Path]:
    """Return the compiled drivers by name; add a line to `notes` for each one that is missing."""
    if cpp.compiler() is None:
        notes.append("C++ not measured: no compiler (set CXX)")
        return {}
    names = [*made, cpp.DIRECT]
    if ONNXRUNTIME in names and options.onnxruntime_include is None:
        notes.append(f"{ONNXRUNTIME} in C++ not measured: no headers (--onnxruntime-include)")
        names.remove(ONNXRUNTIME)
    include = options.onnxruntime_include
    return {name: cpp.compile_driver(name, made, folder, include) for name in names}


if __name__ == "__main__":
    sys.exit(main())
