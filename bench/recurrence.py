"""Recurrent layers, forward and gradient, compared with PyTorch, JAX and ONNX Runtime; with
--own, users' cells written with `ndl.scan`, compared with JAX's `lax.scan`."""

from __future__ import annotations

import argparse
import importlib.util
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
from needle_runtime.process import command_line as cli
from needle_runtime.process.timing import Contestant, save_arrays
from needle_runtime.text import duration

OURS = "needle compiled"
JAX = "JAX lax.scan"
PEERS = ("torch", "onnxruntime", "jax")


def make_parser() -> argparse.ArgumentParser:
    parser = harness.make_parser("bench.recurrence", __doc__)
    add = parser.add_argument
    add("--torch-compile", action="store_true", help="also torch.compile (minutes)")
    add("--own", action="store_true", help="time users' cells")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.recurrence", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the chosen measurement, print each case when it ends, and write all of them."""
    options.strict = False  # a contestant that fails is left out of the row
    if options.own:
        found = [Recurrence(name, mode, OWN[name]) for name in OWN for mode in MODES]
    else:
        found = [layer(name, size, mode) for name in GATES for size in SIZES for mode in MODES]
    cases = {each.title: partial(entries_of, each) for each in found}
    notes = [
        "layers: steps-batch-input-hidden-layers; forward: weights are constants; gradient: of the "
        "weights, which are inputs, for the sum of y * y"
    ]
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
        return Contestant(name, f"{code}:{factory}", kwargs, threads=threads)

    entries = [
        entry(OURS, "needle", compiled=True),
        entry(contests.EAGER, "needle", compiled=False),
    ]
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
    """Return a row for each case: our time, and the ratios of the other contestants' times to ours,
    with quartiles; the fastest of them comes first."""
    names = list(dict.fromkeys(name for case in cases for name in case["ratios"].get(OURS, {})))
    rows = [["case", OURS, "fastest other", "its time / ours", *(f"{n} / ours" for n in names)]]
    for case in cases:
        ratios = case["ratios"].get(OURS, {})
        texts = {name: apps.report.ratio(ratio) for name, ratio in ratios.items()}
        medians = {entry["name"]: entry["median"] for entry in case["contestants"]}
        fastest = case.get("fastest", "none")
        row = [case["case"], duration(medians[OURS]) if OURS in medians else "left out"]
        rows.append([*row, fastest, texts.get(fastest, ""), *(texts.get(n, "") for n in names)])
    return rows


if __name__ == "__main__":
    sys.exit(main())
