"""Compile a zoo of architectures through PyTorch and through ONNX, compare, reload and time them.

    python -m bench.zoo others timm --out out/zoo.jsonl   # groups, or single models by name
    python -m bench.zoo --out out/zoo.jsonl --table       # what is known so far

Each model runs in a process of its own, with a limit, and gives a line of JSON; models that have a
line without an error are left out, so that an interrupted run goes on. A result may differ from
PyTorch's by 1e-4 of the largest element. The ONNX file is written by PyTorch's exporter `dynamo`
(its default; needs onnxscript) or `torchscript`. Times are of whole calls with one set of inputs,
each side in a process of its own, in blocks that take turns: the exported artifacts in needle's
runtime, PyTorch's model, and ONNX Runtime's of the ONNX file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import needle_tvm
from needle_tvm import runtime
from needle_tvm.process.timing import Contestant, contest, load_arrays, save_arrays

MOST = 1e-4  # difference, relative to the largest element
ROUNDS = 5
BLOCK_SECONDS = 0.15
WAYS = ("torch", "onnx")
TIMED = ("needle", "PyTorch", "needle, from ONNX", "ONNX Runtime")


def measured(group: str, name: str, exporter: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Everything about one model, as a line of the file."""
    import torch

    from bench.zoo_models import GROUPS
    from needle.torch.structure import Flat

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, args, kwargs = GROUPS[group][name]()
    flat = Flat(model, args, kwargs)
    tensors = [tensor for _, tensor in flat.tensors]
    arrays = [each.numpy() for each in tensors]
    wanted = [each.numpy() for each in flat.module(*tensors)]
    row: dict[str, Any] = {"exporter": exporter}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"

        def through_torch() -> dict[str, Any]:
            return _compiled(
                lambda: needle_tvm.compile_torch(model, *args, kwargs=kwargs, recompile=True),
                arrays, wanted, Path(folder) / "torch",
            )  # fmt: skip

        def through_onnx() -> dict[str, Any]:
            _export(flat.module, tensors, file, exporter)
            given = arrays[: len(_onnx_runtime(file)[1])]  # those that the results need
            return _compiled(
                lambda: needle_tvm.compile_onnx(file, *given, recompile=True),
                given, wanted, Path(folder) / "onnx",
            )  # fmt: skip

        for way, run in (("torch", through_torch), ("onnx", through_onnx)):
            try:
                row[way] = run()
            except Exception as error:  # whatever it is, it is what the line says
                row[way] = {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
        inputs = str(Path(folder) / "inputs.npz")
        save_arrays(inputs, {str(i): array for i, array in enumerate(arrays)})
        row["ms"] = _times(Path(folder), file, inputs, group, name, rounds)
    return row


def _compiled(
    compile: Callable[[], Any], arrays: Sequence[Any], wanted: Sequence[Any], folder: Path
) -> dict[str, Any]:
    """How what is compiled does: seconds, the error, and if its export, in `folder`, gives the
    same."""
    began = time.perf_counter()
    compiled = compile()
    seconds = time.perf_counter() - began
    found = compiled.program.run(arrays)
    compiled.export(folder)
    reloaded = needle_tvm.load(folder).program.run(arrays)
    return {
        "compile_s": round(seconds, 1),
        "error": difference(wanted, found),
        "reloads": difference(found, reloaded) == 0.0,
    }


def _export(module: Any, tensors: Sequence[Any], file: Path, exporter: str) -> None:
    import torch

    if exporter == "dynamo":
        torch.onnx.export(module, tuple(tensors), file, dynamo=True, verbose=False)
    else:
        torch.onnx.export(module, tuple(tensors), file, dynamo=False, opset_version=17)


def _onnx_runtime(file: Path) -> tuple[Any, list[str]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session, [each.name for each in session.get_inputs()]


def _times(
    folder: Path, file: Path, inputs: str, group: str, name: str, rounds: int
) -> dict[str, float]:
    """The median of each side that there is, in milliseconds."""
    sides = {
        "needle": (folder / "torch", "artifact", {"path": str(folder / "torch")}),
        "PyTorch": (folder, "pytorch", {"group": group, "name": name}),
        "needle, from ONNX": (folder / "onnx", "artifact", {"path": str(folder / "onnx")}),
        "ONNX Runtime": (file, "onnx_runtime", {"path": str(file)}),
    }
    there = [
        Contestant(side, f"bench.zoo:{factory}", {**kwargs, "inputs": inputs})
        for side, (needed, factory, kwargs) in sides.items()
        if needed.exists()
    ]
    results = contest(there, rounds=rounds, block_seconds=BLOCK_SECONDS)
    return {result.name: round(1e3 * result.median, 3) for result in results}


# The sides of a contest: each in a child process.

Calls = tuple[Callable[[], Any], Callable[[], list[Any]]]


def artifact(path: str, inputs: str) -> Calls:
    """An exported model in needle's runtime, called with arrays by name."""
    program = runtime.load(path)
    names = [spec["name"] for spec in program.inputs]
    feeds = dict(zip(names, load_arrays(inputs), strict=False))
    return lambda: program(**feeds), lambda: []


def pytorch(group: str, name: str, inputs: str) -> Calls:
    """The model in PyTorch, called with its own arguments."""
    import torch

    from bench.zoo_models import GROUPS

    torch.set_grad_enabled(False)
    model, args, kwargs = GROUPS[group][name]()
    return lambda: model(*args, **kwargs), lambda: []


def onnx_runtime(path: str, inputs: str) -> Calls:
    """The ONNX file in ONNX Runtime."""
    session, names = _onnx_runtime(Path(path))
    feeds = dict(zip(names, load_arrays(inputs), strict=False))
    return lambda: session.run(None, feeds), lambda: []


def difference(wanted: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest difference of a result, relative to its largest element."""
    if len(wanted) != len(found):
        return float("inf")
    worst = [0.0]
    for want, have in zip(wanted, found, strict=True):
        if want.shape != have.shape:
            return float("inf")
        if want.size:
            exact = np.asarray(want, "float64")
            off = np.abs(np.asarray(have, "float64") - exact).max()
            worst.append(off / max(np.abs(exact).max(), 1e-30))
    return float(np.max(worst))  # NaN if one is


def _in_a_process(group: str, name: str, exporter: str, limit: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.zoo", "--exporter", exporter, "--one", group, name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return _failed(f"took more than {limit:.0f} s")
    lines = run.stdout.strip().splitlines()
    if run.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return _failed((run.stderr.strip().splitlines() or [f"exit {run.returncode}"])[-1][:400])


def _failed(why: str) -> dict[str, Any]:
    return {way: {"fails": why} for way in WAYS}


def is_right(found: dict[str, Any]) -> bool:
    return "fails" not in found and found["error"] <= MOST and found["reloads"]


def _known(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as a table in Markdown, with counts at the end."""
    heads = ["model", "torch: compile s", "error", "ONNX: compile s", "error"]
    heads += [*(f"{who} ms" for who in TIMED), "faster peer / needle"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        cells = [name]
        for way in WAYS:
            found = row[way]
            if "fails" in found:
                cells += [found["fails"].replace("|", "/"), ""]
            else:
                lost = "" if found["reloads"] else " (reloaded otherwise)"
                cells += [str(found["compile_s"]), f"{found['error']:.1e}{lost}"]
        times = row.get("ms", {})
        cells += [str(times.get(who, "")) for who in TIMED]
        peers = [times[who] for who in ("PyTorch", "ONNX Runtime") if who in times]
        known = peers and "needle" in times
        cells.append(f"{min(peers) / times['needle']:.2f}" if known else "")
        lines.append(f"| {' | '.join(cells)} |")
    for way in WAYS:
        right = sum(is_right(row[way]) for row in rows.values())
        lines += ["", f"through {way}: {right} of {len(rows)} compile, agree and reload"]
    return "\n".join(lines)


def main() -> int:
    """Run the models that are asked for and have no result yet."""
    from bench.zoo_models import GROUPS

    parser = argparse.ArgumentParser(prog="bench.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="GROUP|MODEL", help=", ".join(GROUPS))
    parser.add_argument("--out", type=Path, default=Path("out/zoo.jsonl"))
    parser.add_argument("--limit", type=float, default=900, help="seconds for one model")
    newer = importlib.util.find_spec("onnxscript") is not None
    parser.add_argument(
        "--exporter",
        choices=("dynamo", "torchscript"),
        default="dynamo" if newer else "torchscript",
        help="PyTorch's exporter (default: dynamo if onnxscript is installed)",
    )
    parser.add_argument("--table", action="store_true", help="only print what is known")
    parser.add_argument("--one", nargs=2, metavar=("GROUP", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(*asked.one, asked.exporter)))
        return 0
    names = {name for group in GROUPS.values() for name in group} | set(GROUPS)
    unknown = sorted(set(asked.which) - names)
    if unknown:
        parser.error(f"{unknown[0]!r} is neither a group nor a model")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for group, models in () if asked.table else GROUPS.items():
        package = None if group == "others" else group
        for name in models:
            wanted = not asked.which or group in asked.which or name in asked.which
            known = _known(asked.out).get(f"{group}/{name}")
            if not wanted or (known is not None and all(is_right(known[way]) for way in WAYS)):
                continue
            if package is not None and importlib.util.find_spec(package) is None:
                print(f"{group}: not installed (pip install {package})", file=sys.stderr)
                break
            found = _in_a_process(group, name, asked.exporter, asked.limit)
            row = {"model": f"{group}/{name}", **found}
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table(_known(asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
