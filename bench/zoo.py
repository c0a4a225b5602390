"""Compile a zoo of architectures with `compile_torch`, compare, export, reload and time them.

    python -m bench.zoo others timm --out out/zoo.jsonl   # groups, or single models by name
    python -m bench.zoo --out out/zoo.jsonl --table       # what is known so far

Each model runs in a process of its own, with a limit, and gives a line of JSON; models that have a
line that is no error are left out, so that an interrupted run goes on. A result may differ from
PyTorch's by 1e-4 of the largest element. Times are of calls with one set of inputs, in rounds that
take turns: needle's with PyTorch tensors, PyTorch's own, and ONNX Runtime's on the exported model.
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
from statistics import median
from typing import Any

import numpy as np

MOST = 1e-4  # difference, relative to the largest element
ROUNDS = 15


def measured(group: str, name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Everything about one model, as a line of the file."""
    import torch

    import needle_tvm
    from bench.zoo_models import GROUPS
    from needle_tvm.frontend.torch.structure import Flat

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, args, kwargs = GROUPS[group][name]()
    flat = Flat(model, args, kwargs)
    tensors = [tensor for _, tensor in flat.tensors]
    wanted = [each.numpy() for each in flat.module(*tensors)]
    began = time.perf_counter()
    compiled = needle_tvm.compile_torch(model, *args, kwargs=kwargs, recompile=True)
    seconds = time.perf_counter() - began
    found = compiled.program.run([each.numpy() for each in tensors])
    result: dict[str, Any] = {"compile_s": round(seconds, 1), "error": difference(wanted, found)}
    with tempfile.TemporaryDirectory() as folder:
        compiled.export(Path(folder) / "model")
        again = needle_tvm.load(Path(folder) / "model").program
        reloaded = again.run([each.numpy() for each in tensors])
        result["reloads"] = difference(found, reloaded) == 0.0
        calls: dict[str, Callable[[], Any]] = {
            "needle": lambda: compiled(*args, **kwargs),
            "PyTorch": lambda: model(*args, **kwargs),
        }
        try:
            calls["ONNX Runtime"] = _onnx_runtime(flat.module, tensors, Path(folder) / "m.onnx")
        except Exception as error:  # the exporter has many error types for what it does not take
            result["onnx"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        result["ms"] = _times(calls, rounds)
    return result


def _onnx_runtime(module: Any, tensors: Sequence[Any], path: Path) -> Callable[[], Any]:
    import onnxruntime
    import torch

    torch.onnx.export(module, tuple(tensors), path, dynamo=False, opset_version=17)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    feeds = {name: each.numpy() for name, each in zip(names, tensors, strict=False)}
    return lambda: session.run(None, feeds)


def _times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median of each, in milliseconds, in rounds that take turns."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number > 1:  # the first two warm up
                seen[name].append(1e3 * (time.perf_counter() - began))
    return {name: round(median(each), 3) for name, each in seen.items()}


def difference(wanted: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest difference of a result, relative to its largest element."""
    if len(wanted) != len(found):
        return float("inf")
    worst = 0.0
    for want, have in zip(wanted, found, strict=True):
        if want.size:
            off = np.abs(np.asarray(have, "float64") - np.asarray(want, "float64")).max()
            worst = max(worst, float(off / max(np.abs(np.asarray(want, "float64")).max(), 1e-30)))
    return worst


def _in_a_process(group: str, name: str, limit: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.zoo", "--one", group, name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"fails": f"took more than {limit:.0f} s"}
    lines = run.stdout.strip().splitlines()
    if run.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"fails": (run.stderr.strip().splitlines() or ["no message"])[-1][:400]}


def _known(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as a table in Markdown, with a count at the end."""
    lines = [
        "| model | compile s | error | reloads | needle ms | PyTorch ms | ONNX Runtime ms |",
        "|---|---|---|---|---|---|---|",
    ]
    right = 0
    for name, row in rows.items():
        if "fails" in row:
            lines.append(f"| {name} | {row['fails']} | | | | | |")
            continue
        right += row["error"] <= MOST and row["reloads"]
        times = [str(row["ms"].get(who, "")) for who in ("needle", "PyTorch", "ONNX Runtime")]
        cells = [name, row["compile_s"], f"{row['error']:.1e}", row["reloads"], *times]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"{right} of {len(rows)} compile, agree and reload"])


def main() -> int:
    """Run the models that are asked for and have no result yet."""
    from bench.zoo_models import GROUPS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="GROUP|MODEL", help=", ".join(GROUPS))
    parser.add_argument("--out", type=Path, default=Path("out/zoo.jsonl"))
    parser.add_argument("--limit", type=float, default=900, help="seconds for one model")
    parser.add_argument("--table", action="store_true", help="only print what is known")
    parser.add_argument("--one", nargs=2, metavar=("GROUP", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(*asked.one)))
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
            if not wanted or (known is not None and "fails" not in known):
                continue
            if package is not None and importlib.util.find_spec(package) is None:
                print(f"{group}: not installed (pip install {package})", file=sys.stderr)
                break
            row = {"model": f"{group}/{name}", **_in_a_process(group, name, asked.limit)}
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table(_known(asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
