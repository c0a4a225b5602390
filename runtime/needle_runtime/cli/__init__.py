"""The commands for exported models, which need no compiler.

`python -m needle_runtime` has these commands, and `python -m needle_tvm` has more.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from needle_runtime.process.command_line import Parser, guarded


def main(
    package: str,
    about: str | None,
    version: str,
    modules: Iterable[str],
    arguments: Sequence[str] | None,
) -> int:
    """Run a command of a package's command line and return the exit code.

    --help prints `about`, and --version prints `version`. Each of the `modules` has
    add_parser(subparsers). The parsers of its commands set the default `command`: a function that
    takes the parsed options and returns the exit code.
    """
    parser = Parser(prog=f"python -m {package}", description=about, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in modules:
        importlib.import_module(name).add_parser(subparsers)
    options = parser.parse_args(arguments)
    return guarded(package, lambda: int(options.command(options)))
