"""Handles a request in a forked child, and defines the format of its answer.

`template` forks the children and reads their answers. An answer is three lines: kind and detail,
the value (both JSON), and a checksum of both lines. The checksum shows whether an answer is
complete, without parsing the value, which may be long.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from needle_runtime.process.processes import adopt_orphans, die_with_parent

OK, ERROR, CRASH, TIMEOUT, MEMORY = "ok", "error", "crash", "timeout", "memory"

_NO_MEMORY = ("MemoryError", "bad_alloc", "out of memory", "Cannot allocate memory")

Function = Callable[[dict[str, Any]], Any]


def work(
    function: Function,
    message: dict[str, Any],
    folder: Path,
    template: int,
    answer: int,
    output: int,
    foreign: list[int],
) -> NoReturn:
    """Answer the request and exit; this runs in the child.

    `answer` and `output` are the pipes for the answer and for printed output. `foreign` are
    descriptors inherited from the template, such as other children's pipes; the child closes them.
    """
    try:
        die_with_parent(template)
        os.setpgid(0, 0)
        adopt_orphans()
        for descriptor in foreign:
            os.close(descriptor)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        folder.mkdir()
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None  # so that tempfile reads TMPDIR again
        _limit(message["memory"])
        value = "null"
        try:
            value = json.dumps(function(message["request"]))
            head = (OK, "")
        except BaseException as error:  # the candidate may even raise SystemExit
            said = str(error).splitlines() or [""]
            detail = f"{type(error).__name__}: {said[0]}"
            lacking = isinstance(error, MemoryError) or lacks_memory(str(error))
            head = (MEMORY if lacking else ERROR, detail)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the function may have closed the stream
                stream.flush()
        lines = [json.dumps(head).encode(), value.encode()]
        lines.append(b"%d" % zlib.crc32(lines[1], zlib.crc32(lines[0])))
        left = memoryview(b"".join(line + b"\n" for line in lines))
        while left:
            left = left[os.write(answer, left) :]
        os._exit(0)
    except BaseException:  # an error outside the function, such as a full disk
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)  # never return into the template's loop


def complete(answered: bytearray) -> tuple[str, str, bytes] | None:
    """Return kind, detail and value of an answer, or None if it is incomplete."""
    parts = bytes(answered).split(b"\n")
    if len(parts) != 4 or parts[2] != b"%d" % zlib.crc32(parts[1], zlib.crc32(parts[0])):
        return None
    kind, detail = json.loads(parts[0])
    return kind, detail, parts[1]


def lacks_memory(text: str) -> bool:
    """Return whether an error's text says that an allocation failed."""
    return any(sign in text for sign in _NO_MEMORY)


def _limit(memory: int) -> None:
    """Make allocations far beyond the limit fail at once; `template` detects smaller excesses."""
    with suppress(OSError):
        # If memory runs out, the kernel kills this process first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = Path("/proc/self/status").read_text().splitlines()
    (data,) = (int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = data + 2 * memory + (1 << 30)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
