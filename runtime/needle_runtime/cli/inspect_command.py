"""The command `inspect`: the inputs, outputs and facts of an artifact."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from needle_runtime.artifact import Artifact
from needle_runtime.artifact.arrays import describe
from needle_runtime.artifact.function import ArraySpec
from needle_runtime.artifact.manifest import needed_runtime
from needle_runtime.artifact.sizes import shape_at
from needle_runtime.artifact.summary import tuning_summary
from needle_runtime.cli.common import add_command, print_json, print_rows, signature_state, size
from needle_runtime.cli.drawing.picture import check_picture, write_picture
from needle_runtime.cli.drawing.script import of_artifact
from needle_runtime.target import host
from needle_runtime.target.kind import CUBLAS
from needle_runtime.target.precision import FLOAT32


def add_parser(subparsers: Any) -> None:
    """Add the command to a parser's subparsers."""
    add_inspect(subparsers, "an artifact", inspect, "the artifact's folder", "kernels")


def add_inspect(
    subparsers: Any,
    what: str,
    command: Callable[[argparse.Namespace], int],
    path: str,
    drawn: str,
) -> None:
    """Add `inspect` for `what`; `path` is the path's help, `drawn` names the graph's boxes."""
    about = f"print the inputs, outputs and facts of {what}, and draw its graph"
    parser = add_command(subparsers, "inspect", about, command, path)
    parser.epilog = "Only the manifest is read; verify checks the files."
    text = f"draw {drawn} and weights: .svg, or .html that scrolls"
    parser.add_argument("--graph", type=Path, metavar="FILE", help=text)


def inspect(options: argparse.Namespace) -> int:
    """Print the facts of the artifact at `options.path`; draw its graph if a file is given."""
    if options.graph is not None:
        check_picture(options.graph)
    artifact = Artifact.from_manifest(options.path, options.require_signature)
    if options.graph is not None:
        write_picture(of_artifact(artifact), options.graph)
    manifest, main = artifact.manifest, artifact.main
    described, files = manifest["functions"]["main"], manifest["files"]
    facts = {
        "path": str(options.path),
        **{kind: described[kind] for kind in ("inputs", "outputs", "params")},
        "dims": described.get("dims", []),
        "stage": manifest.get("stage"),
        "checked": artifact.checked,
        "target": artifact.target,
        "lacking_features": artifact.missing_features,
        "refusal": artifact.obstacle,
        **{name: manifest.get(name) for name in ("precision", "kernels", "libraries", "products")},
        "versions": manifest["versions"],
        "requires": {"needle_runtime": needed_runtime(manifest)},
        "golden": manifest.get("golden"),
        "tuning": manifest.get("tuning"),
        "signature": signature_state(options),
        "files": files,
        "size": size(manifest),
        "digest": manifest["digest"],
    }
    if options.json:
        return print_json(facts)
    target = dict(artifact.target)
    features = target.pop("features", [])
    golden = facts["golden"]
    numbers = sum(math.prod(shape_at(spec.shape, {})) for spec in main.params)
    rows = [
        *_signature_rows("input", main.inputs),
        *_signature_rows("output", main.outputs),
        *(("sizes", str(dim)) for dim in main.dims),
        ("weights", f"{len(main.params)} arrays, {numbers:,} numbers"),
        ("stage", str(facts["stage"])),
        ("compared", "with the model" if facts["checked"] else "with nothing: not checked"),
        ("products", f"of {facts['precision'] or FLOAT32}{_by_library(facts['products'])}"),
        ("target", ", ".join(f"{name} {value}" for name, value in target.items())),
        ("needs", _needs(artifact, features)),
        ("runtime", f"needle-runtime {needed_runtime(manifest)} or later"),
        ("files", "not checked here: `verify` does"),
        ("here", _here(facts)),
        *([("kernels", _kernels(facts["kernels"]))] if facts["kernels"] else []),
        *((f"{name} version", str(value)) for name, value in manifest["versions"].items()),
        ("golden", f"outputs of the {golden['source']} model" if golden else "none carried"),
        *([("tuning", tuning_summary(facts["tuning"]))] if facts["tuning"] else []),
        ("signature", facts["signature"]),
        *((name, f"{recorded['size']:,} bytes") for name, recorded in files.items()),
        ("size", f"{facts['size']:,} bytes"),
        *([] if options.graph is None else [("wrote", str(options.graph))]),
    ]
    return print_rows(rows)


def _needs(artifact: Artifact, features: Sequence[str]) -> str:
    if artifact.for_gpu:
        libraries = artifact.manifest.get("libraries", ())
        return ", ".join([f"a CUDA GPU ({artifact.target['arch']})", *libraries])
    return " ".join(features) or "no particular processor features"


def _here(facts: Mapping[str, Any]) -> str:
    if facts["lacking_features"]:
        return f"lacks {' '.join(facts['lacking_features'])}"
    if facts["lacking_features"] is None:
        return f"unknown: {host.UNKNOWN}"
    if facts["refusal"] is None:
        return "has all of them"
    return str(facts["refusal"]).removeprefix(f"{facts['path']}: ")


def _by_library(products: Sequence[Mapping[str, Any]] | None) -> str:
    count = sum(note["chosen"] == CUBLAS for note in products or ())
    return f", {count} of {len(products)} by cuBLAS" if products else ""


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    spilled = sum(kernel["spill_stores"] for kernel in kernels)
    registers, shared = (max(k[name] for k in kernels) for name in ("registers", "shared"))
    return (
        f"{len(kernels)}, at most {registers} registers and {shared:,} bytes of shared memory, "
        f"{spilled} bytes spilled"
    )


def _signature_rows(kind: str, specs: Sequence[ArraySpec]) -> list[tuple[str, str]]:
    return [(kind, f"{spec.name}: {describe(spec.shape, spec.dtype)}") for spec in specs]
