"""Find the line of user code that is running, for error messages."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

import numpy as np

_PACKAGES = tuple(
    folder + os.sep
    for package in (str(Path(__file__).parents[1]), os.path.dirname(np.__file__))
    for folder in (package, f"{package}_tvm")
)


def user_line() -> str:
    """Return the innermost running line of code outside needle and NumPy, formatted to end an error
    message; "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    line = linecache.getline(file, number).strip()
    return f", at {os.path.basename(file)}:{number}" + (f" ({line})" if line else "")
