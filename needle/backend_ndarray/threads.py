"""The number of threads that the native CPU kernels use."""

from numbers import Integral

from .ndarray import cpu


def set_num_threads(count: int) -> None:
    """Let each kernel call use `count` threads, including the caller, but never more than 256.
    Raises ValueError if `count` is below 1, and TypeError if it is not an integer.

    The default is NEEDLE_NUM_THREADS, or the number of cores that this process may use (affinity
    and cgroup quota).
    """
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"set_num_threads: count {count!r} is not an integer")
    if count < 1:
        raise ValueError(f"set_num_threads: count {count} is below 1")
    cpu().kernels.set_num_threads(min(int(count), 2**31 - 1))  # must fit a C int


def get_num_threads() -> int:
    """Return the number of threads that a native CPU kernel call may use, including the caller."""
    return int(cpu().kernels.get_num_threads())
