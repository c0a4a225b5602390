"""Parts of a run, each in a process of its own, one after the other in limited time.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

Clock = Callable[[], float]

_LENIENCE = 1.5  # a part may take so many times its share of what is left


def in_turn(
    shares: Mapping[str, float],
    deadline: float,
    least: float,
    run: Callable[[str, float], None],
    skip: Callable[[str, str], None],
    clock: Clock = time.time,
) -> None:
    """`run(name, seconds)` for each part with a share of the time left; what it does not use goes
    to the next. A part that would have less than `least` seconds is skipped: `skip(name, why)`."""
    pending = dict(shares)
    for name, share in shares.items():
        left = deadline - clock()
        seconds = min(left, _LENIENCE * left * share / sum(pending.values()))
        if len(pending) == 1:
            seconds = left
        del pending[name]
        if seconds < least:
            skip(name, f"{max(0.0, left):.0f} s were left of the time for everything")
        else:
            run(name, seconds)


def run_for(
    command: Sequence[str],
    seconds: float,
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> tuple[int | None, str]:
    """(exit code, what was written to stderr where it is a pipe); no code where time was up.

    Whatever the command started is ended with it: a program under compute-sanitizer, or a compiler
    that goes on, would disturb what is measured next.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=None if environment is None else dict(environment),
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    code: int | None = None
    try:
        _, said = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        said = ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        _, said = process.communicate()  # what there was when time was up
    return code, said or ""
