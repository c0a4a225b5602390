"""Features of CUDA devices beyond the device interface: an index, streams, library folders."""

from __future__ import annotations

import sysconfig
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

# Functions of the native module that create objects on a device or query a device. All others run
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
    """Return the functions of the native `module` for GPU `index`. Raises RuntimeError if there is
    no such GPU."""
    count = module.device_count()
    if count == 0:
        raise RuntimeError("cuda: no CUDA device was found")
    if not 0 <= index < count:
        raise RuntimeError(f"cuda: no CUDA device {index} was found; there are {count}")
    if index == 0:
        module.add_library_folders(_library_folders())
        return module
    bound = {name: partial(getattr(module, name), device=index) for name in _OF_A_DEVICE}
    return SimpleNamespace(**{**vars(module), **bound})


def _library_folders() -> list[str]:
    """Return the library folders of NVIDIA's wheels, such as nvidia/cublas/lib or
    nvidia/cu13/lib."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    return sorted(str(folder) for folder in packages.glob("*/lib"))


class _Current(threading.local):
    """This thread's stream on each device; devices on the default stream have no entry."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


class Stream:
    """A queue of work besides the device's default stream. `with stream:` sends this thread's work
    on the device to the stream.

    Arrays may be used on any stream, in any order: work on an array waits until earlier work on the
    same array is done, even if that work runs on another stream.
    """

    def __init__(self, module: Any, index: int) -> None:
        self._kernels = module
        self._index = index
        self._native = module.Stream()
        self._before: list[Stream | None] = []

    @property
    def handle(self) -> int:
        """The handle of the stream for DLPack and other libraries."""
        return int(self._native.handle)

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
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
    """Return DLPack's number for the `stream` that a consumer requests. None means the legacy
    default stream.

    Raises ValueError for 0, which is ambiguous in DLPack, and for a value that is not a valid
    number.
    """
    if stream is None:
        return 1
    if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < -1:
        raise ValueError(f"__dlpack__: stream {stream!r} is not None, -1, 1, 2 or a handle")
    return stream
