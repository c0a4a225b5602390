"""Prints requirements of pyproject.toml, one a line: `requirements.py build NAME...`.

`build` stands for what building the project needs (with CMake and Ninja, which scikit-build-core
otherwise adds by itself), every other name for an extra. Runs before anything is installed.
"""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # the copy that pip brings along there
    from pip._vendor import tomli as tomllib


def requirements(project: dict, names: list[str]) -> list[str]:
    """The requirement lines of the named groups, an extra that names another one expanded."""
    own = re.escape(project["project"]["name"])
    extras = project["project"].get("optional-dependencies", {})
    lines = []
    for name in names:
        if name == "build":
            lines += [*project["build-system"]["requires"], "cmake", "ninja"]
            lines += project["project"].get("dependencies", [])
            continue
        if name not in extras:
            raise SystemExit(f"requirements.py: pyproject.toml has no extra {name!r}")
        for line in extras[name]:
            nested = re.fullmatch(rf"{own}\[(.+)\]", line)
            found = [extra.strip() for extra in nested[1].split(",")] if nested else []
            lines += requirements(project, found) if nested else [line]
    return lines


if __name__ == "__main__":
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    sys.stdout.write("\n".join(requirements(tomllib.loads(text), sys.argv[1:])) + "\n")
