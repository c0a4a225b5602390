"""The number of threads that the native CPU kernels use."""

from numbers import Integral

from .ndarray import cpu


def set_num_threads(count: int) -> None:
    """Threads for one kernel call, the caller included; 256 are used at most, whatever `count` is.
    ValueError below 1, TypeError for what is no integer.

    The default is the number of cores this process may use (affinity and cgroup quota), or
    NEEDLE_NUM_THREADS.
    """
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"set_num_threads: count {count!r} is no integer")
    if count < 1:
        raise ValueError(f"set_num_threads: count {count} is below 1")
    cpu().kernels.set_num_threads(min(int(count), 2**31 - 1))  # a C int


def get_num_threads() -> int:
    """Threads one native CPU kernel call may use, the caller included."""
    return int(cpu().kernels.get_num_threads())


def rest_threads() -> None:
    """Let the kernels' threads sleep until the next kernel.

    For 150 us after one they look out for another, on cores that other threads may be about to
    need.
    """
    cpu().kernels.rest_threads()
