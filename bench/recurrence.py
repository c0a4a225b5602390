"""Recurrent layers, forward and gradient, compared with PyTorch, JAX and ONNX Runtime and, with
--before, with another commit; with --own, users' cells written with `ndl.scan`, compared with JAX's
`lax.scan`; with --compiling, the time of compiling for each number of steps."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apps.peers
import apps.report
from bench import contests, harness, recurrence_calls
from bench.recurrence_cases import (
    GATES,
    MODES,
    OWN,
    SIZES,
    Recurrence,
    layer,
    layer_results,
    own_results,
    write_onnx,
)
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant, save_arrays
from needle_runtime.text import duration

OURS, BEFORE, BEFORE_EAGER = (
    "needle compiled",
    *(contests.BEFORE + each for each in ("compiled", "eager")),
)
JAX = "JAX lax.scan"
BEFORES = (BEFORE, BEFORE_EAGER)
PEERS = ("torch", "onnxruntime", "jax")
# Gradients of the earlier commit are compiled up to this number of steps: it unrolls each step.
MOST_UNROLLED = 24

COMPILED, STEPS = "peephole_lstm", (10, 100, 1_000, 10_000)
WHATS = ("trace", "compile", "compile and check")


def make_parser() -> argparse.ArgumentParser:
    parser = harness.make_parser("bench.recurrence", __doc__)
    add = parser.add_argument
    add("--before", type=Path, metavar="FOLDER", help="a checkout of another commit, with a .venv")
    add("--torch-compile", action="store_true", help="also torch.compile (minutes)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--own", action="store_true", help="time users' cells")
    which.add_argument("--compiling", action="store_true", help="time compiling (CPU seconds)")
    add("--steps", type=cli.positive, nargs="+", default=STEPS, help="steps for --compiling")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.recurrence", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the chosen measurement, print each case when it ends, and write all of them."""
    options.strict = False  # a contestant that fails is left out of the row
    if options.before is not None:
        options.before = options.before.resolve()
        if not (options.before / ".venv/bin/python").exists():
            raise UsageError(f"--before {options.before}: the folder has no .venv/bin/python")
    if options.compiling:
        return run_compiling(options)
    if options.own:
        found = [Recurrence(name, mode, OWN[name]) for name in OWN for mode in MODES]
    else:
        found = [layer(name, size, mode) for name in GATES for size in SIZES for mode in MODES]
    cases = {each.title: partial(entries_of, each) for each in found}
    notes = [
        "layers: steps-batch-input-hidden-layers; forward: weights are constants; gradient: of the "
        "weights, which are inputs, for the sum of y * y"
    ]
    if options.before and not options.own:
        notes.append(
            f"before: {options.before}; its gradients compiled up to {MOST_UNROLLED} steps, and "
            "eager; the table shows the faster one, and says so if that is the eager one"
        )
    name = "recurrence-own" if options.own else "recurrence"
    return harness.run(options, name, cases, PEERS, notes, "compared with others", summary)


def entries_of(case: Recurrence, options: argparse.Namespace, folder: Path) -> harness.Entries:
    """Return the contestants of a case and its exact results; their files are in the folder."""
    x, *weights = case.arrays()
    files = {"inputs": str(folder / "inputs.npz"), "weights": str(folder / "weights.npz")}
    save_arrays(files["inputs"], {"x": x})
    save_arrays(files["weights"], {f"w{i}": array for i, array in enumerate(weights)})
    threads = options.threads
    given = {"name": case.name, "mode": case.mode, **files}
    code = recurrence_calls.__file__

    def entry(name: str, factory: str, **others: Any) -> Contestant:
        kwargs = {**given, "threads": threads, **others}
        checkout = str(options.before) if name in BEFORES else None
        return Contestant(name, f"{code}:{factory}", kwargs, threads=threads, checkout=checkout)

    entries = [
        entry(OURS, "needle", compiled=True),
        entry(contests.EAGER, "needle", compiled=False),
    ]
    if case.is_layer and options.before is not None:
        if case.mode == "forward" or len(x) <= MOST_UNROLLED:
            entries.append(entry(BEFORE, "needle", compiled=True))
        if case.mode == "gradient":
            entries.append(entry(BEFORE_EAGER, "needle", compiled=False))
    jax = apps.peers.PEERS["jax"]
    if importlib.util.find_spec("jax"):
        env = jax.environment(threads)
        entries.append(Contestant(JAX, f"{code}:jax", given, env=env, threads=threads))
    if not case.is_layer:
        return entries, own_results(case, x, weights)
    entries.append(entry(apps.peers.TORCH_EAGER, "pytorch", compiled=False))
    if options.torch_compile:
        entries.append(entry("torch.compile", "pytorch", compiled=True))
    if case.mode == "forward":
        onnx = write_onnx(case.name, x, weights, folder / "model.onnx")
        entries += apps.peers.readers(("onnxruntime",), onnx, files["inputs"], threads)
    return entries, layer_results(case, x, weights)


