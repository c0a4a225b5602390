"""The child's side of measuring memory and first results. The process that is measured imports only
what it needs.

Peaks of a training step: `needle_step` and `torch_step` are factories of needle_tvm.process.timing
whose output is one array, [the most tensor bytes alive at any time in the step above those before
it]. Two steps go before, so that parameters, optimizer state and caches exist. What a library
allocates besides tensors (packing buffers of a matmul, say) counts on neither side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm.process.child import load_function
from needle_tvm.process.timing import Calls

WARM_UP = 2
_CALLS = 3  # before the memory is asked for: some grows in the second call


def needle_step(**kwargs: Any) -> Calls:
    """needle counts the bytes of its arrays as they come and go."""
    import needle as ndl
    from apps import contestants

    call, *_ = contestants.training(**kwargs)

    def measure() -> list[np.ndarray]:
        for _ in range(WARM_UP):
            call()
        device = ndl.cpu()
        before = device.memory_allocated()
        device.reset_peak_memory_stats()
        call()
        return [np.array([device.max_memory_allocated() - before])]

    return call, measure


def torch_step(**kwargs: Any) -> Calls:
    """PyTorch's profiler (`profile_memory`) records each allocation and release in order."""
    import torch

    from apps import torch_peers

    call, *_ = torch_peers.training(**kwargs)

    def measure() -> list[np.ndarray]:
        for _ in range(WARM_UP):
            call()
        kinds = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
            call()
        events = [
            (event.start_ns(), event.nbytes())
            for event in profile.profiler.kineto_results.events()
            if event.name() == "[memory]"
        ]
        events.sort(key=lambda event: event[0])
        return [np.array([max(np.cumsum([size for _, size in events]))])]

    return call, measure


def first_result(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: answers once the first result is there, and then with its peak memory."""
    call, _ = load_function(setup["factory"])(**setup["kwargs"])
    call()
    yield {}
    for _ in range(_CALLS):
        call()
    yield {"bytes": peak_memory()}


def peak_memory() -> int:
    """The most bytes of memory that this program had resident.

    Not ru_maxrss, which begins with what the parent had when it started us.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status: there is no VmHWM")
