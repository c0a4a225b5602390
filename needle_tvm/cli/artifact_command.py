"""The commands `inspect`, `verify` and `run`, which need no compiler."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm import runtime
from needle_tvm.artifact import Artifact, array_files
from needle_tvm.artifact.arrays import describe
from needle_tvm.artifact.function import ArraySpec
from needle_tvm.artifact.layout import SIGNATURE
from needle_tvm.artifact.sizes import may_be, shape_at
from needle_tvm.cli.drawing import onnx_file
from needle_tvm.cli.drawing.picture import check_picture, write_picture
from needle_tvm.cli.drawing.script import of_artifact
from needle_tvm.errors import (
    ArtifactError,
    EvaluationError,
    InputError,
    NeedleTVMError,
    TargetError,
    UsageError,
)
from needle_tvm.process.command_line import (
    OK,
    Parser,
    add_size,
    check_writable,
    natural,
    repeats,
)
from needle_tvm.process.timing import Spread
from needle_tvm.runtime.executor import Executor
from needle_tvm.runtime.random_inputs import random_inputs
from needle_tvm.target import cublas, host
from needle_tvm.target.precision import FLOAT32
from needle_tvm.text import error_line, printable
from needle_tvm.tune.status import summary

_WARMUP_CALLS = 5


def add_parser(subparsers: Any) -> None:
    """Add the three commands to a parser's subparsers."""
    about = "print the inputs, outputs and facts of an artifact or ONNX file, and draw its graph"
    inspect = _add(subparsers, "inspect", about, _inspect, "the artifact's folder, or an ONNX file")
    inspect.epilog = "Only the manifest is read; verify checks the files."
    text = "draw kernels (or an ONNX file's operators) and weights: .svg, or .html that scrolls"
    inspect.add_argument("--graph", type=Path, metavar="FILE", help=text)

    about = "check every file, the processor, and the golden outputs; exit code 1 if any is wrong"
    _add(subparsers, "verify", about, _verify)

    about = "run an artifact on arrays from files, or on random arrays"
    run = _add(subparsers, "run", about, _run)
    run.add_argument(
        "inputs",
        nargs="*",
        metavar="[NAME=]FILE",
        help=".npy: the next input, or input NAME; .npz, .safetensors: inputs by their names",
    )
    run.add_argument("--random", action="store_true", help="random values for inputs without files")
    add_size(run)
    run.add_argument("--seed", type=natural, default=0, metavar="N", help="default: %(default)s")
    run.add_argument(
        "--out", type=Path, metavar="FILE", help="write output.0, output.1, ... in these formats"
    )
    run.add_argument("--repeat", type=repeats, metavar="N", help="time N more calls")
    run.rest = "inputs"


def _add(
    subparsers: Any, name: str, about: str, command: Any, path: str = "the artifact's folder"
) -> Parser:
    parser: Parser = subparsers.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="PATH", help=path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--require-signature",
        type=Path,
        metavar="PUBLIC_KEY",
        help="refuse an artifact that is not signed with the key in this PEM file",
    )
    parser.set_defaults(command=command)
    return parser


# inspect


