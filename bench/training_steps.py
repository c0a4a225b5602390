"""Whole training steps of seven small models: needle eager and compiled by `needle_tvm.jit`,
compared with PyTorch, torch.compile and JAX. With --memory, the peak memory of a step instead."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apps.peers
import apps.report
import needle as ndl
from bench import charts, contests, harness, memory, tables, training_calls
from bench.training_models import MODELS
from needle_runtime.process import command_line as cli
from needle_runtime.process import timing
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant
from needle_runtime.text import duration

OURS = "needle jit"
TORCH, COMPILE, JAX = apps.peers.TORCH_EAGER, "torch.compile", "JAX jit"
NAMES = (contests.EAGER, OURS, TORCH, COMPILE, JAX)
PEERS = ("torch", "jax")  # keys of apps.peers
BATCHES = 8  # number of batches that the steps cycle through
# Allowed differences of losses, relative to the largest; `check_agreement` adds 1e-4 of each loss.
# Batch norms over 16 numbers, and AdamW, whose steps do not shrink with the gradient, turn rounding
# in the first step into a difference of 4e-3 in the fifth.
TOLERANCES = {"resnet": 1e-2}
NOTES = (
    "a step: forward, loss, backward, gradients clipped by norm, AdamW, and the loss read; without "
    "dropout; the same weights and batches for all",
    f"losses of the first {training_calls.COMPARED} steps are compared with losses of eager steps "
    f"in float64: they agree to 1.1e-4, resnet's to {TOLERANCES['resnet']:g}; `error` is "
    "the largest difference over the largest loss",
    "torch.compile compiles the loss (for pinn, with derivatives by torch.func); PyTorch's "
    "AdamW is the fused one; JAX's state is donated",
    "first call: the first step with an empty cache, after imports, while the others wait",
)


def make_parser() -> argparse.ArgumentParser:
    parser = harness.make_parser("bench.training_steps", __doc__)
    # A contestant that fails is left out of the row. Contestants that compile start one after
    # another, so that their first calls can be compared.
    parser.set_defaults(strict=False, alone=(OURS, COMPILE, JAX))
    add = parser.add_argument
    add(
        "--contestants",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="NAME",
        help="contestants, of: %(choices)s",
    )
    add("--memory", action="store_true", help="measure peak memory instead of times")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.training_steps", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contest of each model, or measure its memory."""
    if not options.memory:
        cases = {name: partial(entries_of, name) for name in MODELS}
        title = "a step, the fastest peer's time over ours, and the first call"
        more = {"notes": NOTES, "title": title, "table": table, "draw": charts.draw_ratios}
        return harness.run(options, "training_steps", cases, PEERS, **more)
    jobs = [partial(measure_memory, n, options) for n in harness.chosen(MODELS, options.parts)]
    title = "most bytes of arrays in a step, minus the bytes before it"
    return harness.record(
        *(
            options,
            "training_memory",
            jobs,
            lambda report: [(title, memory_table(report["memory"]))],
        ),
        key="memory",
        peers=PEERS,
        how="nothing timed",
    )


def contestants(name: str, options: argparse.Namespace, folder: Path) -> list[Contestant]:
    """Return a model's chosen and installed contestants; the folder gets their files."""
    ndl.manual_seed(0)
    model, batch, _ = MODELS[name](ndl)
    files = {each: str(folder / f"{each}.npz") for each in ("needle", "torch", "batches")}
    for layout in ("needle", "torch"):
        state = model.state_dict(layout=layout)
        timing.save_arrays(files[layout], {key: value.numpy() for key, value in state.items()})
    arrays = {f"{i}.{n}": x for i in range(BATCHES) for n, x in enumerate(batch(i))}
    timing.save_arrays(files["batches"], arrays)
    threads = options.threads

    def entry(title: str, factory: str, env: Mapping[str, str], **others: Any) -> Contestant:
        weights = files["torch" if factory == "pytorch" else "needle"]
        kwargs = {"name": name, "weights": weights, "batches": files["batches"], **others}
        factory = f"{training_calls.__name__}:{factory}"
        return Contestant(title, factory, kwargs, env=env, threads=threads)

    # Each contest has its own caches, so that a first call compiles.
    caches = {key: str(folder / key) for key in ("NEEDLE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    entries = [entry(contests.EAGER, "needle", {}, compiled=False)]
    entries.append(entry(OURS, "needle", caches, compiled=True))
    if importlib.util.find_spec("torch"):
        entries.append(entry(TORCH, "pytorch", {}, threads=threads, compiled=False))
        entries.append(entry(COMPILE, "pytorch", caches, threads=threads, compiled=True))
    if importlib.util.find_spec("jax"):
        entries.append(entry(JAX, "jax", apps.peers.PEERS["jax"].environment(threads)))
    return [each for each in entries if each.name in options.contestants]


def entries_of(name: str, options: argparse.Namespace, folder: Path) -> harness.Entries:
    """Return a model's contestants, the losses of eager steps in float64, and the tolerance."""
    entries = contestants(name, options, folder)
    files = {key: str(folder / f"{key}.npz") for key in ("needle", "batches")}
    _, losses = training_calls.needle(
        name, files["needle"], files["batches"], compiled=False, dtype="float64"
    )
    return entries, losses(), TOLERANCES.get(name, 0.0)


def table(cases: Sequence[Mapping[str, Any]]) -> tables.Rows:
    """Return a row for each model: times, the fastest peer's ratio with quartiles, first calls."""
    compiled = (OURS, COMPILE, JAX)
    rows = [["model", *NAMES, "fastest peer", f"its time / {OURS}"]]
    rows[0] += [f"first call of {name}" for name in compiled]
    for case in cases:
        entries = {entry["name"]: entry for entry in case["contestants"]}
        times = [duration(entries[name]["median"]) if name in entries else "" for name in NAMES]
        name = case.get("fastest", "")
        ratio = case["ratios"].get(OURS, {}).get(name)
        row = [case["case"], *times, name, apps.report.ratio(ratio) if ratio else ""]
        firsts = [duration(entries[name]["first"]) if name in entries else "" for name in compiled]
        rows.append(row + firsts)
    return rows


def measure_memory(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return each contestant's peak bytes in a step."""
    ways = {contests.EAGER: "of_needle", OURS: "of_code", TORCH: "of_torch", COMPILE: "of_torch"}
    with scratch_folder("needle-bench-") as folder:
        probes = []
        for entry in contestants(name, options, folder):
            way = ways.get(entry.name)
            kwargs = {**entry.kwargs, **({"factory": entry.factory, "how": way} if way else {})}
            probe = f"{memory.__name__}:{'step' if way else 'jax_step'}"
            probes.append(replace(entry, factory=probe, kwargs=kwargs))
        found = timing.collect_outputs(probes, timeout=options.timeout)
    return {"case": name, "bytes": {each: int(found[each][0][0]) for each in found}}


def memory_table(found: Sequence[Mapping[str, Any]]) -> tables.Rows:
    """Return a row for each model: memory in MB, and our memory over PyTorch's."""
    names = list(dict.fromkeys(name for each in found for name in each["bytes"]))
    rows = [["MB", *names, f"{OURS} / {TORCH}"]]
    for each in found:
        sizes = each["bytes"]
        cells = [f"{sizes[name] / 1e6:.2f}" if name in sizes else "" for name in names]
        ratio = f"{sizes[OURS] / sizes[TORCH]:.2f}" if {OURS, TORCH} <= sizes.keys() else ""
        rows.append([each["case"], *cells, ratio])
    return rows


if __name__ == "__main__":
    sys.exit(main())
