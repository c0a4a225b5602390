"""Waiting for other processes on a machine that may be busy.

A time limit here says when to give up, not how fast something must be.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # seconds


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The result of `condition` as soon as it is true, or its last one after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send SIGINT until the process ends, and return its output on both pipes.

    A single one may be lost: Python drops an interrupt that arrives while a weakref's callback or a
    `__del__` runs ("Exception ignored in ...").
    """
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=PATIENCE / 4)
    raise TimeoutError(f"{process.args}: goes on after 4 interrupts")
