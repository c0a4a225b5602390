"""`python -m needle_runtime COMMAND`: exported models."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from needle_runtime import cli
from needle_runtime._tvm.versions import TVM, UNKNOWN, installed

_COMMANDS = ("inspect", "artifact", "profile", "key", "bundle")
MODULES = tuple(f"needle_runtime.cli.{name}_command" for name in _COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    version = f"needle-runtime {installed('needle-runtime') or UNKNOWN}, TVM {TVM}"
    return cli.main("needle_runtime", __doc__, version, MODULES, arguments)


if __name__ == "__main__":
    sys.exit(main())
