"""Temporary folders that are removed when their process ends, even if it is killed.

This module uses only the standard library and a POSIX shell.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Waits for the end of its input, which comes when the only process that can write to it ends. That
# process's children may end a moment later and write meanwhile, so the reaper removes twice.
_REAPER = 'read -r _; rm -rf -- "$1"; sleep 1; rm -rf -- "$1"'


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a new folder in the system's temporary directory; remove it after the block.

    It is removed even if this process is killed (see `reaped`); `tempfile.TemporaryDirectory` would
    leave its folder behind. Raises OSError if the folder cannot be made.
    """
    folder = Path(tempfile.gettempdir(), f"{prefix}{secrets.token_hex(8)}")
    with reaped(folder):  # first, so that the folder never exists without its reaper
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def lasting_folder() -> Path:
    """Return this process's own scratch folder, which lasts until the process ends."""
    owner = os.getpid()
    if owner not in _lasting:
        stack = ExitStack()
        _lasting[owner] = stack.enter_context(scratch_folder("needle-process-"))

        def remove() -> None:
            if os.getpid() == owner:  # not in a forked child
                stack.close()

        atexit.register(remove)
    return _lasting[owner]


_lasting: dict[int, Path] = {}  # by the id of its process


@contextmanager
def reaped(path: Path) -> Iterator[None]:
    """Have `path` removed, with its contents, if this process ends within the block.

    A small process in its own session removes it within about 2 s. A process forked from this one
    without an exec keeps the path alive for as long as it runs.
    """
    reaper = subprocess.Popen(
        ["/bin/sh", "-c", _REAPER, "reaper", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield
    finally:
        # Kill the reaper before its input ends; otherwise it would remove the block's files.
        with suppress(ProcessLookupError):
            os.killpg(reaper.pid, signal.SIGKILL)
        if reaper.stdin is not None:
            reaper.stdin.close()
        reaper.wait()
