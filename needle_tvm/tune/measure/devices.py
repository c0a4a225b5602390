"""Runs and times candidates on this machine's devices.

`steps` checks and times candidates with these devices:

    device = DEVICES["cuda"](0)
    call = device.call(code, gate, inputs, outputs)   # copies the arrays to the device
    seconds = call.clock(100)                         # per call, over 100 calls
    wrong = call.fetch()                              # copies inputs and outputs back

A candidate is timed warm on every device: it is called repeatedly, so its operands are where the
last call left them. In a model, too, a kernel finds most of its operands in a cache (its weights in
a GPU's L2, if the model's weights fit), and `tune.whole_model` times the real model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from needle_runtime import memory
from needle_runtime._tvm.ffi import load_ffi
from needle_runtime.artifact import bfloat16
from needle_runtime.device_clock import MOST_CALLS, DeviceClock
from needle_tvm._tvm.names import tvm
from needle_tvm.tune.gate.gate import Array, Gate
from needle_tvm.tune.measure.arrays import SPILLED, Arrays

MAIN = "main"


class Call(Protocol):
    """A function, ready to be called with arguments on a device. `most_calls` is the limit for
    `clock` and `evaluate`."""

    most_calls: int

    def run(self) -> None:
        """Call the function; its results are on the host once `fetch` has returned."""

    def clock(self, calls: int) -> float:
        """Return the seconds per call over `calls` calls, to compare functions in alternation."""

    def evaluate(self, calls: int) -> float:
        """Return the seconds per call, timed with the least overhead, to rank candidates."""

    def fetch(self) -> str:
        """Copy inputs and outputs back to the host; return a fault that was found, or ""."""


class Device(Protocol):
    """A device on which candidates run."""

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        """Prepare a call of a library's function with these arrays, which are 64-byte aligned."""


class Processor:
    """This machine's CPU, which uses NumPy's arrays in place."""

    def __init__(self, index: int) -> None:
        load_ffi()

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        return _HostCall(code, gate.arguments(inputs, outputs))


class _HostCall:
    most_calls = 1 << 30

    def __init__(self, code: Any, arrays: Sequence[Array]) -> None:
        self._code, self._function = code, code[MAIN]
        ffi = load_ffi()
        self._tensors = [bfloat16.to_tensor(ffi, array) for array in arrays]

    def run(self) -> None:
        self._function(*self._tensors)

    def clock(self, calls: int) -> float:
        return _block(self.run, calls)

    def evaluate(self, calls: int) -> float:
        evaluator = self._code.time_evaluator(MAIN, tvm.cpu(), number=calls, repeat=1)
        return float(evaluator(*self._tensors).results[0])

    def fetch(self) -> str:
        return ""


class CudaDevice:
    """A GPU. Its context belongs to this process: after an error in a kernel, both are
    unusable."""

    def __init__(self, index: int) -> None:
        memory.load_cuda_runtime()
        self.index, self.device = index, tvm.cuda(index)

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        return _CudaCall(self, code, Arrays(self.device, gate, inputs, outputs))


class _CudaCall:
    """A call that the GPU's own clock times (see `runtime.device_clock`)."""

    most_calls = MOST_CALLS

    def __init__(self, on: CudaDevice, code: Any, arrays: Arrays) -> None:
        self._on, self._function, self._arrays = on, code[MAIN], arrays
        self._clock = DeviceClock(self.run, index=on.index)

    def run(self) -> None:
        self._function(*self._arrays.tensors)

    def clock(self, calls: int) -> float:
        seconds = self._clock(calls)
        if seconds is None:
            raise RuntimeError("a call waits for the GPU, so its time cannot be measured")
        return seconds

    evaluate = clock

    def fetch(self) -> str:
        self._on.device.sync()  # raises the error of a kernel that failed
        return SPILLED if self._arrays.fetch() else ""


DEVICES: dict[str, Callable[[int], Device]] = {"cpu": Processor, "cuda": CudaDevice}


def _block(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
