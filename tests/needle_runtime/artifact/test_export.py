"""Writing artifacts: whole or not at all, where one may be and nowhere else."""

import errno
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import nn
from needle_runtime.artifact import array_files, artifact, layout
from needle_runtime.artifact.manifest import read_manifest
from needle_runtime.errors import ArtifactError, UsageError
from needle_runtime.process import atomic
from tests.needle_tvm.conftest import make_mlp, tensor


def test_export_replaces_an_artifact_and_nothing_else(exported, array, tmp_path):
    loaded = needle_tvm.load(exported)
    target = tmp_path / "out"
    loaded.export(target)
    before = read_manifest(target)["digest"]
    loaded.export(target)
    assert read_manifest(target)["digest"] == before
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not an artifact; it was not touched"):
        loaded.export(precious)
    assert (precious / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "precious"]


@pytest.mark.parametrize("failing", ["write_bytes", "fsync", "rename"])
def test_a_full_disk_leaves_nothing_half_written(exported, tmp_path, monkeypatch, failing):
    loaded = needle_tvm.load(exported)
    target = tmp_path / "out"
    loaded.export(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os if failing == "fsync" else Path, failing, full)
        if failing == "rename":
            patch.setattr(atomic, "_exchange", full)
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            loaded.export(target)
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            loaded.export(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_really_is_full(exported, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(ArtifactError, match=r"cannot be written .*No space left"):
            needle_tvm.load(exported).export(small / "out")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_another_model_exported_to_the_same_path_is_what_is_loaded(array, tmp_path):
    """The dynamic loader would reuse what it loaded under that name before."""
    for width in (3, 4):
        model = make_mlp(16, width)
        needle_tvm.compile(model, tensor(array), stage="fused").export(tmp_path / "out")
        result = needle_tvm.load(tmp_path / "out")(array).numpy()
        np.testing.assert_allclose(result, model(tensor(array)).numpy(), rtol=1e-5, atol=1e-5)


def test_nested_results_keep_their_structure(tmp_path, array):
    class Nested(nn.Module):
        def forward(self, x, pair, scale=2.0):
            return {"sum": x + pair[0], "parts": [pair[1] * scale, (x,)]}

    model = Nested()
    model.eval()
    args = (tensor(array), (tensor(array), tensor(array)))
    path = needle_tvm.compile(model, *args, stage="fused").export(tmp_path / "nested")
    result = needle_runtime.load(path)(array, (array, array))
    assert set(result) == {"sum", "parts"}
    assert isinstance(result["parts"], list) and isinstance(result["parts"][1], tuple)
    np.testing.assert_allclose(result["sum"], array * 2)
    np.testing.assert_allclose(result["parts"][0], array * 2)


def test_everyone_may_read_what_the_umask_lets_them(exported, tmp_path):
    loaded = needle_tvm.load(exported)
    before = os.umask(0o027)
    try:
        loaded.export(tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o640}, modes


def test_a_link_to_an_artifact_stays_a_link(exported, tmp_path):
    loaded = needle_tvm.load(exported)
    loaded.export(tmp_path / "version1")
    (tmp_path / "current").symlink_to("version1")
    loaded.export(tmp_path / "current")
    assert (tmp_path / "current").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "version1"]


def test_an_export_takes_no_damage_over_from_the_cache(array, tmp_path, monkeypatch):
    """Hashing the files as they are now would seal the damage."""
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    executable = needle_tvm.compile(make_mlp(16, 3), tensor(array), stage="fused")
    library = executable.path / layout.LIBRARY
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"lib\.so: is damaged"):
        executable.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_readers_see_one_artifact_or_the_other_while_it_is_replaced(array, tmp_path):
    """Either is loaded without an error, and never a mixture."""
    target, stop, seen = tmp_path / "out", threading.Event(), set()
    executables = [
        needle_tvm.compile(make_mlp(16, width), tensor(array), stage="fused") for width in (3, 4)
    ]
    executables[0].export(target)

    def read():
        while not stop.is_set():
            seen.add(needle_runtime.load(target)(array).shape[1])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for number in range(30):
            executables[number % 2].export(target)
        stop.set()
        reader.result()
    assert seen == {3, 4}


NOT_TO_BE_WRITTEN = {
    "made by the system": "/proc/x",
    "read-only": "/sys/x",
    "a file in the way": "{}/file/x",
    "a file": "{}/file",
    "a name too long": "{}/" + "x" * 300,
    "a path too long": "{}/" + "x/" * 5000,
    "a NUL": "{}/a\0b",
    "half a pair": "{}/a\ud800",
}


@pytest.mark.parametrize("path", NOT_TO_BE_WRITTEN.values(), ids=NOT_TO_BE_WRITTEN)
def test_a_place_where_nothing_can_be_written_is_an_error(exported, tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError) as caught:
        needle_tvm.load(exported).export(path.format(tmp_path))
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("path", NOT_TO_BE_WRITTEN.values(), ids=NOT_TO_BE_WRITTEN)
@pytest.mark.parametrize("load", [needle_tvm.load, needle_runtime.load])
def test_a_place_where_nothing_is_is_an_error(tmp_path, load, path):
    with pytest.raises(ArtifactError):
        load(path.format(tmp_path))


@pytest.mark.parametrize("path", [None, 5, b"out", ["out"]])
def test_what_is_no_path_is_named(exported, path):
    for refused in (
        needle_tvm.load(exported).export,
        needle_tvm.load,
        needle_runtime.load,
        artifact.sign,
    ):
        arguments = (path, "key") if refused is artifact.sign else (path,)
        with pytest.raises(UsageError, match=r"path=.*: must be a str or a Path"):
            refused(*arguments)


class Scaled(nn.Module):
    """x times exp(scale), a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(np.array(0.5, "float32"))

    def forward(self, x):
        return (x * self.scale.exp()).sum()


def test_weights_and_results_without_axes(tmp_path):
    x = tensor(np.arange(6, dtype="float32").reshape(2, 3))
    compiled = needle_tvm.compile(Scaled().eval(), x, stage="noopt")
    compiled.export(tmp_path / "model")
    reloaded = needle_tvm.load(tmp_path / "model")
    assert reloaded(x).numpy() == compiled(x).numpy()
    reloaded.set_params({"scale": np.array(0.0, "float32")})
    np.testing.assert_allclose(reloaded(x).numpy(), x.numpy().sum(), rtol=1e-6)
    for name in ("one.npy", "one.safetensors", "one.npz"):
        array_files.write(tmp_path / name, {"y": reloaded(x).numpy()})
        (array,) = array_files.read(tmp_path / name).values()
        assert array.shape == ()
