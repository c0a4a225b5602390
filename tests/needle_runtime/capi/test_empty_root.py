"""The examples in a root folder that holds nothing but their libraries."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.needle_runtime.capi import build
from tests.needle_runtime.capi.library import prefix

CHROOT = """
import os, sys
os.chroot(sys.argv[1])
os.chdir("/")
os.execve(sys.argv[2], sys.argv[2:], {})
"""


def may_change_root(folder):
    """How to run Python so that it may call chroot; None if there is no way."""
    for start in ([], ["unshare", "--map-root-user"]):
        if start and shutil.which(start[0]) is None:
            continue
        command = [*start, sys.executable, "-c", "import os, sys; os.chroot(sys.argv[1])", folder]
        if build.ran(command, check=False).returncode == 0:
            return start
    return None


def needed(file):
    """The libraries that the loader maps for a file, and the loader."""
    found = build.ran(["ldd", file]).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", found)}


@pytest.fixture(scope="module")
def root(tmp_path_factory, digits):
    """A folder with the examples, the library, TVM's runtime, and what the system's loader finds
    for them; with the model and its data, and an empty folder /tmp."""
    folder = tmp_path_factory.mktemp("root")
    start = may_change_root(folder)
    if start is None:
        pytest.skip("this user may not change the root folder")
    examples = build.programs(build.EXAMPLES, tmp_path_factory.mktemp("built"), prefix())
    names = ("infer_c", "infer_cpp", "train")
    files = [*(examples / name for name in names), prefix() / "lib" / "libtvm_runtime.so"]
    (folder / "lib").mkdir()
    (folder / "tmp").mkdir()
    for path in set().union(*map(needed, files)) | {files[-1]}:
        loader = path.name.startswith("ld-linux")
        place = folder / path.relative_to("/") if loader else folder / "lib" / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    for file in files[:-1]:
        shutil.copy(file, folder)
    shutil.copytree(digits, folder / "digits")
    return start, folder


def run(root, *command):
    start, folder = root
    full = [*start, sys.executable, "-c", CHROOT, folder, *command]
    return build.ran(full, check=False)


def test_only_libc_and_the_compilers_libraries_are_needed(root):
    own = {"libneedle_runtime", "libneedle_threads", "libtvm_runtime", "libtvm_ffi"}
    system = {"libc", "libm", "libdl", "libpthread", "librt", "libgcc_s", "libstdc++"}
    found = {path.name.partition(".so")[0] for path in (root[1] / "lib").iterdir()}
    assert found <= own | system, found - own - system
    assert own <= found


def test_inference(root, digits):
    for name in ("infer_c", "infer_cpp"):
        done = run(root, f"/{name}", "/digits/reader", "/digits")
        assert (done.returncode, done.stderr) == (0, "")
        here = build.ran(
            [root[1] / name, digits / "reader", digits],
            env={"LD_LIBRARY_PATH": str(prefix() / "lib")},
        )
        assert done.stdout == here.stdout


def test_training(root, digits, tmp_path):
    done = run(root, "/train", "/digits/step", "/digits/reader", "/digits", "2", "/tmp/state")
    assert (done.returncode, done.stderr) == (0, "")
    command = [root[1] / "train", digits / "step", digits / "reader", digits, 2, tmp_path / "state"]
    assert done.stdout == build.ran(command).stdout
    assert (root[1] / "tmp" / "state").read_bytes() == (tmp_path / "state").read_bytes()
    assert [each.name for each in (root[1] / "tmp").iterdir()] == ["state"]  # no copies of code


def test_a_root_without_a_place_for_code_is_told(root):
    (root[1] / "tmp").rename(root[1] / "elsewhere")
    try:
        done = run(root, "/infer_c", "/digits/reader", "/digits")
    finally:
        (root[1] / "elsewhere").rename(root[1] / "tmp")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the code cannot be loaded here: not from memory (/proc is missing)" in done.stderr
    assert "set TMPDIR" in done.stderr
