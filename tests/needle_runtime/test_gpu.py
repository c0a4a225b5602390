"""Queries of GPUs through a driver made for the test, and which code runs on which GPU."""

import shutil
import subprocess
import sys
import textwrap

import pytest

from needle_runtime.target import gpu
from needle_runtime.target.gpu import Gpu

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char* name, int bytes, int device) {
  strncpy(name, device == 40 ? "First GPU" : "Second GPU", bytes);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 75: *value = device == 40 ? 9 : 7; return 0;
    case 76: *value = device == 40 ? 0 : 5; return 0;
    case 97: *value = ATTRIBUTE; return 0;
    default: *value = 1000 * attribute; return ATTRIBUTE < 0;
  }
}
"""

SAY = """
import json, dataclasses
from needle_runtime.target import gpu
print(json.dumps([[dataclasses.asdict(each) for each in gpu.gpus()], gpu.why_none()]))
"""


@pytest.fixture
def asked(tmp_path):
    """A function: the results of `gpus` and `why_none` with a driver compiled with macros."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def ask(**macros):
        source = tmp_path / "driver.c"
        source.write_text(DRIVER)
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        library = tmp_path / "libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", *defines, "-o", library, source], check=True)
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SAY)],
            env={"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return ask


def test_the_driver_describes_each_gpu(asked):
    import json

    found, why = json.loads(asked(INIT=0, COUNT=2, ATTRIBUTE=232448).stdout)
    first, second = (Gpu(**each) for each in found)
    assert why == "" and (first.index, second.index) == (0, 1)
    assert (first.name, first.arch) == ("First GPU", "sm_90")
    assert (second.name, second.arch) == ("Second GPU", "sm_75")
    assert first.shared_bytes == 8000 and first.shared_bytes_optin == 232448
    assert (first.threads_per_block, first.warp, first.registers) == (1000, 10000, 12000)
    assert (first.multiprocessors, first.l2_bytes) == (16000, 38000)


@pytest.mark.parametrize(
    ("macros", "why"),
    [({"INIT": 100, "COUNT": 0}, "(driver error 100)"), ({"INIT": 0, "COUNT": 0}, "machine")],
)
def test_a_driver_without_a_gpu_is_none(asked, macros, why):
    import json

    found, said = json.loads(asked(ATTRIBUTE=1, **macros).stdout)
    assert found == [] and said.startswith("no CUDA device was found") and said.endswith(why)


def test_a_driver_that_fails_is_an_error_that_names_the_device(asked):
    done = asked(INIT=0, COUNT=1, ATTRIBUTE=-1)
    assert "OSError: CUDA device 0: the driver answers with error 1" in done.stderr


@pytest.mark.parametrize(
    ("arch", "major", "minor", "runs"),
    [
        ("sm_90", 9, 0, True),
        ("sm_80", 8, 6, True),
        ("sm_86", 8, 0, False),
        ("sm_80", 9, 0, False),
        ("sm_90", 8, 9, False),
        ("sm_90a", 9, 0, True),
        ("sm_100a", 10, 3, False),
        ("sm_100", 10, 3, True),
        ("sm_75", 7, 5, True),
        ("sm_75", 7, 0, False),
    ],
)
def test_code_runs_on_its_own_major_version_and_no_lower_minor_one(arch, major, minor, runs):
    device = Gpu(0, "", major, minor, 1024, 49152, 101376, 65536, 32, 80, 1 << 20)
    assert gpu.runs(arch, device) == runs