def _inspect(options: argparse.Namespace) -> int:
    if options.graph is not None:
        check_picture(options.graph)
    if options.path.suffix == ".onnx" and options.path.is_file():
        return _inspect_onnx(options)
    artifact = Artifact.from_manifest(options.path, options.require_signature)
    if options.graph is not None:
        write_picture(of_artifact(artifact), options.graph)
    manifest, main = artifact.manifest, artifact.main
    described, files = manifest["functions"]["main"], manifest["files"]
    facts = {
        "path": str(options.path),
        **{kind: described[kind] for kind in ("inputs", "outputs", "params")},
        "dims": described.get("dims", []),
        "stage": manifest.get("stage"),
        "checked": artifact.checked,
        "target": artifact.target,
        "lacking_features": artifact.missing_features,
        "refusal": artifact.obstacle,
        **{name: manifest.get(name) for name in ("precision", "kernels", "libraries", "products")},
        "versions": manifest["versions"],
        "golden": manifest.get("golden"),
        "tuning": manifest.get("tuning"),
        "signature": _signature(options),
        "files": files,
        "size": _size(manifest),
        "digest": manifest["digest"],
    }
    if options.json:
        return _print_json(facts)
    target = dict(artifact.target)
    features = target.pop("features", [])
    golden = facts["golden"]
    numbers = sum(math.prod(shape_at(spec.shape, {})) for spec in main.params)
    rows = [
        *_signature_rows("input", main.inputs),
        *_signature_rows("output", main.outputs),
        *(("sizes", str(dim)) for dim in main.dims),
        ("weights", f"{len(main.params)} arrays, {numbers:,} numbers"),
        ("stage", str(facts["stage"])),
        ("compared", "with the model" if facts["checked"] else "with nothing: not checked"),
        ("products", f"of {facts['precision'] or FLOAT32}{_by_library(facts['products'])}"),
        ("target", ", ".join(f"{name} {value}" for name, value in target.items())),
        ("needs", _needs(artifact, features)),
        ("files", "not checked here: `verify` does"),
        ("here", _here(facts)),
        *([("kernels", _kernels(facts["kernels"]))] if facts["kernels"] else []),
        *((f"{name} version", str(value)) for name, value in manifest["versions"].items()),
        ("golden", f"outputs of the {golden['source']} model" if golden else "none carried"),
        *([("tuning", summary(facts["tuning"]))] if facts["tuning"] else []),
        ("signature", facts["signature"]),
        *((name, f"{recorded['size']:,} bytes") for name, recorded in files.items()),
        ("size", f"{facts['size']:,} bytes"),
        *([] if options.graph is None else [("wrote", str(options.graph))]),
    ]
    return _print_rows(rows)


def _inspect_onnx(options: argparse.Namespace) -> int:
    if options.require_signature is not None:
        raise UsageError(f"--require-signature: {options.path} is an ONNX file without signatures")
    proto, arrays = onnx_file.read_onnx(options.path)
    if options.graph is not None:
        write_picture(onnx_file.of_onnx(options.path, proto, arrays), options.graph)
    facts = {"path": str(options.path), **onnx_file.facts(proto, arrays)}
    if options.json:
        return _print_json(facts)
    operators = (f"{name} x {count}" for name, count in facts["operators"].items())
    lacking = ", ".join(facts["unsupported"])
    rows = [
        *((kind, text) for kind in ("input", "output") for text in facts[f"{kind}s"]),
        ("opset", ", ".join(f"{name} {number}" for name, number in facts["opsets"].items())),
        ("weights", f"{facts['weights']:,} numbers, {facts['bytes']:,} bytes"),
        ("operators", ", ".join(operators)),
        ("needle", f"has no {lacking}" if lacking else "has all operators"),
        *([] if options.graph is None else [("wrote", str(options.graph))]),
    ]
    return _print_rows(rows)


def _needs(artifact: Artifact, features: Sequence[str]) -> str:
    if artifact.for_gpu:
        libraries = artifact.manifest.get("libraries", ())
        return ", ".join([f"a CUDA GPU ({artifact.target['arch']})", *libraries])
    return " ".join(features) or "no particular processor features"


def _here(facts: Mapping[str, Any]) -> str:
    if facts["lacking_features"]:
        return f"lacks {' '.join(facts['lacking_features'])}"
    if facts["lacking_features"] is None:
        return f"unknown: {host.UNKNOWN}"
    if facts["refusal"] is None:
        return "has all of them"
    return str(facts["refusal"]).removeprefix(f"{facts['path']}: ")


def _by_library(products: Sequence[Mapping[str, Any]] | None) -> str:
    count = sum(note["chosen"] == cublas.LIBRARY for note in products or ())
    return f", {count} of {len(products)} by cuBLAS" if products else ""


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    spilled = sum(kernel["spill_stores"] for kernel in kernels)
    registers, shared = (max(k[name] for k in kernels) for name in ("registers", "shared"))
    return (
        f"{len(kernels)}, at most {registers} registers and {shared:,} bytes of shared memory, "
        f"{spilled} bytes spilled"
    )


def _signature_rows(kind: str, specs: Sequence[ArraySpec]) -> list[tuple[str, str]]:
    return [(kind, f"{spec.name}: {describe(spec.shape, spec.dtype)}") for spec in specs]


