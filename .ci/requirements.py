"""Prints requirements of this repository's two projects, one per line:
`requirements.py build NAME...`.

`build` stands for the build requirements of both (with CMake and Ninja, which scikit-build-core
would otherwise add by itself) and for their dependencies. Every other name is an extra of the first
project. The script runs before anything is installed.
"""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pip ships a copy of tomli
    from pip._vendor import tomli as tomllib

FOLDERS = (".", "runtime")


def requirements(files: list[dict], names: list[str]) -> list[str]:
    """Return the requirement lines of the named groups, with the projects' own extras expanded."""
    projects = {file["project"]["name"]: file["project"] for file in files}
    lines = []
    for name in names:
        if name == "build":
            lines += [line for file in files for line in file["build-system"]["requires"]]
            lines += ["cmake", "ninja"]
            lines += [line for file in files for line in file["project"].get("dependencies", [])]
        else:
            lines.append(f"{files[0]['project']['name']}[{name}]")
    return list(dict.fromkeys(found for line in lines for found in _expanded(line, projects)))


def _expanded(line: str, projects: dict[str, dict]) -> list[str]:
    """Return a third-party requirement as it is, or the requirements of one of our own extras."""
    match = re.match(r"([\w.-]+)(?:\[(.+)\])?", line)
    project = projects.get(match[1])
    if project is None:
        return [line]
    extras = project.get("optional-dependencies", {})
    lines = []
    for name in filter(None, re.split(r"\s*,\s*", match[2] or "")):
        if name not in extras:
            raise SystemExit(f"requirements.py: {match[1]} has no extra {name!r}")
        for each in extras[name]:
            lines += _expanded(each, projects)
    return lines


if __name__ == "__main__":
    root = Path(__file__).parent.parent
    found = [root / folder / "pyproject.toml" for folder in FOLDERS]
    parsed = [tomllib.loads(file.read_text(encoding="utf-8")) for file in found]
    sys.stdout.write("\n".join(requirements(parsed, sys.argv[1:])) + "\n")
