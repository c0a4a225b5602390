"""The command line `python -m needle_tvm COMMAND`. A mistake is one line on stderr."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from needle_tvm.command_line import Parser, guarded

# A module of commands has `add_parser(subparsers)`, which sets `run`, a function that takes the
# parsed options and returns the exit code. It imports what is heavy only when it runs.
_COMMANDS = ("needle_tvm.records.command",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(prog="python -m needle_tvm", description=__doc__, allow_abbrev=False)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        importlib.import_module(module).add_parser(subparsers)
    options = parser.parse_args(arguments)
    return guarded("needle_tvm", lambda: int(options.run(options)))


if __name__ == "__main__":
    sys.exit(main())