def _size(manifest: Mapping[str, Any]) -> int:
    return sum(recorded["size"] for recorded in manifest["files"].values())


def _signature(options: argparse.Namespace) -> str:
    """Return the state of the signature of a manifest that was read and accepted."""
    if options.require_signature is not None:
        return f"good: {options.require_signature}"
    if (options.path / SIGNATURE).exists():
        return "present, not checked (--require-signature PUBLIC_KEY checks it)"
    return "none"


# verify


def _verify(options: argparse.Namespace) -> int:
    try:
        program = _load(options)
    except NeedleTVMError as error:
        if options.json:
            _print_json({"path": str(options.path), "ok": False, "error": error_line(error)})
        raise
    manifest = program.artifact.manifest
    test = runtime.self_test(program)
    facts = {
        "path": str(options.path),
        "ok": test.passed,
        "files": len(manifest["files"]),
        "size": _size(manifest),
        "signature": _signature(options),
        "features": manifest["target"].get("features", []),
        "golden": {
            "source": test.source,
            "differences": [_finite(difference) for difference in test.differences],
            "tolerances": list(test.tolerances),
            "passed": test.passed,
        },
    }
    if options.json:
        _print_json(facts)
    else:
        pairs = list(zip(test.differences, test.tolerances, strict=True))
        differences = ", ".join(f"{have:.2g} of {allowed:.2g}" for have, allowed in pairs)
        _print_rows(
            [
                ("files", f"{facts['files']} as recorded, {facts['size']:,} bytes"),
                ("signature", facts["signature"]),
                ("processor", _processor(program.artifact, len(facts["features"]))),
                ("golden", f"{differences} allowed, from the {test.source} model"),
            ]
        )
    if not test.passed:
        names = [spec.name for spec in program.artifact.main.outputs]
        worst = [
            f"{names[i % len(names)]} by {have:.3g}, where {allowed:.3g} is allowed"
            for i, (have, allowed) in enumerate(zip(test.differences, test.tolerances, strict=True))
            if not have <= allowed
        ]
        raise EvaluationError(f"{options.path}: golden outputs differ: {'; '.join(worst)}")
    return OK


def _processor(artifact: Artifact, count: int) -> str:
    if artifact.missing_features is None:
        return f"unknown: {host.UNKNOWN}"
    return f"has the {count} features that are needed"


def _load(options: argparse.Namespace) -> runtime.Program:
    try:
        return runtime.load(options.path, require_signature=options.require_signature)
    except TargetError as error:  # not a wrong option: the artifact does not fit this machine
        raise ArtifactError(str(error)) from error


# run


def _run(options: argparse.Namespace) -> int:
    if options.out is not None:
        array_files.check_suffix(options.out)
        check_writable(options.out)
        options.out.parent.mkdir(parents=True, exist_ok=True)
    program = _load(options)
    specs, executor = program.artifact.main.outputs, program.executor
    if options.out is not None and options.out.suffix == ".npy" and len(specs) != 1:
        raise UsageError(
            f"{options.out}: holds one array, the model gives {len(specs)}; "
            ".npz and .safetensors hold several"
        )
    tensors = executor.convert(_gather(options, program.artifact))
    results = executor.to_arrays(executor.call(tensors))
    outputs = {spec.name: array for spec, array in zip(specs, results, strict=True)}
    spread = _time(executor, tensors, options.repeat) if options.repeat else None
    if options.out is not None:
        array_files.write(options.out, outputs)

    facts: dict[str, Any] = {
        "path": str(options.path),
        "outputs": [{"name": name, **_summary(array)} for name, array in outputs.items()],
        "out": None if options.out is None else str(options.out),
        "seconds": None,
    }
    if spread is not None:
        facts["seconds"] = {
            "calls": options.repeat,
            "median": spread.median,
            "lower_quartile": spread.lower,
            "upper_quartile": spread.upper,
        }
    if options.json:
        return _print_json(facts)
    rows = [(entry["name"], _summary_line(entry)) for entry in facts["outputs"]]
    if spread is not None:
        median, lower, upper = (
            f"{1e6 * t:,.1f}" for t in (spread.median, spread.lower, spread.upper)
        )
        rows.append(("time", f"{median} us a call, quartiles {lower} and {upper} us"))
    if options.out is not None:
        rows.append(("wrote", str(options.out)))
    return _print_rows(rows)


