"""Where candidates run on this machine: what their arrays are in, and the clock they are held to.

    device = DEVICES["cuda"](0)
    call = device.call(code, gate, inputs, outputs)   # the arrays are there
    seconds = call.clock(100)                         # of one call, over so many
    wrong = call.fetch()                              # inputs and outputs as they are now

A candidate is timed warm on every device: called again and again, its operands are where the last
call left them. In a model a kernel finds most of them in a cache too, its weights in a GPU's L2 as
long as those of the model fit in it, and `whole` times the model as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from needle_tvm._tvm.ffi import load_ffi
from needle_tvm._tvm.names import tvm, tvm_ffi
from needle_tvm.artifact import bfloat16
from needle_tvm.runtime import memory
from needle_tvm.tune.gate.gate import Array, Gate
from needle_tvm.tune.measure.arrays import SPILLED, Arrays

MAIN = "main"

_HOLD = "needle.tune.hold"
_HOLD_BYTES = 32 << 20  # of a copy on the GPU: about 25 us where 2.5 TB/s are read and written
_MOST_HOLD_SECONDS = 0.02
_TRIED_CALLS = 16  # to learn how long launching takes
_MOST_CALLS = 512  # launched at once: CUDA keeps a queue of about a thousand


class Call(Protocol):
    """A function's arrays on a device. `most_calls` is what `clock` and `evaluate` may be asked."""

    most_calls: int

    def run(self) -> None:
        """Call the function; its results are there once `fetch` has returned."""

    def clock(self, calls: int) -> float:
        """Seconds per call of `calls` of them, to compare functions by."""

    def evaluate(self, calls: int) -> float:
        """The same with the least there is beside the calls, to rank functions by."""

    def fetch(self) -> str:
        """Have inputs and outputs here as they are there; what is wrong with those, or ""."""


class Device(Protocol):
    """A place where candidates run."""

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        """A call of the function of a library on these arrays, 64-byte aligned."""


class Processor:
    """This machine's processor, of which there is one: arrays are where NumPy has them."""

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
    """A GPU. Its context is this process's: after an error of a kernel neither is of use."""

    def __init__(self, index: int) -> None:
        memory.load_cuda_runtime()
        self._device = tvm.cuda(index)
        self._hold: _Hold | None = None

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        return _CudaCall(self, code, Arrays(self._device, gate, inputs, outputs))

    @property
    def device(self) -> Any:
        """TVM's device."""
        return self._device

    @property
    def hold(self) -> _Hold:
        """What keeps it busy meanwhile; made when first used."""
        if self._hold is None:
            self._hold = _Hold(self._device)
        return self._hold


class _CudaCall:
    """Calls are launched while the GPU is held busy, and timed on it by CUDA events.

    A kernel of a small batch takes about as long as the host takes to launch it: launched one by
    one, all candidates would take that. So their launches wait in the stream behind copies which
    last as long as launching them does, and the GPU then runs them one after the other, as it does
    from a CUDA graph. Designed by arithmetic, not measured on a GPU.
    """

    most_calls = _MOST_CALLS

    def __init__(self, on: CudaDevice, code: Any, arrays: Arrays) -> None:
        self._on, self._code, self._function, self._arrays = on, code, code[MAIN], arrays
        self._launch_seconds: float | None = None

    def run(self) -> None:
        self._function(*self._arrays.tensors)

    def clock(self, calls: int) -> float:
        if self._launch_seconds is None:
            self._launch_seconds = self._time_launches()
        self._on.hold.wanted = calls * self._launch_seconds
        evaluator = self._code.time_evaluator(
            MAIN, self._on.device, number=calls, repeat=1, f_preproc=_HOLD
        )
        return float(evaluator(*self._arrays.tensors).results[0])

    evaluate = clock

    def fetch(self) -> str:
        self._on.device.sync()  # an error of a kernel is raised here at the latest
        return SPILLED if self._arrays.fetch() else ""

    def _time_launches(self) -> float:
        """Seconds that launching one call takes the host, as Python does it."""
        self.run()
        self._on.device.sync()
        taken = _block(self.run, _TRIED_CALLS)
        self._on.device.sync()
        return taken


class _Hold:
    """Copies on the GPU that last about as long as is `wanted` (seconds), begun before a timing."""

    def __init__(self, device: Any) -> None:
        self.wanted = 0.0
        self._from, self._to = (tvm.runtime.empty((_HOLD_BYTES,), "uint8", device) for _ in "ab")
        self._copy()
        device.sync()

        def copies() -> None:
            self._copy()
            device.sync()

        self._seconds = max(_block(copies, 3), 1e-6)
        tvm_ffi.register_global_func(_HOLD, self._begin, override=True)

    def _begin(self, *tensors: Any) -> None:
        for _ in range(math.ceil(min(self.wanted, _MOST_HOLD_SECONDS) / self._seconds)):
            self._copy()

    def _copy(self) -> None:
        self._from.copyto(self._to)


DEVICES: dict[str, Callable[[int], Device]] = {"cpu": Processor, "cuda": CudaDevice}


def _block(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
