"""The options and the output functions that commands on artifacts share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from needle_runtime.artifact.layout import SIGNATURE
from needle_runtime.process.command_line import OK, Parser
from needle_runtime.text import printable


def add_command(
    subparsers: Any,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], int],
    path: str = "the artifact's folder",
) -> Parser:
    """Add a command that reads the artifact at PATH."""
    parser: Parser = subparsers.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="PATH", help=path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--require-signature",
        type=Path,
        metavar="PUBLIC_KEY",
        help="refuse an artifact that is not signed with the key in this PEM file",
    )
    parser.set_defaults(command=command)
    return parser


def size(manifest: Mapping[str, Any]) -> int:
    """Return the total number of bytes of all files."""
    return sum(recorded["size"] for recorded in manifest["files"].values())


def signature_state(options: argparse.Namespace) -> str:
    """Return the state of the signature, for a manifest that has been read and accepted."""
    if options.require_signature is not None:
        return f"good: {options.require_signature}"
    if (options.path / SIGNATURE).exists():
        return "present, not checked (--require-signature PUBLIC_KEY checks it)"
    return "none"


def print_json(facts: Mapping[str, Any]) -> int:
    """Print one JSON object; return the exit code."""
    sys.stdout.write(json.dumps(facts, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
    return OK


def print_rows(rows: Sequence[tuple[str, str]]) -> int:
    """Print two columns; a name is left out if it repeats the one above. Long lines are not
    wrapped."""
    rows = [(printable(name), printable(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    before = None
    for name, text in rows:
        sys.stdout.write(f"{'' if name == before else name:<{width}}  {text}\n")
        before = name
    sys.stdout.flush()
    return OK
