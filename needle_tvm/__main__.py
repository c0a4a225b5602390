"""`python -m needle_tvm COMMAND`: exported models, ONNX files, tuning records."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from needle_runtime import __main__ as runtime
from needle_runtime import cli
from needle_runtime._tvm.versions import UNKNOWN, installed

MODULES = (
    "needle_tvm.cli.inspect_command",
    *(name for name in runtime.MODULES if "inspect" not in name),
    "needle_tvm.cli.records_command",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    version = f"needle-dl {installed('needle-dl') or UNKNOWN}, TVM {installed('apache-tvm')}"
    return cli.main("needle_tvm", __doc__, version, MODULES, arguments)


if __name__ == "__main__":
    sys.exit(main())