def summary(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each case, with times over ours and quartiles: the fastest other contestant
    of this commit, the faster contestant of the earlier commit, and each other contestant."""
    names = dict.fromkeys(name for case in cases for name in case["ratios"].get(OURS, {}))
    befores = [name for name in names if name in BEFORES]
    others = [name for name in names if name not in befores]
    rows = [["case", OURS, "fastest other", "its time / ours", *["before / ours"] * bool(befores)]]
    rows[0] += [f"{name} / ours" for name in others]
    for case in cases:
        ratios = case["ratios"].get(OURS, {})
        texts = {name: apps.report.ratio(ratio) for name, ratio in ratios.items()}
        medians = {entry["name"]: entry["median"] for entry in case["contestants"]}
        name = case.get("fastest", "none")
        row = [case["case"], duration(medians[OURS]) if OURS in medians else "left out"]
        row += [name, texts.get(name, "")]
        if befores:
            present = [name for name in befores if name in ratios]
            name = min(present, key=lambda name: medians[name], default="")
            row.append(f"{texts.get(name, '')}{' eager' * (name == BEFORE_EAGER)}")
        rows.append(row + [texts.get(name, "") for name in others])
    return rows


def run_compiling(options: argparse.Namespace) -> int:
    """Trace and compile a user's cell and its gradient for each number of steps, each in its own
    process."""
    how = (
        f"CPU seconds of {COMPILED}, each in a fresh process that has compiled something before; "
        "trace: `needle.trace`, which traces the cell of `needle.scan` and runs nothing; check: "
        "also the comparison with eager code"
    )

    def compiled(mode: str, steps: int, what: str) -> dict[str, Any]:
        case = Recurrence(COMPILED, mode, OWN[COMPILED])
        with scratch_folder("needle-recurrence-") as folder:
            inputs = str(folder / "inputs.npz")
            save_arrays(inputs, {f"x{i}": a for i, a in enumerate(case.arrays(steps))})
            setup = {"name": case.name, "mode": mode, "what": what, "inputs": inputs}
            setup["threads"] = options.threads
            service = f"{recurrence_calls.__name__}:compiling"
            title = f"{case.title}, {steps} steps, {what}"
            found = contests.ask(service, setup, options.timeout, name=title)
        return {"steps": steps, "mode": mode, "what": what, **found}

    return harness.record(
        options,
        "recurrence-compiling",
        [partial(compiled, *each) for each in itertools.product(MODES, options.steps, WHATS)],
        lambda report: [("CPU seconds", compiling_table(report["compiling"]))],
        key="compiling",
        how=how,
    )


def compiling_table(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each number of steps of each mode."""
    rows = [["case", "steps", *WHATS]]
    seconds = {(each["mode"], each["steps"], each["what"]): each["seconds"] for each in found}
    for mode, steps in dict.fromkeys((mode, steps) for mode, steps, _ in seconds):
        cells = [duration(seconds[mode, steps, what]) for what in WHATS]
        rows.append([f"{COMPILED}, {mode}", str(steps), *cells])
    return rows


if __name__ == "__main__":
    sys.exit(main())
