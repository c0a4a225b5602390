"""The same model and inputs give the same bytes in any process, folder and hash seed."""

import os
import subprocess
import sys

import pytest

from needle_runtime.artifact import layout
from needle_tvm._tvm import versions

EXPORT = """
import sys
import numpy as np
import needle as ndl
import needle_tvm
from needle import nn

ndl.manual_seed(3)
if sys.argv[2] == "mlp":
    model = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 5))
    shape = (4, 16)
else:
    model = nn.Sequential(
        nn.Conv(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )
    shape = (2, 3, 6, 6)
model.eval()
x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
executable = needle_tvm.compile(model, ndl.Tensor(x), stage=sys.argv[3])
assert not executable.from_cache
executable.export(sys.argv[1])
"""


def export(folder, model, stage, seed):
    """Export in a process with its own cache, temporary folder, hash seed and path."""
    for name in ("tmp", "cache"):
        (folder / name).mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "TMPDIR": str(folder / "tmp"),
        "NEEDLE_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, "-c", EXPORT, str(folder / "out"), model, stage]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert list((folder / "tmp").iterdir()) == []
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize(
    ("model", "stage"),
    [
        pytest.param("mlp", "tuned"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            ("mlp", "noopt"), ("mlp", "fused"), ("conv", "noopt"), ("conv", "tuned"),
        )),
    ],
)  # fmt: skip
def test_two_processes_write_the_same_bytes(tmp_path, model, stage):
    one = export(tmp_path / "one", model, stage, 1)
    two = export(tmp_path / "elsewhere" / "two", model, stage, 2)
    assert set(one) == set(two) and layout.LIBRARY in one
    assert [name for name in one if one[name] != two[name]] == []
    for name, data in one.items():
        assert str(tmp_path).encode() not in data, name


def test_the_manifest_says_nothing_of_one_installation(monkeypatch):
    """The cache detects a replaced compiler by its file's time, which a manifest must not hold."""
    before = versions.provenance()
    assert "compiler" in before and before["tvm"] == versions.TVM
    library = versions._compiler_library()
    assert str(library.stat().st_mtime_ns) in versions.stamp()["compiler"]
    assert str(library.stat().st_mtime_ns) not in str(before)
