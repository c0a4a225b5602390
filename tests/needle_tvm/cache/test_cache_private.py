"""Only its owner can access the cache, and files that others could write are not executed."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import needle_tvm
from needle_runtime.artifact import layout, replacing
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import ArtifactError
from needle_tvm import cache
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records.store import FILE, Store
from tests.needle_tvm.conftest import make_mlp, tensor

KEY = {"any": "key"}
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")


@pytest.fixture(autouse=True)
def new_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))


@contextlib.contextmanager
def umask(value):
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of an artifact."""
    path = tmp_path_factory.mktemp("made") / "mlp"
    x = tensor(np.ones((2, 8), np.float32))
    needle_tvm.compile(make_mlp(8, 4), x, stage="fused").export(path)
    manifest = read_manifest(path)
    return {name: (path / name).read_bytes() for name in manifest["files"]}, manifest


def write(made, key=KEY):
    """Write an entry of the cache, as `compile` does."""
    files, manifest = made
    entry = cache.entry(key)
    with cache.writing(entry) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        write_manifest(folder, {**manifest, "key": key})
    return entry


def modes(folder):
    """The modes of a folder and of everything in it."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in found}


def assert_private(folder):
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} {mode:o}"


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_entries_and_records_are_private_whatever_the_umask(made, mask):
    with umask(mask):
        entry = write(made)
        with Store() as store:
            assert_private(cache.root())
            assert store.path.parent == cache.root()
    assert_private(cache.root())
    assert cache.checked(entry).manifest["key"] == KEY


def test_other_stores_and_artifacts_have_the_usual_modes(tmp_path):
    with umask(0o027):
        with Store(tmp_path / "records"):
            assert set(modes(tmp_path / "records").values()) == {0o750, 0o640}
        with replacing.writing(tmp_path / "out") as folder:
            write_manifest(folder, {})
    assert set(modes(tmp_path / "out").values()) == {0o750, 0o640}


def places(entry):
    """Files and folders through which an entry's code could be replaced."""
    return {
        "the cache": cache.root(),
        "its artifacts": cache.root() / cache.ARTIFACTS,
        "a part of them": entry.parent,
        "the entry": entry,
        "its library": entry / layout.LIBRARY,
        "its manifest": entry / layout.MANIFEST,
    }


FOLDERS = ["the cache", "its artifacts", "a part of them", "the entry"]
PLACES = [*FOLDERS, "its library", "its manifest"]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("name", PLACES)
def test_what_others_can_write_is_not_used(made, name, mode):
    entry = write(made)
    place = places(entry)[name]
    place.chmod(mode)
    with pytest.raises(ArtifactError) as caught:
        cache.checked(entry)
    assert f"{place}: can be written by others (mode {mode:o}); only you" in str(caught.value)
    assert cache.checked(write(made))  # the next write makes it safe
    assert_private(cache.root())


@as_root
@pytest.mark.parametrize("name", PLACES)
def test_what_another_user_owns_is_not_used(made, name):
    entry = write(made)
    place = places(entry)[name]
    os.chown(place, STRANGER, STRANGER)
    with pytest.raises(ArtifactError) as caught:
        cache.checked(entry)
    assert f"{place}: belongs to user {STRANGER}; only you" in str(caught.value)
    if place in (entry, *entry.iterdir()):
        assert cache.checked(write(made))
        return
    with pytest.raises(ArtifactError, match=f"belongs to user {STRANGER}; only you"):
        write(made)
    assert place.stat().st_uid == STRANGER


@as_root
def test_roots_files_are_trusted_by_all(made, monkeypatch):
    entry = write(made)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert cache.checked(entry).manifest["key"] == KEY


def test_a_link_in_the_cache_is_not_followed(made, tmp_path):
    entry = write(made)
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="is a link"):
        cache.checked(entry)


def test_the_cache_itself_may_be_a_link(made, tmp_path):
    (tmp_path / "disk").mkdir(0o700)
    cache.root().symlink_to(tmp_path / "disk")
    assert cache.checked(write(made)).manifest["key"] == KEY
    (tmp_path / "disk").chmod(0o777)
    with pytest.raises(ArtifactError, match="can be written by others"):
        cache.checked(cache.entry(KEY))


