"""Run the blocks of a page and compare what they print with the page."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from docs.course import notebooks
from tests import ROOT


def run_python(cell, path, namespace):
    # Leading blank lines make a traceback name the line of the page.
    code = compile("\n" * (cell.line - 1) + cell.text, str(path), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    assert printed.getvalue().splitlines() == cell.output, f"{path.name}, line {cell.line}"


def run_shell(cell, folder):
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", cell.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_page(path, folder, monkeypatch):
    """Run the blocks of a page in a folder and compare what they print; return the names that they
    defined, and what is missing here for some of them."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(folder / "cache"))
    namespace = {"__name__": "__main__"}
    missing = set()
    for cell in notebooks.cells(path):
        lacking = notebooks.lacking(cell.needs)
        missing |= set(lacking)
        if lacking or cell.kind == "markdown":
            continue
        if cell.kind == "sh":
            run_shell(cell, folder)
        else:
            run_python(cell, path, namespace)
    return namespace, missing


def check_fences(path):
    """Check that fences are marked, and that a section with a `text` block says why."""
    text = path.read_text()
    marks = re.findall(r"^```(.*)$", text, re.M)[::2]
    assert all(re.fullmatch(r"(python|sh)( nvcc| torch)*|text", mark) for mark in marks), path
    for section in re.split(r"^## ", text, flags=re.M):
        told = re.search(r"(not|[Nn]either) [^.]*executed", section)
        assert told or "```text" not in section, f"{path.name}: {section.splitlines()[0]}"
