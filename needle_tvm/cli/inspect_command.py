"""The command `inspect`, for artifacts and ONNX files."""

from __future__ import annotations

import argparse
from typing import Any

from needle_runtime.cli import inspect_command
from needle_runtime.cli.common import print_json, print_rows
from needle_runtime.cli.drawing.picture import check_picture, write_picture
from needle_runtime.errors import UsageError
from needle_tvm.cli import onnx_file


def add_parser(subparsers: Any) -> None:
    """Add the command to a parser's subparsers."""
    inspect_command.add_inspect(
        subparsers,
        "an artifact or ONNX file",
        _inspect,
        "the artifact's folder, or an ONNX file",
        "kernels (or an ONNX file's operators)",
    )


def _inspect(options: argparse.Namespace) -> int:
    if options.path.suffix != ".onnx" or not options.path.is_file():
        return inspect_command.inspect(options)
    if options.graph is not None:
        check_picture(options.graph)
    if options.require_signature is not None:
        raise UsageError(f"--require-signature: {options.path} is an ONNX file without signatures")
    proto, arrays = onnx_file.read_onnx(options.path)
    if options.graph is not None:
        write_picture(onnx_file.of_onnx(options.path, proto, arrays), options.graph)
    facts = {"path": str(options.path), **onnx_file.facts(proto, arrays)}
    if options.json:
        return print_json(facts)
    operators = (f"{name} x {count}" for name, count in facts["operators"].items())
    lacking = ", ".join(facts["unsupported"])
    rows = [
        *((kind, text) for kind in ("input", "output") for text in facts[f"{kind}s"]),
        ("opset", ", ".join(f"{name} {number}" for name, number in facts["opsets"].items())),
        ("weights", f"{facts['weights']:,} numbers, {facts['bytes']:,} bytes"),
        ("operators", ", ".join(operators)),
        ("needle", f"has no {lacking}" if lacking else "has all operators"),
        *([] if options.graph is None else [("wrote", str(options.graph))]),
    ]
    return print_rows(rows)