def _gather(options: argparse.Namespace, artifact: Artifact) -> list[Any]:
    """Return one array per input of the model, from files and, if asked for, random."""
    names = [spec.name for spec in artifact.main.inputs]
    given: dict[str, Any] = {}
    for text in options.inputs:
        name, separator, rest = text.partition("=")
        named = bool(separator) and name in names
        path = Path(rest if named else text)
        if separator and not named and not path.exists():
            raise InputError(f"{text}: {name!r} is not an input; they are {', '.join(names)}")
        if named and path.suffix in array_files.SUFFIXES[1:]:
            raise UsageError(f"{text}: a name is for .npy files; other files name their arrays")
        unnamed = name if named else next((n for n in names if n not in given), "")
        arrays = array_files.read(path, _checker(path, artifact, unnamed))
        if array_files.UNNAMED in arrays:
            left = [other for other in names if other not in given]
            if not named and not left:
                raise UsageError(f"{text}: the model takes {len(names)} arrays, all given already")
            arrays = {name if named else left[0]: arrays[array_files.UNNAMED]}
        for found, array in arrays.items():
            if found not in names:
                raise InputError(f"{path}: {found!r} is not an input; they are {', '.join(names)}")
            if found in given:
                raise UsageError(f"{text}: input {found!r} was given before")
            given[found] = array
    missing = [name for name in names if name not in given]
    if missing and not options.random:
        raise UsageError(f"no value for input {', '.join(missing)}: give a file, or --random")
    if options.size and not missing:
        raise UsageError("--size: sizes are for random inputs, and all inputs are given")
    sizes = dict(options.size)
    random = random_inputs(artifact, options.seed, sizes) if missing else [None] * len(names)
    return [given.get(name, array) for name, array in zip(names, random, strict=True)]


def _checker(path: Path, artifact: Artifact, unnamed: str) -> array_files.Check:
    """Return a check that an array in a file fits an input's shape, made before reading it."""
    specs = {spec.name: spec for spec in artifact.main.inputs}

    def check(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        spec = specs.get(name or unnamed)
        if spec is not None and not may_be(shape, spec.shape):
            raise InputError(
                f"input {spec.name!r} is {describe(shape, str(dtype))}, "
                f"the model was compiled for {describe(spec.shape, spec.dtype)}"
            )
        if spec is None and name:
            raise InputError(f"{path}: {name!r} is not an input; they are {', '.join(specs)}")

    return check


def _time(executor: Executor, tensors: Sequence[Any], calls: int) -> Spread:
    """Return seconds per call, with inputs that are already converted."""
    for _ in range(_WARMUP_CALLS):
        executor.call(tensors)
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        executor.call(tensors)
        seconds.append(time.perf_counter() - start)
    return Spread.of(seconds)


def _summary(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return shape, dtype, and the range and mean of the finite values (None if there are none)."""
    values = array.astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    numbers = (finite.min(), finite.mean(), finite.max()) if finite.size else (None,) * 3
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        **{
            name: None if number is None else float(number)
            for name, number in zip(("min", "mean", "max"), numbers, strict=True)
        },
        "not_finite": int(values.size - finite.size),
    }


def _summary_line(entry: Mapping[str, Any]) -> str:
    line = describe(entry["shape"], entry["dtype"])
    if entry["min"] is not None:
        line += f", {entry['min']:.6g} to {entry['max']:.6g}, mean {entry['mean']:.6g}"
    return line + (f", {entry['not_finite']} NaN or infinite" if entry["not_finite"] else "")


# Printing


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinity


def _print_json(facts: Mapping[str, Any]) -> int:
    sys.stdout.write(json.dumps(facts, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
    return OK


def _print_rows(rows: Sequence[tuple[str, str]]) -> int:
    """Print two columns; a repeated name is printed only once. Long lines are not broken."""
    rows = [(printable(name), printable(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    before = None
    for name, text in rows:
        sys.stdout.write(f"{'' if name == before else name:<{width}}  {text}\n")
        before = name
    sys.stdout.flush()
    return OK
