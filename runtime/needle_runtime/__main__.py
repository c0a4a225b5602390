"""`python -m needle_runtime COMMAND`: exported models."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from needle_runtime import cli
from needle_runtime._tvm.versions import TVM, UNKNOWN, installed

MODULES = tuple(
    f"needle_runtime.cli.{name}_command" for name in ("inspect", "artifact", "profile", "key")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    version = f"needle-runtime {installed('needle-runtime') or UNKNOWN}, TVM {TVM}"
    return cli.main("needle_runtime", __doc__, version, MODULES, arguments)


if __name__ == "__main__":
    sys.exit(main())
