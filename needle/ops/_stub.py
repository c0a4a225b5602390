"""`python -m needle.ops._stub` writes the names of this package for editors and type checkers."""

from pathlib import Path

from needle import ops

STUB = Path(__file__).with_name("__init__.pyi")
_HEAD = """\
# ruff: noqa: I001
# Written by `python -m needle.ops._stub`, from the files of this folder.

from typing import Any

from ..op import REGISTRY as REGISTRY
from ..op import Op as Op
from ..op import register as register
"""
_TAIL = """\
FUNCTIONS: dict[str, Any]
_NAMES: dict[str, dict[str, Any]]
unchecked: Any
"""


def text() -> str:
    """Return the text of the stub."""
    lines = [
        f"from .{file} import {name} as {name}\n"
        for file, names in ops._NAMES.items()
        for name in sorted(names)
    ]
    return f"{_HEAD}{''.join(lines)}\n{_TAIL}"


if __name__ == "__main__":
    STUB.write_text(text())
