"""The contests on the host: each runs in its own process and answers with JSON values.

The values are `cases` (see `contests.run`), `tables` (title and rows) and `failed` (the reason for
each contestant that was left out, by name). Nothing here imports TVM's compiler.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu import plan
from bench.gpu.host import ROOT
from bench.gpu.plan import Contest

Found = dict[str, Any]

_WORK = ROOT / "build" / "gpu"  # caches for later calls on the same machine
_STEP_SECONDS = 150.0  # time limit for a contestant's start: torch.compile tunes itself
_COMPILED = ("torch.compile", "torch.compile, not frozen", "torch.compile, default mode")


def make_conditions(rounds: int, small: bool) -> argparse.Namespace:
    """Return the options of contests (see `bench.contests`)."""
    from needle_runtime.process.threads import available_cores

    return argparse.Namespace(
        rounds=rounds,
        block_seconds=0.005 if small else 0.06,
        threads=available_cores(),
        device="cuda",
        strict=False,
        timeout=_STEP_SECONDS,
        alone=_COMPILED,  # torch.compile times candidates on the GPU while it starts
    )


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[Found]:
    """As a service, measure the contest `name` of the bundle unpacked in `folder`."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_WORK / "inductor"))
    contest = plan.contests(setup["small"])[setup["name"]]
    conditions = make_conditions(setup["rounds"], setup["small"])
    measure = {"model": model, "ladder": ladder, "training": training}
    found = measure[contest.kind](conditions, contest, Path(setup["folder"]), **contest.subject)
    yield {"cases": [], "tables": [], "failed": {}, **found}


def case_of(name: str, batch: int, options: Mapping[str, Any], precision: str = "float32") -> Any:
    """Return the case of `bench.cases` with these options of its factory."""
    from bench import cases

    kind = cases.MODELS[name]
    drawn = replace(kind, options={**kind.options, **options})
    return cases.Case(name, batch, precision, drawn)


def slug(title: str) -> str:
    """Return a contestant's name as a folder's name."""
    return title.replace(", ", "-").replace(" ", "-")


def artifacts(contest: Contest, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the folders of a contest's compiled contestants by title, and why some are missing."""
    found, missing = {}, {}
    for title in contest.artifacts:
        path = folder / slug(title)
        if path.is_dir():
            found[title] = path
        else:
            reason = path.with_suffix(".refused")
            missing[title] = reason.read_text() if reason.is_file() else "it was not compiled"
    return found, missing


def _of_case(case: Found, **more: Any) -> Found:
    return {"cases": [case], "failed": case["failed"], **more}


def model(
    conditions: argparse.Namespace, contest: Contest, folder: Path, peers: list[str], **subject: Any
) -> Found:
    """Measure a model: needle's ladder and PyTorch's ways to run it, in one precision."""
    from bench import contests
    from needle_runtime.process.scratch import scratch_folder

    case = case_of(**subject)
    ready, missing = artifacts(contest, folder)
    with scratch_folder("needle-gpu-") as scratch:
        built = case.subject(scratch)
        entries = [built.eager(conditions.threads, "cuda")] if case.precision == "float32" else []
        entries += [built.loaded(title, path) for title, path in ready.items()]
        entries += built.peers(peers, conditions.threads, device="cuda")
        found = contests.run(case.name, entries, conditions, built.exact(), case.precision)
    found["failed"] = {**missing, **found["failed"]}
    return _of_case(found)


def ladder(
    conditions: argparse.Namespace,
    contest: Contest,
    folder: Path,
    name: str,
    size: Mapping[str, int],
    rungs: list[str] | None,
    case: Mapping[str, Any] | None = None,
) -> Found:
    """Compare a ladder of the kernel lab with PyTorch, NumPy and, for a matmul, cuBLAS."""
    from kernel_lab import registry, table
    from kernel_lab.results import RungResult
    from kernel_lab.run import Request, run
    from kernel_lab.workload import describe
    from needle_runtime.process.scratch import scratch_folder
    from needle_runtime.process.timing import Contestant, save_arrays

    workload = registry.ladder(name, "cuda").workload
    ready, missing = artifacts(contest, folder)
    with scratch_folder("needle-gpu-") as scratch:
        weights = str(scratch / "weights.npz")
        save_arrays(weights, {})

        def loaded(title: str, path: Path) -> Any:
            kwargs = {"path": str(path), "weights": weights}
            return RungResult(title, "peer", "compiled by needle_tvm"), lambda inputs: Contestant(
                title, "apps.contestants:loaded", {**kwargs, "inputs": inputs}
            )

        request = Request(
            name,
            device="cuda",
            size=size,
            rungs=rungs,
            rounds=min(3, conditions.rounds),  # a ladder has some twenty contestants
            peers=True,
            keep_going=True,
            libraries=folder,
            others=[loaded(title, path) for title, path in ready.items()],
        )
        result = run(request)
    title = f"{workload.name}: {workload.title}, {describe(result.size)}"
    reasons = {entry.name: entry.refused for entry in (*result.rungs, *result.peers)}
    failed = {who: reason for who, reason in reasons.items() if reason}
    failed |= {**result.peers_missing, **missing}
    return {"tables": [(title, table.rows(result))], "failed": failed, "lab": result.to_dict()}


def training(
    conditions: argparse.Namespace, contest: Contest, folder: Path, **subject: Any
) -> Found:
    """Measure a model's training step, needle's and PyTorch's, on the same weights, inputs and
    labels (a class for each row of scores)."""
    import numpy as np

    from apps import contestants
    from bench import contests
    from needle_runtime.process import timing
    from needle_runtime.process.scratch import scratch_folder

    case, device = case_of(**subject), conditions.device
    with scratch_folder("needle-gpu-") as scratch:
        built = case.subject(scratch)
        scores = contestants.flatten(built.model(*built.tensors))[0]
        shape = scores.size // scores.shape[-1]
        labels = np.random.default_rng(1).integers(0, scores.shape[-1], shape)
        timing.save_arrays(scratch / "labels.npz", {"y": labels})
        found = [
            built.eager(conditions.threads, device),
            *built.peers(plan.TORCH, conditions.threads, device=device),
        ]
        entries = [
            replace(
                entry,
                factory=f"{entry.factory.partition(':')[0]}:training",
                kwargs={**entry.kwargs, "labels": str(scratch / "labels.npz")},
            )
            for entry in found
        ]
        return _of_case(contests.run(f"{case.name}: step with sgd", entries, conditions))