def test_an_entry_under_another_ones_name_is_not_used(made):
    """Someone who could write to the folder once may have swapped two entries."""
    one, other = write(made), cache.entry({"another": "key"})
    cache.make_private(other.parent)
    one.rename(other)
    with pytest.raises(ArtifactError, match="is the entry of another key"):
        cache.checked(other)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_with_other_things_in_it_is_not_closed_to_others(made, mode):
    cache.root().mkdir()
    (cache.root() / "thesis.txt").write_text("we write it together")
    cache.root().chmod(mode)
    for use in (lambda: write(made), Store):
        with pytest.raises((ArtifactError, RecordsError), match=f"by others .mode {mode:o}.; only"):
            use()
    assert stat.S_IMODE(cache.root().stat().st_mode) == mode
    assert os.listdir(cache.root()) == ["thesis.txt"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_the_systems_folders_are_never_closed_to_others(monkeypatch, folder):
    monkeypatch.setenv(cache.CACHE_VARIABLE, folder)
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))  # as in a new container
    monkeypatch.setattr(Path, "chmod", pytest.fail)
    with pytest.raises(ArtifactError, match=r"can be written by others .mode 1777."):
        cache.make_private(cache.root() / cache.ARTIFACTS)


# Records


def test_records_that_others_can_write_are_not_used():
    with Store() as store:
        path = store.path
    for place, mode in ((path, 0o777), (path / FILE, 0o606)):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(mode)
        with pytest.raises(RecordsError) as caught:
            Store()
        assert f"{place}: can be written by others (mode {mode:o})" in str(caught.value)
        place.chmod(before)
        with Store():
            pass


@as_root
def test_records_of_another_user_are_not_used(tmp_path):
    with Store() as store:
        path = store.path
    os.chown(path / FILE, STRANGER, STRANGER)
    for create in (True, False):
        with pytest.raises(RecordsError, match=f"{FILE}: belongs to user {STRANGER}"):
            Store(create=create)
    path.rename(tmp_path / "elsewhere")  # a store that the user names is the user's choice
    with Store(tmp_path / "elsewhere"):
        pass


# Through compile


def planted(entry):
    """Make an entry's library write a file when it is loaded."""
    source = 'extern "C" __attribute__((constructor)) void planted() { __builtin_trap(); }'
    library = entry / layout.LIBRARY
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    write_manifest(entry, json.loads((entry / layout.MANIFEST).read_text()))


@pytest.mark.parametrize("name", ["the cache", "its artifacts", "the entry", "its library"])
def test_compile_does_not_load_what_others_can_write(name):
    model, x = make_mlp(8, 4), tensor(np.ones((2, 8), np.float32))
    first = needle_tvm.compile(model, x, stage="fused")
    assert_private(cache.root())
    places(first.path)[name].chmod(0o777)
    with pytest.warns(UserWarning, match=r"compiled again: .* can be written by others .mode 777."):
        again = needle_tvm.compile(model, x, stage="fused")
    assert not again.from_cache and again.path == first.path
    assert_private(cache.root())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert needle_tvm.compile(model, x, stage="fused").from_cache


COMPILE = """
import sys, warnings
import numpy as np
import needle as ndl, needle_tvm
from needle import nn
model = nn.Sequential(nn.Linear(8, 4)).eval()
x = ndl.Tensor(np.ones((2, 8), np.float32))
exe = needle_tvm.compile(model, x, stage="fused")
np.testing.assert_allclose(exe(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
print(exe.from_cache, exe.path)
"""


def compiled():
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True)
    return done.returncode, *done.stdout.split(), done.stderr


@as_root
def test_planted_code_is_not_run():
    """The code is in a folder of mode 1777, planted by a user who knew the entry's name."""
    _, _, path, _ = compiled()
    cache.root().chmod(0o1777)
    planted(Path(path))
    for place in (Path(path), *Path(path).iterdir()):
        os.chown(place, STRANGER, STRANGER)
    code, from_cache, _, said = compiled()
    assert (code, from_cache) == (0, "False")
    assert "cached artifact is compiled again" in said
    code, from_cache, _, said = compiled()
    assert (code, from_cache, said) == (0, "True", "")


@as_root
def test_a_cache_of_another_user_is_an_error():
    cache.root().mkdir(0o777)
    os.chown(cache.root(), STRANGER, STRANGER)
    with pytest.raises(ArtifactError, match=f"belongs to user {STRANGER}; only you"):
        needle_tvm.compile(make_mlp(8, 4), tensor(np.ones((2, 8), np.float32)), stage="fused")
    assert os.listdir(cache.root()) == []


# Leftovers of killed processes

KILLED = """
import contextlib, os, sys
from needle_tvm import cache
from needle_runtime.process import atomic
atomic.reaped = lambda path: contextlib.nullcontext()  # killed as well
with cache.writing(cache.entry({"killed": sys.argv[1]})) as folder:
    (folder / "half").write_text("written")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_with_the_next_entry(made):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED, number],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in "12"
    ]
    killed = processes[0]
    folders = [Path(process.stdout.readline().strip()) for process in processes]
    try:
        killed.kill()
        killed.wait()
        assert (folders[0] / "half").exists()
        write(made)
        assert not folders[0].exists()
        assert (folders[1] / "half").exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    write(made)
    assert not folders[1].exists()
