"""Features of CUDA devices beyond the device interface: an index, streams, libraries to find."""

from __future__ import annotations

import sysconfig
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

# Functions of the native module that create something on a device or concern one. All others run
# on the device of their operands.
_OF_A_DEVICE = (
    "Stream",
    "current_stream",
    "empty",
    "empty_cache",
    "from_numpy",
    "max_memory_allocated",
    "memory_allocated",
    "memory_cached",
    "memory_stats",
    "reset_peak_memory",
    "set_memory_limit",
    "synchronize",
    "use_stream",
)


def kernels(module: Any, index: int) -> Any:
    """The device functions for GPU `index`. RuntimeError if there is no such GPU."""
    count = module.device_count()
    if count == 0:
        raise RuntimeError("cuda: no CUDA device was found")
    if not 0 <= index < count:
        raise RuntimeError(f"cuda: no CUDA device {index} was found, there are {count}")
    if index == 0:
        module.add_library_folders(_library_folders())
        return module
    bound = {name: partial(getattr(module, name), device=index) for name in _OF_A_DEVICE}
    return SimpleNamespace(**{**vars(module), **bound})


def _library_folders() -> list[str]:
    """The library folders of NVIDIA's wheels: nvidia/cublas/lib, or nvidia/cu13/lib."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    return sorted(str(folder) for folder in packages.glob("*/lib"))


class _Current(threading.local):
    """For each device, the stream for this thread's work; absent for the default stream."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


class Stream:
    """A queue of work besides the device's default one. `with stream:` sends this thread's work on
    the device to it.

    Arrays may be used on any stream, in any order: work on an array waits for the last work on it,
    on whichever stream.
    """

    def __init__(self, module: Any, index: int) -> None:
        self._kernels = module
        self._index = index
        self._native = module.Stream()
        self._before: list[Stream | None] = []

    @property
    def handle(self) -> int:
        """The handle of the stream, as DLPack and other libraries take it."""
        return int(self._native.handle)

    def synchronize(self) -> None:
        """Returns when all work on the stream is done."""
        self._native.synchronize()

    def __enter__(self) -> Stream:
        self._before.append(_current.streams.get(self._index))
        self._use(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._use(self._before.pop())

    def _use(self, stream: Stream | None) -> None:
        self._kernels.use_stream(None if stream is None else stream._native)
        if stream is None:
            _current.streams.pop(self._index, None)
        else:
            _current.streams[self._index] = stream


def consumer_stream(stream: Any) -> int:
    """DLPack's number of the stream that a consumer names; None is the legacy default.

    Raises ValueError for 0, which could mean two streams, and for a value that is not a number.
    """
    if stream is None:
        return 1
    if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < -1:
        raise ValueError(f"__dlpack__: stream {stream!r} is none of None, -1, 1, 2 and a handle")
    return stream
