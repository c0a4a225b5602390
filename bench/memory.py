"""How much memory a training step takes: factories of `timing` that measure one step.

Their outputs are one array: [the most tensor bytes alive at any time in the step, above those
before it]. Two steps go before, so that parameters, optimizer state and caches exist; gradients are
dropped at the end of each. What a library allocates besides tensors (packing buffers of a matrix
product, say) counts on neither side. They import nothing that their contestant does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Contestant = tuple[Callable[[], object], Callable[[], list[np.ndarray]]]

WARM_UP = 2


def needle_step(**kwargs: Any) -> Contestant:
    """needle counts the bytes of its arrays as they come and go."""
    import needle as ndl
    from apps import contestants

    call, _ = contestants.training(**kwargs)

    def measure() -> list[np.ndarray]:
        for _ in range(WARM_UP):
            call()
        device = ndl.cpu()
        before = device.memory_allocated()
        device.reset_peak_memory_stats()
        call()
        return [np.array([device.max_memory_allocated() - before])]

    return call, measure


def torch_step(**kwargs: Any) -> Contestant:
    """PyTorch's profiler (`profile_memory`) records each allocation and release; they are summed up
    in the order of time."""
    import torch

    from apps import torch_peers

    call, _ = torch_peers.training(**kwargs)

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
