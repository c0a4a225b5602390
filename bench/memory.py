"""Code of the child processes that measure memory and first results. The measured process imports
only the modules that it needs.

Peaks of a training step: `step` and `jax_step` are factories for needle_runtime.process.timing.
Their output is one array with one number: the most bytes of arrays alive at any time in the step,
minus the bytes alive before it. Two steps run first, so that parameters, optimizer state and caches
exist. Memory that a library uses for anything but arrays (a matmul's packing buffers, say) is never
counted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from needle_runtime.process.child import load_function
from needle_runtime.process.timing import Calls

WARM_UP = 2
_CALLS = 3  # calls before memory is measured: some memory grows in the second call


def step(factory: str, how: str, **kwargs: Any) -> Calls:
    """Return a contestant; its output is a call's peak, by the function `how` of this module."""
    call, *_ = load_function(factory)(**kwargs)
    count = load_function(f"{__name__}:{how}")

    def measure() -> list[np.ndarray]:
        for _ in range(WARM_UP):
            call()
        return [np.array([count(call)])]

    return call, measure


def of_needle(call: Callable[[], object]) -> int:
    """Return the peak of a call as needle counts it: the most bytes of arrays alive at once."""
    import needle as ndl

    device = ndl.cpu()
    before = device.memory_allocated()
    device.reset_peak_memory_stats()
    call()
    return device.max_memory_allocated() - before


def of_code(call: Callable[[], object]) -> int:
    """Return the bytes that a call takes from the system. Compiled code keeps the memory of a call
    for the next call, so this memory is freed first."""
    import tvm_ffi

    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
    before = _allocated()
    call()
    return _allocated() - before


def of_torch(call: Callable[[], object]) -> int:
    """Return the peak of a call: PyTorch's profiler records allocations and releases in order."""
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
    """Return a contestant; its output is the memory that JAX's code needs besides the state.
    The new state takes over the memory of the old one."""
    from bench import training_calls

    compiled, state, batch = training_calls.jax_parts(name, weights, batches)
    plan = compiled.lower(state, training_calls.RATE, *batch[0]).compile().memory_analysis()
    size = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return lambda: None, lambda: [np.array([size])]


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES.split()]


def _allocated() -> int:
    """Return the bytes that malloc has given to this process."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return found.uordblks + found.hblkhd


def first_result(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, answer at the first result, and after further calls with the peak memory."""
    call, _ = load_function(setup["factory"])(**setup["kwargs"])
    call()
    yield {}
    for _ in range(_CALLS):
        call()
    yield {"bytes": peak_memory()}


def peak_memory() -> int:
    """Return this program's peak resident memory in bytes.

    ru_maxrss would be wrong: it includes the parent's memory at the start of this process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status: there is no VmHWM")
