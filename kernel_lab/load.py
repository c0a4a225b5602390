"""Detect other work on the machine, which makes times wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path

BUSY = 0.15  # a machine is busy if other work has at least this share of the processors' time
_SECONDS = 0.5
_STAT = Path("/proc/stat")


def busy_share() -> float | None:
    """Return the share of time, 0 to 1, that our processors spend on other processes, measured
    while this process sleeps for half a second. Returns None without Linux's /proc/stat."""
    before = _times()
    time.sleep(_SECONDS)
    after = _times()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _times() -> tuple[int, int] | None:
    """Return busy and total time of our processors since the machine started, in ticks."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = total = 0
    for line in lines:
        name, *numbers = line.split()
        if name in mine:
            # user, nice, system, idle, waiting, interrupts (2), stolen; guests are in user.
            ticks = [int(number) for number in numbers[:8]]
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
    return (busy, total) if total else None
