"""`python -m needle_runtime profile PATH`: the time of an exported model, kernel by kernel."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from needle_runtime.process.command_line import OK, add_size, check_writable, repeats


def add_parser(subparsers: Any) -> None:
    text = "time an exported model kernel by kernel"
    parser = subparsers.add_parser("profile", help=text, description=text, allow_abbrev=False)
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="the exported model")
    add("--require-signature", metavar="PUBLIC_KEY", type=Path, help="refuse any other signature")
    add("--runs", type=repeats, default=20, metavar="N", help="runs for medians (%(default)s)")
    add_size(parser)
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--trace", metavar="FILE", type=Path, help="write a trace for chrome://tracing, Perfetto")
    parser.set_defaults(command=profile)


def profile(options: argparse.Namespace) -> int:
    import needle_runtime
    from needle_runtime.profile import profile

    if options.trace:
        check_writable(options.trace)
    program = needle_runtime.load(options.path, require_signature=options.require_signature)
    found = profile(program, runs=options.runs, sizes=dict(options.size))
    if options.trace:
        options.trace.parent.mkdir(parents=True, exist_ok=True)
        options.trace.write_text(json.dumps(found.chrome_trace()) + "\n")
    text = json.dumps(found.to_dict(), indent=2) if options.json else found.text()
    sys.stdout.write(text + "\n")
    return OK
