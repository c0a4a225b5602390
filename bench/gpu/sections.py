"""The sections of `make gpu-bench`: what is measured, in the order of interest.

Importing this takes the standard library alone; each section runs in a process of its own, which
imports what it needs. A section gives JSON values: `cases` (see `contests.run`), `tables` (title
and rows) and `failed`, the reasons of what was left out by name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.gpu.host import ROOT

Found = dict[str, Any]

MODELS = ("mlp", "conv", "transformer")
PEERS = ("torch", "torch-channels-last", "torch-compile-plain", "torch-compile")
EITHER = "needle tuned or cuBLAS"  # each matmul by the faster of the two when compiling
OWN_BATCH, LARGE_BATCH = 8, 256
GEMM = 4096
STEPS, STEPS_BATCH = 1000, 64
SEARCH_MINUTES = 0.5

_WORK = ROOT / "build" / "gpu"  # caches that one call leaves for the next on the same machine
_STEP_SECONDS = 120.0  # for a contestant to start: torch.compile tunes itself
_SMALL = {"batch": 4, "size": 32, "steps": 20, "trials": 4, "extent": 64}  # of a rehearsal


@dataclass(frozen=True)
class Section:
    """One section: `measure(conditions, *arguments)` in a process of its own."""

    group: str
    measure: Callable[..., Found]
    arguments: tuple[Any, ...]


def conditions(rounds: int, rehearse: bool) -> argparse.Namespace:
    """How contests are run (see `bench.contests`). A rehearsal runs on the processor, in small."""
    from needle_tvm.process.threads import available_cores

    return argparse.Namespace(
        rounds=rounds,
        block_seconds=0.01 if rehearse else 0.06,
        threads=available_cores(),
        device="cpu" if rehearse else "cuda",
        strict=False,
        timeout=_STEP_SECONDS,
        rehearse=rehearse,
    )


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Found]:
    """A service: measures the section `name`."""
    from needle_tvm.artifact.cache import CACHE_VARIABLE

    os.environ.setdefault(CACHE_VARIABLE, str(_WORK / "cache"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_WORK / "inductor"))
    section = SECTIONS[setup["name"]]
    found = section.measure(conditions(setup["rounds"], setup["rehearse"]), *section.arguments)
    yield {"cases": [], "tables": [], "failed": {}, **found}


def _size(options: argparse.Namespace, name: str, value: int) -> int:
    return _SMALL[name] if options.rehearse else value


def _of_case(case: Found, **more: Any) -> Found:
    return {"cases": [case], "failed": case["failed"], **more}


def model(options: argparse.Namespace, name: str, batch: int, precision: str) -> Found:
    """One contest of a model: needle's ladder and PyTorch's ways to run it, in one precision."""
    from bench import cases, compiling, contests
    from needle_tvm.process.scratch import scratch_folder
    from needle_tvm.stages import MEASURED

    ladder = ("noopt", "fused") if (batch, precision) == (OWN_BATCH, "float32") else ()
    with scratch_folder("needle-gpu-") as folder:
        case = cases.Case(name, _size(options, "batch", batch), precision)
        subject = cases.Subject.of(case, folder)
        common = {"target": options.device, "dtype": precision}
        own = {
            f"needle {stage}": subject.to_compile(stage, **common, stage=stage)
            for stage in (*ladder, "tuned")
        }
        either = {EITHER: subject.to_compile("either", **common, products=MEASURED)}
        ready, failed = compiling.compile_all(own, options.timeout)
        chosen, not_chosen = compiling.compile_all(either, options.timeout)
        ready |= chosen
        entries = [subject.eager(options.threads, options.device)]
        entries = entries if precision == "float32" else []
        for title, facts in ready.items():
            entries.append(subject.exported(title, facts["path"], options.threads))
        peers = PEERS[:2] if options.rehearse else PEERS  # compiling for a processor takes minutes
        entries += subject.peers(peers, options.threads, device=options.device)
        found = contests.run(case.name, entries, options, subject.exact(), precision)
    found["failed"] = {**failed, **not_chosen, **found["failed"]}
    keys = ("compile", "kernels", "spilled")
    facts = {title: {key: each[key] for key in keys} for title, each in ready.items()}
    return _of_case(found, compiled=facts)


def training(options: argparse.Namespace, name: str, batch: int) -> Found:
    """One contest of a model's training step, needle's and PyTorch's."""
    from bench import cases, contests
    from bench import training as cpu
    from needle_tvm.process.scratch import scratch_folder

    case = cases.Case(name, _size(options, "batch", batch))
    with scratch_folder("needle-gpu-") as folder:
        subject = cases.Subject.of(case, folder)
        entries = cpu.contestants(subject, "step", options)
        return _of_case(contests.run(f"{case.name}: step with sgd", entries, options))


def memory(options: argparse.Namespace, name: str, batch: int, steps: int) -> Found:
    """Many training steps of a model, and the allocator's numbers meanwhile."""
    from bench import cases
    from bench import memory as child
    from needle_tvm.words import digits, duration

    case = cases.Case(name, _size(options, "batch", batch))
    setup = {"factory": case.factory, "options": case.options, "device": options.device}
    setup |= {"steps": _size(options, "steps", steps)}
    (found,) = child.many_steps(setup, iter(()))
    keys = [key for key in found["samples"][0] if key not in ("step", "loss")]
    rows = [["step", "loss", *keys]]
    for one in found["samples"]:
        loss = "not finite" if one["loss"] is None else digits(one["loss"])
        rows.append([str(one["step"]), loss, *(f"{one[key]:,}" for key in keys)])
    each = duration(found["seconds"] / found["steps"])
    title = f"{found['steps']} training steps of {case.name}, {each} each; bytes of the device"
    return {"tables": [(title, rows)], "steps": found}


