"""The commands `bundle` and `prefix`, for programs in C and C++."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from needle_runtime.bundle.libraries import prefix
from needle_runtime.bundle.making import Bundle, bundle, text_of
from needle_runtime.cli.common import add_command, print_json, print_rows
from needle_runtime.process.command_line import OK


def add_parser(subparsers: Any) -> None:
    """Add both commands to a parser's subparsers."""
    about = "write a folder with an artifact, the C and C++ interface, and all libraries but libc"
    made = add_command(subparsers, "bundle", about, _bundle)
    made.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    made.add_argument(
        "--runtime",
        type=Path,
        metavar="FOLDER",
        help="a folder with the runtime's libraries, for another architecture or an older glibc",
    )

    about = "print the folder of the C and C++ interface, for CMAKE_PREFIX_PATH and pkg-config"
    where = subparsers.add_parser("prefix", help=about, description=about, allow_abbrev=False)
    where.set_defaults(command=_prefix)


def _bundle(options: argparse.Namespace) -> int:
    result = bundle(
        options.path,
        options.out,
        runtime=options.runtime,
        require_signature=options.require_signature,
    )
    library, least = result.least_glibc
    if options.json:
        return print_json(
            {
                "path": str(options.out),
                "machine": result.machine,
                "glibc": text_of(least),
                "signed": result.signed,
                "sodium": result.sodium,
                "files": result.files,
                "size": sum(result.files.values()),
            }
        )
    rows = [(name, _row(result, name)) for name in result.files]
    if result.signed and not result.sodium:
        rows.append(("signature", "cannot be checked with the bundle alone: libsodium is not here"))
    rows += [
        ("size", f"{sum(result.files.values()):,} bytes"),
        ("needs", f"Linux on {result.machine} with glibc {text_of(least)} or newer ({library})"),
        ("wrote", str(options.out)),
    ]
    return print_rows(rows)


def _row(made: Bundle, name: str) -> str:
    glibc = made.glibc.get(name)
    return f"{made.files[name]:>12,} bytes{'' if glibc is None else f', glibc {text_of(glibc)}'}"


def _prefix(options: argparse.Namespace) -> int:
    sys.stdout.write(f"{prefix()}\n")
    return OK
