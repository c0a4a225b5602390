"""The commands `verify` and `run`."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import needle_runtime
from needle_runtime.artifact import Artifact, array_files
from needle_runtime.artifact.arrays import describe
from needle_runtime.artifact.sizes import may_be
from needle_runtime.cli.common import add_command, print_json, print_rows, signature_state, size
from needle_runtime.errors import (
    ArtifactError,
    EvaluationError,
    InputError,
    NeedleTVMError,
    TargetError,
    UsageError,
)
from needle_runtime.executor import Executor
from needle_runtime.process.command_line import (
    OK,
    add_size,
    check_writable,
    natural,
    repeats,
)
from needle_runtime.process.timing import Spread
from needle_runtime.random_inputs import random_inputs
from needle_runtime.target import host
from needle_runtime.text import error_line

_WARMUP_CALLS = 5


def add_parser(subparsers: Any) -> None:
    """Add both commands to a parser's subparsers."""
    about = "check every file, the processor, and the golden outputs; exit code 1 if any is wrong"
    add_command(subparsers, "verify", about, _verify)

    about = "run an artifact on arrays from files, or on random arrays"
    run = add_command(subparsers, "run", about, _run)
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


# verify


def _verify(options: argparse.Namespace) -> int:
    try:
        program = _load(options)
    except NeedleTVMError as error:
        if options.json:
            print_json({"path": str(options.path), "ok": False, "error": error_line(error)})
        raise
    manifest = program.artifact.manifest
    test = needle_runtime.self_test(program)
    facts = {
        "path": str(options.path),
        "ok": test.passed,
        "files": len(manifest["files"]),
        "size": size(manifest),
        "signature": signature_state(options),
        "features": manifest["target"].get("features", []),
        "golden": {
            "source": test.source,
            "differences": [_finite(difference) for difference in test.differences],
            "tolerances": list(test.tolerances),
            "passed": test.passed,
        },
    }
    if options.json:
        print_json(facts)
    else:
        pairs = list(zip(test.differences, test.tolerances, strict=True))
        differences = ", ".join(f"{have:.2g} of {allowed:.2g}" for have, allowed in pairs)
        print_rows(
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


def _load(options: argparse.Namespace) -> needle_runtime.Program:
    try:
        return needle_runtime.load(options.path, require_signature=options.require_signature)
    except TargetError as error:  # the artifact does not fit this machine; no option is wrong
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
        return print_json(facts)
    rows = [(entry["name"], _summary_line(entry)) for entry in facts["outputs"]]
    if spread is not None:
        median, lower, upper = (
            f"{1e6 * t:,.1f}" for t in (spread.median, spread.lower, spread.upper)
        )
        rows.append(("time", f"{median} us a call, quartiles {lower} and {upper} us"))
    if options.out is not None:
        rows.append(("wrote", str(options.out)))
    return print_rows(rows)


def _gather(options: argparse.Namespace, artifact: Artifact) -> list[Any]:
    """Return one array per input of the model: from files, or random if that was requested."""
    names = [spec.name for spec in artifact.main.inputs]
    by_name: dict[str, Any] = {}
    for text in options.inputs:
        name, separator, rest = text.partition("=")
        named = bool(separator) and name in names
        path = Path(rest if named else text)
        if separator and not named and not path.exists():
            raise InputError(f"{text}: {name!r} is not an input; they are {', '.join(names)}")
        if named and path.suffix in array_files.SUFFIXES[1:]:
            raise UsageError(f"{text}: a name is for .npy files; other files name their arrays")
        unnamed = name if named else next((n for n in names if n not in by_name), "")
        arrays = array_files.read(path, _checker(path, artifact, unnamed))
        if array_files.UNNAMED in arrays:
            left = [other for other in names if other not in by_name]
            if not named and not left:
                raise UsageError(f"{text}: the model takes {len(names)} arrays, all given already")
            arrays = {name if named else left[0]: arrays[array_files.UNNAMED]}
        for input_name, array in arrays.items():
            if input_name not in names:
                raise InputError(
                    f"{path}: {input_name!r} is not an input; they are {', '.join(names)}"
                )
            if input_name in by_name:
                raise UsageError(f"{text}: input {input_name!r} was given before")
            by_name[input_name] = array
    missing = [name for name in names if name not in by_name]
    if missing and not options.random:
        raise UsageError(f"no value for input {', '.join(missing)}: give a file, or --random")
    if options.size and not missing:
        raise UsageError("--size: sizes are for random inputs, and all inputs are given")
    sizes = dict(options.size)
    random = random_inputs(artifact, options.seed, sizes) if missing else [None] * len(names)
    return [by_name.get(name, array) for name, array in zip(names, random, strict=True)]


def _checker(path: Path, artifact: Artifact, unnamed: str) -> array_files.Check:
    """Return a function that checks, before an array is read from a file, whether its shape fits
    the input."""
    specs = {spec.name: spec for spec in artifact.main.inputs}

    def check(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        spec = specs.get(name or unnamed)
        if spec is not None and not may_be(shape, spec.shape):
            raise InputError(
                f"input {spec.name!r} is {describe(shape, str(dtype))}, "
                f"but the model was compiled for {describe(spec.shape, spec.dtype)}"
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
    """Return shape and dtype, range and mean of the finite values (None if there are none), and the
    number of other values."""
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


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinity
