"""The processor's features are the processor's own, whatever /proc/cpuinfo says."""

import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle_tvm
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import TargetError
from needle_runtime.target import features, host
from needle_runtime.target.features import ARM, X86, Processor
from needle_tvm.target.spec import MCPU_VARIABLE, resolve
from tests.needle_tvm.conftest import make_mlp, tensor

is_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86 processors")
can_mount = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="mounting needs root",
)
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def answers(*names, everywhere=0):
    """CPUID of a processor with these features."""

    def cpuid(leaf, subleaf):
        registers = [everywhere] * 4
        for name in names:
            if X86[name].leaf == (leaf, subleaf):
                registers[X86[name].register] |= 1 << X86[name].bit
        return tuple(registers)

    return cpuid


def test_each_feature_has_a_bit_of_its_own():
    for name in X86:
        assert features.of_cpuid(answers(name), 0xFFFFFFFF).features == {name}
    assert features.of_cpuid(answers(everywhere=0xFFFFFFFF), 0xFFFFFFFF).features == set(X86)
    assert len(set(ARM.values())) == len(ARM)


def test_registers_that_the_system_does_not_save_are_not_used():
    ask = answers("sse3", "bmi2", "avx2", "fma", "avx512f", "amx-tile")
    for enabled, wanted in {
        0: {"sse3", "bmi2"},
        0x7: {"sse3", "bmi2", "avx2", "fma"},
        **{bits: {"sse3", "bmi2"} for bits in (0x3, 0x5)},  # each bit of a set counts
        **{bits: {"sse3", "bmi2", "avx2", "fma"} for bits in (0x67, 0xA7, 0xC7)},
        0xE7: {"sse3", "bmi2", "avx2", "fma", "avx512f"},
        0x600E7: {"sse3", "bmi2", "avx2", "fma", "avx512f", "amx-tile"},
    }.items():
        assert features.of_cpuid(ask, enabled).features == wanted


def test_what_is_no_description_of_this_processor_says_nothing():
    x86, arm = "model name\t: A\nflags\t\t: pni avx\n\nrest", "Features\t: asimd sve\n"
    assert features.by_cpuinfo(x86, "x86_64") == Processor("A", frozenset({"sse3", "avx"}))
    assert features.by_cpuinfo(arm, "aarch64").features == {"neon", "sve"}
    for text, machine in ((x86, "aarch64"), (arm, "x86_64"), ("", "x86_64"), ("", "riscv64")):
        assert features.by_cpuinfo(text, machine) == Processor("", None)


@is_x86
def test_the_processor_and_linux_agree():
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("no /proc/cpuinfo")
    assert features.processor() == features.by_cpuinfo(cpuinfo.read_text(), "x86_64")


def test_unknown_features_are_said_to_be_unknown(monkeypatch, tmp_path, capsys):
    made = needle_tvm.compile(make_mlp(8, 4), tensor(X), stage="noopt")
    made.export(tmp_path / "made")
    monkeypatch.setattr(host, "processor", lambda: Processor("", None))
    assert Artifact.open(tmp_path / "made").missing_features is None
    with pytest.warns(UserWarning, match="this processor.s features cannot be determined here"):
        needle_tvm.load(tmp_path / "made")
    from needle_tvm.__main__ import main

    assert main(["inspect", str(tmp_path / "made")]) == 0
    assert "unknown: this processor's features" in capsys.readouterr().out


@is_x86
def test_code_for_this_machine_does_without_what_it_lacks(monkeypatch):
    """LLVM goes by family and model; a hypervisor may hide features of the model."""
    named = resolve({"kind": "llvm", "mcpu": "znver4"}).to_tvm()
    from needle_tvm._tvm import names

    monkeypatch.setattr(names, "host_cpu", lambda: "znver4")
    lacking = {"avx512f", "avx512vnni", "gfni"}
    has = frozenset(host.checkable(names.cpu_features(named))) - lacking
    monkeypatch.setattr(host, "processor", lambda: Processor("hidden", has))
    target = resolve("cpu")
    assert not lacking & set(names.cpu_features(target.to_tvm()))
    assert set(target.resolved()["mattr"]) == {f"-{name}" for name in lacking}
    monkeypatch.setattr(host, "processor", lambda: Processor("whole", has | lacking))
    assert "mattr" not in resolve("cpu").resolved()


def test_another_processor_can_stand_for_this_one(monkeypatch):
    here = resolve("cpu").key()
    monkeypatch.setenv(MCPU_VARIABLE, "haswell" if platform.machine() == "x86_64" else "cortex-a72")
    other = resolve("cpu")
    assert other.resolved()["mcpu"] == os.environ[MCPU_VARIABLE] and other.key() != here
    monkeypatch.setenv(MCPU_VARIABLE, "abacus")
    with pytest.raises(TargetError, match="no processor named 'abacus'"):
        resolve("cpu").to_tvm()


IN_CHROOT = """
import json, sys, warnings
import numpy as np
import needle_tvm
from needle_runtime.target import host
from needle_runtime.target.features import processor
from tests.needle_runtime.target.test_features import X, make_mlp, tensor
made = needle_tvm.compile(make_mlp(8, 4), tensor(X), stage="tuned", recompile=True)
assert np.isfinite(made(X).numpy()).all()
found = {"features": sorted(processor().features), "mcpu": made.manifest["target"]["mcpu"]}
try:
    needle_tvm.load(sys.argv[1])
except needle_tvm.errors.TargetError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


@is_x86
@can_mount
@pytest.mark.slow
@pytest.mark.parametrize("cpuinfo", [None, "", "flags : amx_tile pni\n", "Features : sve\n"])
def test_a_cpuinfo_that_is_missing_or_anothers(tmp_path, cpuinfo):
    """The same code and the same refusals as with the true one; a SIGILL before."""
    made = needle_tvm.compile(make_mlp(8, 4), tensor(X), stage="tuned")
    made.export(tmp_path / "other")
    manifest = read_manifest(tmp_path / "other")
    manifest["target"]["features"] += ["amx-tile", "sve"]
    write_manifest(tmp_path / "other", manifest)
    (tmp_path / "empty").mkdir()
    (tmp_path / "cpuinfo").write_text(cpuinfo or "")
    over = "mount --bind empty /proc"
    if cpuinfo is not None:
        over = "mount --bind cpuinfo /proc/cpuinfo"
    script = f'cd "$0" && {over} && cd "$OLDPWD" && exec "$@"'
    command = [sys.executable, "-c", IN_CHROOT, tmp_path / "other"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, tmp_path, *command],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    lacks = [name for name in ("amx-tile", "sve") if name not in features.processor().features]
    assert found["error"].endswith(f"this one lacks {', '.join(lacks)}")
    assert found["features"] == sorted(features.processor().features)
    assert found["mcpu"] == made.manifest["target"]["mcpu"]


def test_the_c_library_knows_the_same_features():
    script = Path(__file__).parents[3] / "runtime/src/capi/write_features.py"
    written = runpy.run_path(str(script))
    assert written["FILE"].read_text() == written["text"]()
