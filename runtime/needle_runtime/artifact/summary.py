"""Formats the `repr` of artifacts, executables and programs, and a line about a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from needle_runtime.artifact.arrays import describe
from needle_runtime.artifact.function import ArraySpec, Function
from needle_runtime.artifact.sizes import shape_at
from needle_runtime.text import counted, printable

_MOST = 8  # inputs or outputs that are listed


def summary(kind: str, manifest: Mapping[str, Any], main: Function, **more: str) -> str:
    """Return `kind` and one line each for inputs, outputs, state, sizes, weights, target and size.

    `manifest` and `main` describe the artifact; `more` adds lines."""
    numbers = sum(math.prod(shape_at(spec.shape, {})) for spec in main.params)
    weights = f"{counted(len(main.params), 'array')}, {counted(numbers, 'number')}"
    size = sum(recorded["size"] for recorded in manifest["files"].values())
    rows = [
        ("inputs", _specs(main.inputs[: len(main.inputs) - len(main.state)], names=True)),
        ("outputs", _specs(main.outputs[: len(main.outputs) - len(main.state)], names=False)),
        *([("state", _specs(main.state, names=True))] if main.state else []),
        *([("sizes", ", ".join(map(str, main.dims)))] if main.dims else []),
        ("weights", weights),
        ("target", _target(manifest)),
        ("size", counted(size, "byte")),
        *more.items(),
    ]
    lines = (f"  {name + ':':<9}{printable(text)}" for name, text in rows)
    return "\n".join([f"{kind}(", *lines, ")"])


def _specs(specs: Iterable[ArraySpec], names: bool) -> str:
    each = [
        f"{spec.name + ' ' if names else ''}{describe(spec.shape, spec.dtype)}" for spec in specs
    ]
    left = len(each) - _MOST
    return ", ".join(each[:_MOST] + ([f"and {left} more"] if left > 0 else []))


def _target(manifest: Mapping[str, Any]) -> str:
    target = manifest["target"]
    names = [target.get(name) for name in ("kind", "arch", "mcpu")]
    checked = "checked" if manifest.get("checked") else "not checked"
    words = [" ".join(str(name) for name in names if name), manifest.get("stage"), checked]
    return ", ".join(str(word) for word in words if word)


def tuning_summary(notes: Sequence[Mapping[str, Any]]) -> str:
    """Return one line about a search's results, from the manifest's `tuning` notes."""
    taken = [note for note in notes if note["chosen"] == "search"]
    tried = sum(note["trials"] for note in notes)
    rejected = sum(sum(note["rejected"].values()) for note in notes)
    text = f"{counted(tried, 'trial')} over {counted(len(notes), 'kernel')}, {rejected} rejected: "
    text += f"{len(taken)} faster than our rules"
    gains = sorted(note["speedup"] for note in taken if note.get("speedup"))
    return f"{text} ({gains[0]:.2f} to {gains[-1]:.2f} times)" if gains else text
