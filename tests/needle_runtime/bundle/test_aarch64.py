"""Code that is compiled here for aarch64 runs under qemu: a bundle infers and trains there.

The wheels of TVM for aarch64 are taken from the folder NEEDLE_AARCH64_WHEELS, or else downloaded to
pytest's cache.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from needle_runtime._tvm import versions
from needle_runtime.bundle.making import bundle
from needle_runtime.errors import TargetError
from tests import ROOT
from tests.needle_runtime.bundle.conftest import EPOCHS, build_examples, checked, right_of

PAGE, OTHER_PAGE = ROOT / "docs" / "cross-compiling.md", ROOT / "docs" / "c-and-cpp.md"
COMPILER, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
CROSS = (
    f"-DCMAKE_CXX_COMPILER={COMPILER}",
    "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
)
WHEELS = (f"apache-tvm=={versions.TVM}", f"apache-tvm-ffi=={versions.FFI}")
LIBC = ("ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine is one"),
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}")
        for tool in (COMPILER, QEMU, "cmake")
    ),
]


@pytest.fixture(scope="module")
def wheels(pytestconfig, tmp_path_factory):
    given = os.environ.get("NEEDLE_AARCH64_WHEELS")
    if given:
        return Path(given)
    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("aarch64-wheels") if cache else tmp_path_factory.mktemp("wheels")
    if len(list(folder.glob("*.whl"))) < len(WHEELS):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
        ]
        command += ["--only-binary=:all:", "--platform=manylinux_2_28_aarch64", *WHEELS]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("the wheels for aarch64 cannot be downloaded; NEEDLE_AARCH64_WHEELS may")
    return folder


@pytest.fixture(scope="module")
def place(wheels, tmp_path_factory):
    """A folder in which the commands of docs/cross-compiling.md have made the runtime."""
    folder = tmp_path_factory.mktemp("aarch64")
    (folder / "needle").symlink_to(ROOT)
    run_blocks(folder, slice(0, 1), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    return folder


@pytest.fixture(scope="module")
def prefix(place):
    return place / "aarch64"


def run_blocks(folder, which, **environment):
    """Run some of the page's commands in a folder; return what they print."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **environment}
    return checked(["bash", "-ec", "\n".join(blocks[which])], cwd=folder, env=env)


@pytest.fixture(scope="module")
def libc(tmp_path_factory):
    """A root for qemu with glibc's libraries alone."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "lib").mkdir()
    for name in LIBC:
        found = Path(checked([COMPILER, f"-print-file-name={name}"]).strip())
        shutil.copy(found, folder / "lib")
    return folder


@pytest.mark.parametrize(
    ("target", "processor"),
    [("graviton3", "max"), ("graviton2", "neoverse-n1"), ("raspberry-pi-4", "cortex-a72")],
)
def test_a_bundle_infers_and_trains_as_python_does(
    target, processor, digits, prefix, libc, tmp_path
):
    """The emulated processor has the features of the target's, or all that qemu knows."""
    digits.export(target, target)
    for name in ("model", "step"):
        artifact = digits.folder / f"{target}-{name}"
        with pytest.raises(TargetError, match=r"is compiled for aarch64; .* give --runtime FOLDER"):
            bundle(artifact, tmp_path / name)
        made = bundle(artifact, tmp_path / name, runtime=prefix)
        assert made.machine == "aarch64" and "lib/libstdc++.so.6" in made.files
    built = build_examples(tmp_path / "model", tmp_path / "build", *CROSS)
    model, step = tmp_path / "model" / "model", tmp_path / "step" / "model"

    def run(program, *arguments):
        return checked([QEMU, "-cpu", processor, "-L", libc, built / program, *arguments])

    for program in ("infer_c", "infer_cpp"):
        assert right_of(run(program, model, digits.data)) == digits.right[0]
    trained = run("train", step, model, digits.data, str(EPOCHS), tmp_path / "state")
    assert abs(right_of(trained) - digits.right[1]) <= 0.01 * digits.count


def test_a_processor_that_lacks_a_feature_is_told(digits, prefix, libc, tmp_path):
    """qemu's Cortex-A53 has none of the features that the code for Graviton 3 uses."""
    digits.export("graviton3", "told")
    made = bundle(digits.folder / "told-model", tmp_path / "b", runtime=prefix)
    built = build_examples(made.path, tmp_path / "build", *CROSS)
    command = [QEMU, "-cpu", "cortex-a53", "-L", libc, built / "infer_c"]
    done = subprocess.run(
        [*command, made.path / "model", digits.data], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "sve" in done.stderr and "neoverse-v1" in done.stderr


def test_the_commands_of_the_page_run(place, monkeypatch):
    monkeypatch.chdir(place)
    exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], {})
    program = re.search(r"```c\n(/\* classify.*?)```", OTHER_PAGE.read_text(), re.DOTALL)[1]
    (place / "classify.c").write_text(program)
    *printed, one, two, three, four = run_blocks(place, slice(1, 3)).splitlines()
    assert any("Linux on aarch64 with glibc" in line for line in printed)
    assert {one, two, three, four} <= {"0", "1", "2"}
