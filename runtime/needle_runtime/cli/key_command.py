"""The commands `keygen` and `sign`, for signed artifacts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from needle_runtime.artifact import artifact, signature
from needle_runtime.process.command_line import OK
from needle_runtime.text import printable


def add_parser(subparsers: Any) -> None:
    """Add both commands to a parser's subparsers."""
    about = "make a pair of Ed25519 keys: KEYFILE to sign with, KEYFILE.pub to check with"
    keygen = subparsers.add_parser("keygen", help=about, description=about, allow_abbrev=False)
    keygen.add_argument("keyfile", type=Path, metavar="KEYFILE")
    keygen.set_defaults(command=_keygen)

    about = "sign an artifact, replacing any signature it has"
    sign = subparsers.add_parser("sign", help=about, description=about, allow_abbrev=False)
    sign.add_argument("path", type=Path, metavar="PATH", help="the artifact's folder")
    sign.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="KEYFILE",
        help="private key, PEM, without a password",
    )
    sign.set_defaults(command=_sign)


def _keygen(options: argparse.Namespace) -> int:
    public = signature.generate(options.keyfile)
    text = f"wrote {options.keyfile} (keep it to yourself) and {public} (hand it out)"
    sys.stdout.write(f"{printable(text)}\n")
    return OK


def _sign(options: argparse.Namespace) -> int:
    artifact.sign(options.path, options.key)
    sys.stdout.write(f"{printable(f'signed {options.path}')}\n")
    return OK
