"""Runs the apps as a user does: as scripts in separate processes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_app(cache_dir, tmp_path):
    """run_app(script, *arguments, cwd=ROOT) returns the finished process, with output as text."""

    def run(script, *arguments, cwd=ROOT, timeout=240):
        environment = {**os.environ, "NEEDLE_CACHE_DIR": str(cache_dir)}
        environment.pop("NEEDLE_DEBUG", None)
        return subprocess.run(
            [sys.executable, os.path.relpath(ROOT / "apps" / script, cwd), *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def call_app(cache_dir, capsys, monkeypatch):
    """As `run_app`, in this process: for what ends before anything is started."""

    def call(script, *arguments, cwd=ROOT):
        main = importlib.import_module(f"apps.{Path(script).stem}").main
        with monkeypatch.context() as patch:
            patch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
            patch.delenv("NEEDLE_DEBUG", raising=False)
            patch.setattr(sys, "argv", [script, *map(str, arguments)])
            patch.chdir(cwd)
            try:
                code = main()
            except SystemExit as ended:
                code = ended.code
        return subprocess.CompletedProcess(script, code, *capsys.readouterr())

    return call
