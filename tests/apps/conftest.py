"""Runs the apps as a user does: as scripts in separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
