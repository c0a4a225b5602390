"""Damages an artifact in many ways and tries to load it each time; run in a separate process.

    python artifact_faults.py FOLDER [PUBLIC_KEY] < faults.json

Reads a list of faults, each {file: its bytes in base64} or {"file", "size"} or {"file", "bit"}.
Prints how many were refused, which were loaded, and whether the undamaged folder loads.
"""

import base64
import json
import sys
from pathlib import Path

import needle_runtime
from needle_runtime.errors import ArtifactError, TargetError


def damaged(fault, contents):
    """The bytes of the files that the fault changes."""
    if "size" in fault:
        return {fault["file"]: contents[fault["file"]][: fault["size"]]}
    if "bit" in fault:
        data = bytearray(contents[fault["file"]])
        data[fault["bit"] // 8] ^= 1 << fault["bit"] % 8
        return {fault["file"]: bytes(data)}
    return {name: base64.b64decode(data) for name, data in fault.items()}


def main(folder, key=None):
    folder = Path(folder)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused, loaded = 0, []
    for number, fault in enumerate(json.load(sys.stdin)):
        changed = damaged(fault, contents)
        for name, data in changed.items():
            (folder / name).write_bytes(data)
        try:
            needle_runtime.load(folder, require_signature=key)
            loaded.append(number)
        except (ArtifactError, TargetError):
            refused += 1
        for name in changed:
            (folder / name).write_bytes(contents[name])
    needle_runtime.load(folder, require_signature=key)
    sys.stdout.write(json.dumps({"refused": refused, "loaded": loaded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
