"""Load, compile and time a zoo of 100 architectures through PyTorch and ONNX, beside PyTorch.

    python -m bench.zoo others timm --out out/zoo.jsonl       # groups, or single models by name
    python -m bench.zoo --steps load eager gradients onnx     # without compiling
    python -m bench.zoo --out out/zoo.jsonl --table           # what is known so far

The models are the 60 of `bench.zoo_models` and the 40 that `bench.zoo_drawn` draws. Each runs in a
process of its own, with a limit, and gives a line of JSON with what each step found:

- load: `needle.torch.load`; eager: its run; onnx: ONNX Runtime's run of the file that
  `needle.onnx.export` writes of it; gradients: those of the parameters of 30 models
- tuned: `compile_torch`; imported: `compile_onnx` of the file that PyTorch's exporter writes,
  `dynamo` (its default; needs onnxscript) or `torchscript`
- times: milliseconds of whole calls with one set of inputs, each side in a process of its own, in
  blocks that take turns: the exported artifacts in needle's runtime, PyTorch's model, and ONNX
  Runtime's of PyTorch's ONNX file

A result may differ from PyTorch's by 1e-4 of its largest element, a gradient by 1e-3, and code must
give the same bits once it is exported and loaded again. Whatever is refused counts as wrong. Steps
that have a right line are left out, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import tables
from bench.zoo_steps import MOST, STEPS, TIMED, Found, Subject, groups
from needle_tvm.process.child import Child, ChildError

DIFFERENTIATED = 30
ROUNDS = 5


def differentiated() -> set[tuple[str, str]]:
    """The models (group, name) whose gradients are compared: drawn with seed 17."""
    names = [(group, name) for group, models in groups().items() for name in models]
    return set(random.Random(17).sample(names, DIFFERENTIATED))


def measured(
    group: str, name: str, steps: Sequence[str], exporter: str, rounds: int = ROUNDS
) -> Found:
    """Everything about one model, as a line of the file: what each step found, or why it failed."""
    row: Found = {"exporter": exporter}
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(group, name, Path(folder), exporter, rounds)
        for step in steps:
            began = time.perf_counter()
            try:
                row[step] = STEPS[step](subject)
            except Exception as error:  # whatever it is, it is what the line says
                row[step] = {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
            row[step]["s"] = round(time.perf_counter() - began, 1)
            if step == "load" and "fails" in row[step]:
                break
    return row


def is_right(step: str, found: Found) -> bool:
    """Whether a step of a model gave PyTorch's result."""
    if "fails" in found:
        return False
    return step not in MOST or (found["error"] <= MOST[step] and found.get("reloads", True))


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Found]:
    """A service: what `measured` says with the keywords `setup`."""
    yield measured(**setup)


def _in_a_process(group: str, name: str, steps: Sequence[str], asked: argparse.Namespace) -> Found:
    setup = {"group": group, "name": name, "steps": steps, "exporter": asked.exporter}
    try:
        with Child(f"{group}/{name}", "bench.zoo:serve", setup, timeout=asked.limit) as child:
            return child.receive("model")
    except ChildError as error:
        return {"load": {"fails": str(error)[:400]}}


def _known(path: Path) -> dict[str, Found]:
    """The last line of each model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def table(rows: Mapping[str, Found]) -> str:
    """The rows as a table in Markdown, with counts at the end; steps that nobody asked for are left
    out."""
    steps = [step for step in STEPS if any(step in row for row in rows.values())]
    heads = ["model"]
    for step in steps:
        heads += [f"{who} ms" for who in TIMED] if step == "times" else [step]
        heads += ["faster peer / needle"] * (step == "times")
        heads += ["compile s"] * (step in ("tuned", "imported"))
    body = [
        [name, *(cell for step in steps for cell in _cells(step, row.get(step, {})))]
        for name, row in rows.items()
    ]
    lines = [tables.markdown_rows([heads, *body]).rstrip()]
    for step in steps:
        tried = [row for row in rows.values() if step in row or step != "gradients"]
        right = sum(is_right(step, row[step]) for row in tried if step in row)
        lines += ["", f"{step}: {right} of {len(tried)} are right"]
    return "\n".join(lines)


def _cells(step: str, found: Found) -> Iterable[str]:
    if step == "times":
        ms = found.get("ms", {})
        peers = [ms[who] for who in ("PyTorch", "ONNX Runtime") if who in ms]
        known = peers and "needle" in ms
        ratio = f"{min(peers) / ms['needle']:.2f}" if known else ""
        return [*(str(ms.get(who, "")) for who in TIMED), ratio]
    if "fails" in found:
        text = found["fails"].replace("|", "/")
    elif step == "load":
        text = str(found.get("s", ""))
    else:
        text = f"{found['error']:.1e}" if "error" in found else ""
        text += "" if found.get("reloads", True) else " (reloaded otherwise)"
    compiled = [str(found.get("compile_s", ""))] * (step in ("tuned", "imported"))
    return [text, *compiled]


def main() -> int:
    """Run the models that are asked for and have no right result yet."""
    parser = argparse.ArgumentParser(prog="bench.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="GROUP|MODEL", help=", ".join(groups()))
    parser.add_argument("--out", type=Path, default=Path("out/zoo.jsonl"))
    parser.add_argument("--limit", type=float, default=900, help="seconds for one model")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=tuple(STEPS))
    newer = importlib.util.find_spec("onnxscript") is not None
    parser.add_argument(
        "--exporter",
        choices=("dynamo", "torchscript"),
        default="dynamo" if newer else "torchscript",
        help="PyTorch's exporter (default: dynamo if onnxscript is installed)",
    )
    parser.add_argument("--table", action="store_true", help="only print what is known")
    asked = parser.parse_args()
    unknown = set(asked.which) - {n for models in groups().values() for n in models} - set(groups())
    if unknown:
        parser.error(f"{min(unknown)!r} is neither a group nor a model")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    chosen = differentiated()
    for group, models in () if asked.table else groups().items():
        package = group.removeprefix("drawn ")
        for name in models:
            steps = [s for s in asked.steps if s != "gradients" or (group, name) in chosen]
            wanted = not asked.which or group in asked.which or name in asked.which
            known = _known(asked.out).get(f"{group}/{name}", {})
            if not wanted or all(step in known and is_right(step, known[step]) for step in steps):
                continue
            if package != "others" and importlib.util.find_spec(package) is None:
                print(f"{group}: not installed (pip install {package})", file=sys.stderr)
                break
            row = {"model": f"{group}/{name}", **_in_a_process(group, name, steps, asked)}
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table(_known(asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
