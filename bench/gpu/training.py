"""ResNet9's training step beside PyTorch's, and a thousand of them with an eye on memory."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
from bench import training as cpu
from bench.gpu import contest
from bench.gpu.settings import Settings
from needle_tvm.process import timing
from needle_tvm.process.child import Child
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import available_cores, thread_environment

MODEL = "conv"
BATCH = 64  # of the thousand steps
SAMPLES = 10  # of the allocator's numbers over the steps

_RATE = 0.01
_IMAGES = 8  # batches that are uploaded in turn, as a loader would


def measure(batch: int, settings: Settings) -> dict[str, Any]:
    """A step with SGD and momentum, on the same weights, images and labels; `contest.run`'s JSON
    values. Compared with PyTorch in float64 on the processor, where that is installed."""
    with scratch_folder("needle-gpu-") as folder:
        case = replace(_case(), batch=settings.batch(batch))
        options = argparse.Namespace(threads=available_cores(), optimizer="sgd")
        files = cpu.save_case(case, folder)
        entries = cpu.contestants(case, files, "step", options, settings.device)
        exact = None
        peers = [entry for entry in entries if entry.name == apps.peers.TORCH_EAGER]
        if peers:
            kwargs = {**peers[0].kwargs, "device": "cpu", "precision": "float64"}
            (exact,) = timing.collect_outputs([replace(peers[0], kwargs=kwargs)]).values()
        found = contest.run(
            [contest.Entry(entry, ours=entry.name == cpu.OURS) for entry in entries],
            exact,
            settings,
        )
        missing = apps.peers.missing(case.peer, cpu.TORCH)
        absent = {name: f"not installed: {', '.join(what)}" for name, what in missing.items()}
        return {"model": MODEL, "batch": case.batch, **contest.gather(found, absent)}


def _case() -> cpu.Case:
    return next(case for case in cpu.CASES if case.name == MODEL)


def measure_memory(steps: int, settings: Settings) -> dict[str, Any]:
    """`steps` training steps in a process of their own, as JSON values: the allocator's numbers, in
    bytes, after warming up and at SAMPLES points from there on, and the losses there."""
    case = replace(_case(), batch=settings.batch(BATCH))
    setup = {
        "factory": case.factory,
        "options": case.settings,
        "device": settings.device,
        "steps": steps if not settings.rehearsal else 2 * SAMPLES,
    }
    child = Child(
        f"{steps} steps",
        f"{__name__}:step_service",
        setup,
        timeout=max(settings.left, 1.0),
        environment=thread_environment(available_cores()),
    )
    with child:
        return {"model": MODEL, "batch": case.batch, **child.receive("steps")}


def step_service(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service that trains: each step uploads a batch of images and labels, as a loader would."""
    import needle as ndl

    model, (images,) = apps.contestants.build_model(setup["factory"], **setup["options"])
    device = getattr(ndl, setup["device"])()
    model.to(device)
    model.train()
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal(images.shape, dtype=np.float32), rng.integers(0, 10, len(images)))
        for _ in range(_IMAGES)
    ]
    entropy = ndl.nn.CrossEntropyLoss()
    optimizer = ndl.optim.SGD(model.parameters(), lr=_RATE, momentum=apps.contestants.MOMENTUM)

    def step(number: int) -> Any:
        x, y = (
            ndl.Tensor(array, device=device, requires_grad=False)
            for array in batches[number % _IMAGES]
        )
        loss = entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.reset_grad()
        return loss.detach()

    def sample(number: int, loss: Any) -> dict[str, Any]:
        value = float(loss.numpy())
        stats = {key: size for key, size in device.memory_stats().items() if size is not None}
        return {
            "step": number,
            "loss": value if math.isfinite(value) else None,
            "resident": _resident(),
            **stats,
        }

    each = max(1, setup["steps"] // SAMPLES)
    loss = None
    for number in range(each):  # caches fill, modules are loaded
        loss = step(number)
    samples = [sample(0, loss)]
    del loss
    device.synchronize()
    start = time.perf_counter()
    for number in range(1, setup["steps"] + 1):
        loss = step(number)
        if number % each == 0:
            samples.append(sample(number, loss))
        del loss
    device.synchronize()
    yield {
        "steps": setup["steps"],
        "seconds": time.perf_counter() - start,
        "samples": samples,
        "needle": ndl.__version__,
    }


def _resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    import resource

    return pages * resource.getpagesize()
