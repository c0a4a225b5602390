"""Find the number of CPU cores this process may use, and set the size of TVM's thread pool to it.

This module uses only the standard library, so it can be imported without needle and TVM.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from needle_runtime.errors import UsageError

NEEDLE_VARIABLE = "NEEDLE_NUM_THREADS"
TVM_VARIABLE = "TVM_NUM_THREADS"
BIND_VARIABLE = "TVM_BIND_THREADS"
SPIN_VARIABLE = "TVM_THREAD_POOL_SPIN_COUNT"

MOST_THREADS = 4096  # larger numbers are mistakes: a system cannot start so many threads

# The number of times that an idle worker checks for work before it sleeps; between checks it yields
# its core. TVM's default of 300,000 checks takes about 0.2 s; during this time the worker slows
# other threads down, and the process cannot end.
_SPINS = 30_000

# The variables that common numeric libraries read when they are loaded.
THREAD_VARIABLES = (
    NEEDLE_VARIABLE,
    TVM_VARIABLE,
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


def check_threads(threads: object, what: str = "threads") -> int:
    """Return `threads`. Raises UsageError unless it is an integer from 1 to 4096; the message calls
    the number `what`."""
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"{what}={threads!r}: must be an integer from 1 to {MOST_THREADS}")
    return threads


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that limit common numeric libraries to `threads` threads.

    Raises UsageError as `check_threads` does.
    """
    check_threads(threads)
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def available_cores(root: str | os.PathLike[str] = "/") -> int:
    """Return the number of cores that this process may use.

    It is the number of cores in the process's affinity mask or, if it is smaller, the CPU quota of
    its cgroup, rounded up. If `NEEDLE_NUM_THREADS` is set, its value is returned instead. `root` is
    the folder that contains /proc and /sys (tests pass their own tree).

    Raises UsageError if `NEEDLE_NUM_THREADS` is not an integer from 1 to 4096.
    """
    asked = _positive_from_environment(NEEDLE_VARIABLE)
    if asked is not None:
        return asked
    cores = _affinity_cores()
    quota = cgroup_quota(root)
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(1, cores)


def configure_tvm_threads(n: int | None = None) -> int:
    """Set `TVM_NUM_THREADS` for this process and its children; return the number set.

    Without the variable, TVM uses half of the machine's hardware threads, regardless of this
    process's limits. TVM reads the variable only once, when its pool starts (in the first parallel
    kernel). After that, this function does not change the pool of this process. Without `n`, the
    number is `NEEDLE_NUM_THREADS`, else the `TVM_NUM_THREADS` that is already set, else
    `available_cores()`.

    TVM also pins its workers to the machine's first `n` processors and the calling thread to the
    same ones, ignoring the affinity of the process. In a process that does not use the whole
    machine, this would move threads off its own processors and put several TVM processes on the
    same ones. So `TVM_BIND_THREADS=0` is set in such a process, unless the user has set the
    variable. In every process, `TVM_THREAD_POOL_SPIN_COUNT` is set, unless the user has set it, so
    that idle workers sleep after a tenth of TVM's default time.

    Raises UsageError if `n` or a variable is not an integer from 1 to 4096.
    """
    threads = (
        (None if n is None else check_threads(n))
        or _positive_from_environment(NEEDLE_VARIABLE)
        or _positive_from_environment(TVM_VARIABLE)
        or available_cores()
    )
    os.environ[TVM_VARIABLE] = str(threads)
    os.environ.setdefault(SPIN_VARIABLE, str(_SPINS))
    if threads < (os.cpu_count() or 1) or _affinity_cores() < (os.cpu_count() or 1):
        os.environ.setdefault(BIND_VARIABLE, "0")
    return threads


def cgroup_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Return the number of CPUs this process's cgroups grant it; None if there is no limit.

    This is the least number over all levels of the hierarchy, from cgroup v2 (`cpu.max`) and v1
    (`cpu.cfs_quota_us`). If a cgroup's path is not mounted here, as in a container that sees only
    its part of the tree, the quota of the mounted root counts.
    """
    base = Path(root)
    quotas = []
    for mount, path in _cgroups(base):
        relative = PurePosixPath(path.lstrip("/"))
        for level in (relative, *relative.parents):
            if ".." in level.parts:
                continue
            quota = _read_quota(mount / level)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _cgroups(base: Path) -> Iterator[tuple[Path, str]]:
    """Yield (mount point, path below it) for each hierarchy that can limit the CPU."""
    try:
        lines = (base / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    top = base / "sys/fs/cgroup"
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        number, controllers, path = fields
        if number == "0" and not controllers:
            yield top, path
            yield top / "unified", path
        elif "cpu" in controllers.split(","):
            yield top / controllers, path
            yield top / "cpu", path


def _read_quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        limit, length = float(quota), float(period)
    except (OSError, ValueError):  # absent, unreadable, or "max": this level sets no limit
        return None
    return limit / length if limit > 0 and length > 0 else None


def _affinity_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive_from_environment(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is None or not text.strip():
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise UsageError(f"{variable}={text!r}: must be an integer from 1 to {MOST_THREADS}")
    return check_threads(int(digits), variable)
