"""`python -m needle_tvm COMMAND`: exported models, tuning records."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from needle_tvm._tvm.versions import UNKNOWN, installed
from needle_tvm.process.command_line import Parser, guarded

# Each module has add_parser(subparsers). Its commands set the default `command`: a function that
# takes the parsed options and returns the exit code.
MODULES = (
    "needle_tvm.cli.artifact_command",
    "needle_tvm.cli.profile_command",
    "needle_tvm.cli.key_command",
    "needle_tvm.cli.records_command",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = Parser(prog="python -m needle_tvm", description=__doc__, allow_abbrev=False)
    version = f"needle-dl {installed('needle-dl') or UNKNOWN}, TVM {installed('apache-tvm')}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in MODULES:
        importlib.import_module(name).add_parser(subparsers)
    options = parser.parse_args(arguments)
    return guarded("needle_tvm", lambda: int(options.command(options)))


if __name__ == "__main__":
    sys.exit(main())
