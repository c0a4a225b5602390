"""A cache entry that is not whole is replaced; a cache that cannot be written is done without."""

import contextlib
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import needle_tvm
from needle_runtime.artifact import layout
from needle_runtime.errors import UsageError
from needle_tvm import cache
from needle_tvm.errors import CacheWarning
from tests.needle_tvm.conftest import make_mlp, tensor

X = np.linspace(-1, 1, 2 * 8, dtype=np.float32).reshape(2, 8)
MODEL = make_mlp(8, 4)
WANTED = MODEL(tensor(X)).numpy()

DAMAGE = {
    "nothing": lambda path: path.unlink(),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a full folder": lambda path: (path.unlink(), path.mkdir(), (path / "x").touch()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "a link to a copy": lambda path: (
        path.rename(path.with_suffix(".copy")),
        path.symlink_to(path.with_suffix(".copy").name),
    ),
    "nothing in it": lambda path: path.write_bytes(b""),
    "no permission": lambda path: path.chmod(0),
}
WHOLE = {
    "nothing": shutil.rmtree,
    "a pipe": lambda path: (shutil.rmtree(path), os.mkfifo(path)),
    "a file": lambda path: (shutil.rmtree(path), path.write_bytes(b"x")),
    "a link": lambda path: (path.rename(path.parent / "x"), path.symlink_to("x")),
    "a link to nothing": lambda path: (shutil.rmtree(path), path.symlink_to("nowhere")),
    "an empty folder": lambda path: (shutil.rmtree(path), path.mkdir()),
    "no permission": lambda path: path.chmod(0),
}


@pytest.fixture(autouse=True)
def new_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))


def compiled():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "cached artifact is compiled again")
        found = needle_tvm.compile(MODEL, tensor(X), stage="noopt")
    np.testing.assert_allclose(found(X).numpy(), WANTED, rtol=1e-5, atol=1e-6)
    return found


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.LIBRARY])
@pytest.mark.parametrize("damage", DAMAGE)
def test_an_entry_with_a_damaged_file_is_replaced(name, damage):
    path = compiled().path
    DAMAGE[damage](path / name)
    compiled()
    assert compiled().from_cache
    assert (path / name).is_file() and not (path / name).is_symlink()
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("level", ["entry", "its parent"])
@pytest.mark.parametrize("damage", WHOLE)
def test_what_is_in_an_entrys_place_is_replaced(level, damage):
    path = compiled().path
    WHOLE[damage](path if level == "entry" else path.parent)
    compiled()
    assert compiled().from_cache
    assert path.is_dir() and not path.is_symlink() and not path.parent.is_symlink()


def test_a_link_in_an_entrys_place_is_not_followed(tmp_path):
    path, other = compiled().path, tmp_path / "mine"
    shutil.rmtree(path)
    other.mkdir()
    (other / "thesis").write_text("all of it")
    path.symlink_to(other)
    compiled()
    assert (other / "thesis").read_text() == "all of it"


IN_CACHE = """
import os, sys, warnings
import numpy as np
import needle_tvm
from tests.needle_tvm.cache.test_cache_whole import MODEL, X, WANTED, make_mlp, tensor
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for model in (MODEL, MODEL, make_mlp(8, 5)):
        made = needle_tvm.compile(model, tensor(X), stage="noopt")
        assert not made.from_cache
        np.testing.assert_allclose(made(X).numpy(), model(tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
    made.export(sys.argv[1])
assert [each.category.__name__ for each in caught] == ["CacheWarning"], caught
print(made.path, caught[0].message)
"""


@contextlib.contextmanager
def mounted(folder, *options):
    """A file system of its own at `folder`, for the commands that the context gives."""
    folder.mkdir()
    yield ["unshare", "-m", "sh", "-c", f'mount {" ".join(options)} none "$0" && exec "$@"', folder]


can_mount = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="mounting needs root",
)


@can_mount
@pytest.mark.parametrize("options", ["-t tmpfs -o ro", "-t tmpfs -o size=12k"])
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, options):
    with mounted(tmp_path / "cache", *options.split()) as command:
        done = subprocess.run(
            [*command, sys.executable, "-c", IN_CACHE, tmp_path / "exported"],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "cache") in done.stdout and done.stdout.count("\n") == 1
    assert needle_tvm.load(tmp_path / "exported")(X).shape == (2, 5)
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "exported"}


def test_a_file_in_the_caches_place(tmp_path):
    (tmp_path / "cache").write_text("mine")
    with pytest.warns(CacheWarning, match="the cache cannot be written"):
        compiled()
    assert (tmp_path / "cache").read_text() == "mine"


@pytest.mark.parametrize("value", ["~nobody-of-that-name/x"])
def test_a_cache_folder_that_is_no_folder_is_named(monkeypatch, value):
    monkeypatch.setenv(cache.CACHE_VARIABLE, value)
    with pytest.raises(UsageError, match="NEEDLE_CACHE_DIR='~nobody-of-that-name/x': names no"):
        compiled()


def test_a_relative_cache_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv(cache.CACHE_VARIABLE, "cache")
    with pytest.raises(UsageError, match="NEEDLE_CACHE_DIR='cache': names no folder"):
        compiled()
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    compiled()
