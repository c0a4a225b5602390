"""Keep processes from outliving their use: death signals, adopted orphans, process trees.

`child` and tuning's workers use this module. Functions that work only on Linux have no counterpart
on macOS and Windows. This module uses only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


@dataclass(frozen=True)
class Process:
    """One row of the process table; `resident` in bytes."""

    pid: int
    parent: int
    ended: bool
    resident: int


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent's thread ends for any reason.

    Works only on Linux; elsewhere it does nothing.
    """
    if sys.platform != "linux":
        return
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Works only on Linux."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def process_table() -> dict[int, Process]:
    """Return all processes by id, as /proc shows them. Works only on Linux."""
    page = os.sysconf("SC_PAGE_SIZE")
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):  # it has ended meanwhile
            # The name is in brackets and may itself contain brackets and spaces.
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2]
            state, parent, *others = fields.split()
            pid = int(name)
            table[pid] = Process(pid, int(parent), state in "ZX", int(others[19]) * page)
    return table


def newest_process() -> int:
    """Return the id of the process or thread started last on this machine. Works only on Linux."""
    return int(Path("/proc/loadavg").read_text().split()[-1])


def descendants(pid: int, table: dict[int, Process]) -> Iterator[Process]:
    """Yield the descendants of a process, in no particular order."""
    below: dict[int, list[Process]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process)
    waiting = list(below.get(pid, ()))
    while waiting:
        process = waiting.pop()
        yield process
        waiting.extend(below.get(process.pid, ()))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended. Works only on Linux."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def kill_children(spared: Collection[int] = ()) -> bool:
    """Kill this process's children except those `spared`, and reap those that have ended.

    Returns whether any of them is left. Their own children become this process's (see
    `adopt_orphans`) once they have ended, so call it until it returns False. Works only on Linux.
    """
    if not spared and not _has_children():
        return False
    own, left = os.getpid(), False
    for process in process_table().values():
        if process.parent != own or process.pid in spared:
            continue
        left = True
        if not process.ended:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return left


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