def product(options: argparse.Namespace, size: int, precision: str) -> Found:
    """One contest of a square matmul, needle's and PyTorch's."""
    from bench import matmul
    from needle_tvm.process.scratch import scratch_folder

    size = _size(options, "size", size)
    with scratch_folder("needle-gpu-") as folder:
        return _of_case(matmul.run(size, options, folder, precision, compiled=True))


def search(options: argparse.Namespace, name: str, batch: int, minutes: float) -> Found:
    """One contest of a model compiled without a search and with one of bounded length."""
    from bench import cases, compiling, contests
    from needle_tvm.process.scratch import scratch_folder
    from needle_tvm.words import duration

    case = cases.Case(name, _size(options, "batch", batch))
    budget = {"trials": _SMALL["trials"]} if options.rehearse else {"minutes": minutes}
    with scratch_folder("needle-gpu-") as folder:
        subject = cases.Subject.of(case, folder)
        setups = {
            title: subject.to_compile(title, target=options.device, **more)
            for title, more in ((cases.TUNED, {}), (f"{cases.TUNED}, searched", budget))
        }
        timeout = 60 * minutes + options.timeout
        ready, failed = compiling.compile_all(setups, timeout, at_once=1)
        entries = [
            subject.exported(title, facts["path"], options.threads)
            for title, facts in ready.items()
        ]
        found = contests.run(f"{case.name}: search", entries, options, exact=subject.exact())
    found["failed"] = {**failed, **found["failed"]}
    searched = [facts for title, facts in ready.items() if title != cases.TUNED]
    rows = [["took", "search"], *([duration(f["compile"]), f["search"]] for f in searched)]
    told = ", ".join(f"{value:g} {what}" for what, value in budget.items())
    return _of_case(found, tables=[(f"{found['case']} of {told}", rows)])


def ladder(options: argparse.Namespace, name: str, extent: int | None) -> Found:
    """A ladder of the kernel lab beside PyTorch; with `extent` its upper rungs at a square size."""
    from kernel_lab import registry, table
    from kernel_lab.run import Request, run
    from kernel_lab.workload import describe

    rungs = registry.ladder(name, options.device).rungs
    size = {}
    if extent is not None:
        size = dict.fromkeys("MNK", _size(options, "extent", extent))
        # The rungs below take seconds a launch at this size and say nothing new.
        first = next((i for i, rung in enumerate(rungs) if rung.name == "register_tile"), 0)
        rungs = [rung for rung in rungs[first:] if rung.kind != "failed"]
    request = Request(
        name,
        device=options.device,
        size=size,
        rungs=[rung.name for rung in rungs],
        rounds=min(3, options.rounds),  # a ladder has some twenty contestants
        peers=True,
        keep_going=True,
    )
    result = run(request)
    title = f"{result.workload}: {result.title}, {describe(result.size)}"
    reasons = {entry.name: entry.refused for entry in (*result.rungs, *result.peers)}
    failed = {who: reason for who, reason in reasons.items() if reason} | result.peers_missing
    return {"tables": [(title, table.rows(result))], "failed": failed, "lab": result.to_dict()}


LADDERS = ("gemm", "conv1d", "depthwise", "gelu_matmul", "separable", "vector_add")


def _models(batch: int, precision: str) -> dict[str, Section]:
    tail = "" if precision == "float32" else f"-{precision}"
    arguments = {f"{name}-{batch}{tail}": (name, batch, precision) for name in MODELS}
    return {name: Section("models", model, each) for name, each in arguments.items()}


SECTIONS = {
    **_models(OWN_BATCH, "float32"),
    f"training-{OWN_BATCH}": Section("training", training, ("conv", OWN_BATCH)),
    f"gemm-{GEMM}": Section("gemm", product, (GEMM, "float32")),
    f"gemm-{GEMM}-tf32": Section("gemm", product, (GEMM, "tf32")),
    f"gemm-{GEMM}-bfloat16": Section("gemm", product, (GEMM, "bfloat16")),
    "steps": Section("steps", memory, ("conv", STEPS_BATCH, STEPS)),
    **_models(OWN_BATCH, "tf32"),
    **_models(OWN_BATCH, "bfloat16"),
    **_models(LARGE_BATCH, "float32"),
    **_models(LARGE_BATCH, "tf32"),
    **_models(LARGE_BATCH, "bfloat16"),
    f"training-{LARGE_BATCH}": Section("training", training, ("conv", LARGE_BATCH)),
    f"lab-gemm-{GEMM}": Section("lab", ladder, ("gemm", GEMM)),
    **{f"search-{m}": Section("search", search, (m, OWN_BATCH, SEARCH_MINUTES)) for m in MODELS},
    **{f"lab-{name}": Section("lab", ladder, (name, None)) for name in LADDERS},
}
GROUPS = tuple(dict.fromkeys(section.group for section in SECTIONS.values()))


def chosen(names: list[str] | None) -> dict[str, Section]:
    """The sections of these names and groups, in their order; all without names."""
    return {
        name: section
        for name, section in SECTIONS.items()
        if names is None or name in names or section.group in names
    }
