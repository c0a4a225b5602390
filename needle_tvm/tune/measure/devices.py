"""The devices of this machine on which candidates run: their arrays and their clocks.

`steps` checks and times candidates with them:

    device = DEVICES["cuda"](0)
    call = device.call(code, gate, inputs, outputs)   # copies the arrays to the device
    seconds = call.clock(100)                         # per call, over 100 calls
    wrong = call.fetch()                              # copies inputs and outputs back

A candidate is timed warm on every device: it is called repeatedly, so its operands are where the
last call left them. In a model, too, a kernel finds most of its operands in a cache (its weights in
a GPU's L2, as long as the model's weights fit in it), and `tune.whole` times the model as it is.
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
_HOLD_BYTES = 32 << 20  # of a copy on the GPU: about 25 us at 2.5 TB/s of reads and writes
_MOST_HOLD_SECONDS = 0.02
_TRIED_CALLS = 16  # to estimate the time of a launch
_MOST_CALLS = 512  # launched at once: CUDA queues about a thousand


class Call(Protocol):
    """A function's arrays on a device. `most_calls` is the limit for `clock` and `evaluate`."""

    most_calls: int

    def run(self) -> None:
        """Call the function; its results are on the host once `fetch` has returned."""

    def clock(self, calls: int) -> float:
        """Return the seconds per call of `calls` calls, for comparing functions."""

    def evaluate(self, calls: int) -> float:
        """Like `clock`, but with the least overhead, for ranking functions."""

    def fetch(self) -> str:
        """Copy inputs and outputs back to the host; return what is wrong with them, or ""."""


class Device(Protocol):
    """A device on which candidates run."""

    def call(
        self, code: Any, gate: Gate, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Call:
        """Prepare a call of a library's function on these arrays, which are 64-byte aligned."""


class Processor:
    """This machine's CPU, of which there is one; arrays stay in NumPy's memory."""

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
    """A GPU. This process owns its context: after a kernel's error both are unusable."""

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
        """The copies that keep the GPU busy during launches; made when first used."""
        if self._hold is None:
            self._hold = _Hold(self._device)
        return self._hold


class _CudaCall:
    """Launches calls while the GPU is held busy, and times them by CUDA events.

    A kernel of a small batch takes about as long as the host takes to launch it, so if launched one
    by one, all candidates would take that time. Therefore their launches wait in the stream behind
    copies that last as long as the launches take, and the GPU then runs them back to back, as from
    a CUDA graph. This was designed by arithmetic, not measured on a GPU.
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
        self._on.device.sync()  # raises a kernel's error at the latest
        return SPILLED if self._arrays.fetch() else ""

    def _time_launches(self) -> float:
        """Return the seconds that the host takes to launch one call from Python."""
        self.run()
        self._on.device.sync()
        taken = _block(self.run, _TRIED_CALLS)
        self._on.device.sync()
        return taken


class _Hold:
    """Copies on the GPU that last about `wanted` seconds, started before a timing."""

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
