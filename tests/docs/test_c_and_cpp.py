"""The page on C and C++ runs from top to bottom; the page on cross-compiling names all targets."""

import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("tvm", reason="the page exports models, which needs the [tvm] extra")

from needle_tvm.target.named import NAMED
from tests import ROOT

PAGE = ROOT / "docs" / "c-and-cpp.md"
TOOLS = ("bash", "cc", "g++", "cmake", "pkg-config")
NAME = re.compile(r"(?:/\*|//) (\w+\.\w+):")  # in the first line of a program


@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_the_page_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for language, text in blocks:
        if language in ("c", "cpp"):
            (tmp_path / NAME.match(text)[1]).write_text(text)
        elif language == "cmake":
            (tmp_path / "CMakeLists.txt").write_text(text)
    outputs = []
    for language, text in blocks:
        if language in ("python", "sh"):
            outputs.append(run(language, text, tmp_path))
    _, in_c, in_cpp, made, moved = outputs
    assert len(in_c.split()) == 4 and set(in_c.split()) <= set("012")
    assert "x has 2 axes" in in_cpp and "256 answered, 4 refused" in in_cpp
    assert "loss " in in_cpp and "with glibc" in made
    assert moved.splitlines()[1].split() == in_cpp.split("axes\n")[1].splitlines()[0].split()


def run(language, text, folder):
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"] if language == "python" else ["bash", "-ec", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
            "NEEDLE_CACHE_DIR": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_table_has_every_error():
    header = (ROOT / "runtime" / "include" / "needle_runtime.h").read_text()
    errors = re.findall(r"(NEEDLE_ERROR_\w+) = \d", header)
    assert len(errors) > 5
    assert re.findall(r"^\| `(NEEDLE_ERROR_\w+)`", PAGE.read_text(), re.MULTILINE) == errors


def test_the_table_of_targets_has_every_name():
    page = (ROOT / "docs" / "cross-compiling.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| (\d*) ?\|", page, re.MULTILINE)
    named = [(name, each.mcpu, str(each.cores or "")) for name, each in NAMED.items()]
    assert rows == named
