"""The child's side of measuring memory and first results. The process that is measured imports only
what it needs.

Peaks of a training step: `step` and `jax_step` are factories of needle_tvm.process.timing whose
output is one array, [the most bytes of arrays alive at any time in the step above those before it].
Two steps go before, so that parameters, optimizer state and caches exist. What a library allocates
besides arrays (packing buffers of a matmul, say) counts on no side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm.process.child import load_function
from needle_tvm.process.timing import Calls

WARM_UP = 2
_CALLS = 3  # before the memory is asked for: some grows in the second call


def step(factory: str, how: str, **kwargs: Any) -> Calls:
    """The peak of a contestant's call, as the function `how` of this module counts it."""
    call, *_ = load_function(factory)(**kwargs)
    count = load_function(f"{__name__}:{how}")

    def measure() -> list[np.ndarray]:
        for _ in range(WARM_UP):
            call()
        return [np.array([count(call)])]

    return call, measure


def of_needle(call: Callable[[], object]) -> int:
    """needle counts the bytes of its arrays as they come and go."""
    import needle as ndl

    device = ndl.cpu()
    before = device.memory_allocated()
    device.reset_peak_memory_stats()
    call()
    return device.max_memory_allocated() - before


def of_code(call: Callable[[], object]) -> int:
    """Compiled code keeps the memory of a call for the next one: what a call takes from the system
    once that is freed."""
    import tvm_ffi

    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
    before = _allocated()
    call()
    return _allocated() - before


def of_torch(call: Callable[[], object]) -> int:
    """PyTorch's profiler (`profile_memory`) records each allocation and release in order."""
    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
        call()
    events = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    events.sort(key=lambda event: event[0])
    return max(np.cumsum([size for _, size in events]))


def jax_step(name: str, weights: str, batches: str) -> Calls:
    """JAX says what memory its code needs besides the state, which the new state takes over."""
    from bench import training_calls

    compiled, state, batch = training_calls.jax_parts(name, weights, batches)
    plan = compiled.lower(state, training_calls.RATE, *batch[0]).compile().memory_analysis()
    size = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return lambda: None, lambda: [np.array([size])]


class _Mallinfo2(ctypes.Structure):
    """glibc's struct of that name."""

    _NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES.split()]


def _allocated() -> int:
    """The bytes that malloc has given to this process."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return found.uordblks + found.hblkhd


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
