"""make names a missing tool before it starts anything."""

import os
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="needs make")


@pytest.fixture
def tools(tmp_path):
    """A folder for PATH that holds a shell, find, and a python3 and g++ that do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "find"):
        (folder / name).symlink_to(shutil.which(name))
    for name in ("python3", "g++"):
        script(folder / name, "exit 0")
    return folder


def script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make(tools, *arguments):
    environment = {"PATH": str(tools), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [MAKE, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def test_everything_there(tools):
    assert make(tools, "check").returncode == 0


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("python3", None, "needs Python 3.10 or newer: there is no python3 here"),
        (
            "python3",
            'case "$*" in *version_info*) exit 1;; -V) echo Python 3.9.2;; esac',
            "needs Python 3.10 or newer: python3 is Python 3.9.2",
        ),
        ("python3", 'case "$*" in *ensurepip*) exit 1;; esac', "apt install python3-venv"),
        ("python3", 'case "$*" in *Python.h*) exit 1;; esac', "apt install python3-dev"),
        ("g++", None, "needs a C++17 compiler: there is no g++ here"),
    ],
)
def test_what_is_missing_is_one_line(tools, name, body, words):
    (tools / name).unlink()
    if body:
        script(tools / name, body)
    done = make(tools, "check")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line


def test_the_checks_come_before_the_environment(tools, tmp_path):
    (tools / "g++").unlink()
    done = make(tools, "run", f"VENV={tmp_path / 'venv'}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "needs a C++17 compiler" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_what_is_installed_is_said_on_stderr(tools, tmp_path):
    for name in ("cp", "mkdir", "touch"):
        (tools / name).symlink_to(shutil.which(name))
    copies_itself = '"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;'
    script(tools / "python3", f'case "$*" in {copies_itself} "-m pip "*) echo "pip $*";; esac')
    done = make(tools, "build", f"VENV={tmp_path / 'venv'}")
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    told = [line for line in lines if not line.startswith("pip ")]
    assert len(told) == 3 and len(lines) == 5, lines  # a line before each of pip's two turns
    assert told[0].startswith("making ")
    assert told[1].startswith("installing TVM") and "minutes" in told[1]
    assert told[2].startswith("compiling") and "minute" in told[2]


def test_another_compiler_can_be_named(tools):
    (tools / "g++").rename(tools / "clang++")
    assert make(tools, "check", "CXX=clang++").returncode == 0


@pytest.mark.parametrize("target", ["gpu-test", "gpu-bench"])
def test_gpu_targets_do_not_pretend(tools, target):
    done = make(tools, target, f"GPU_PYTHON={sys.executable}")
    assert done.returncode == 2
    line, stopped = done.stderr.splitlines()
    assert "there is no GPU here" in line and "Error" in stopped


def test_requirements_are_read_from_pyproject(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "requirements.py", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text(
        """
        [build-system]
        requires = ["builder>=1"]
        [project]
        name = "thing"
        dependencies = ["numpy", "part==1"]
        [project.optional-dependencies]
        one = ["a==1", "b; python_version < '3.11'"]
        two = ["thing[one]", "part[three]==1", "c"]
        """
    )
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "pyproject.toml").write_text(
        """
        [build-system]
        requires = ["builder>=1", "library==2"]
        [project]
        name = "part"
        dependencies = ["numpy"]
        [project.optional-dependencies]
        three = ["d"]
        """
    )

    def ask(*names):
        command = [sys.executable, str(tmp_path / ".ci" / "requirements.py"), *names]
        return subprocess.run(command, capture_output=True, text=True)

    build = ask("build").stdout.splitlines()
    assert build == ["builder>=1", "library==2", "cmake", "ninja", "numpy"]
    assert ask("two").stdout.splitlines() == ["a==1", "b; python_version < '3.11'", "d", "c"]
    unknown = ask("three")
    assert unknown.returncode == 1
    assert "no extra 'three'" in unknown.stderr
