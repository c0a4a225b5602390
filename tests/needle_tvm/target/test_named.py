"""Targets by name: LLVM knows each processor, and the linker for another architecture is found."""

import platform
import shutil

import pytest

import needle_tvm
from needle_runtime.artifact import Artifact
from needle_runtime.errors import TargetError
from needle_runtime.process.threads import available_cores
from needle_tvm._tvm.names import cpu_features
from needle_tvm.errors import ToolchainError
from needle_tvm.lower import linking
from needle_tvm.target.named import ARM, NAMED, X86
from needle_tvm.target.spec import resolve
from tests.needle_tvm.conftest import make_mlp, tensor

MACHINES = {ARM: "aarch64", X86: "x86_64"}
OTHER = next(triple for triple, machine in MACHINES.items() if machine != platform.machine())


@pytest.mark.parametrize("name", NAMED)
def test_llvm_knows_every_processor(name):
    target = resolve(name).to_tvm()
    assert str(target.attrs["mcpu"]) == NAMED[name].mcpu
    assert cpu_features(target)


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        (ARM, {"neon"}, {"lse", "dotprod"}),
        ("raspberry-pi-4", {"neon"}, {"lse", "dotprod"}),
        ("raspberry-pi-5", {"lse", "dotprod", "fullfp16"}, {"sve"}),
        ("graviton2", {"lse", "dotprod", "fullfp16"}, {"sve"}),
        ("graviton3", {"sve", "bf16", "i8mm"}, {"sve2"}),
        ("graviton4", {"sve", "sve2", "bf16", "i8mm"}, set()),
        (X86, {"sse2"}, {"sse4.2"}),
        ("x86-64-v2", {"sse4.2"}, {"avx"}),
        ("x86-64-v3", {"avx2", "fma"}, {"avx512f"}),
        ("x86-64-v4", {"avx512f", "avx512vl"}, {"avx512fp16"}),
    ],
)
def test_features_are_those_of_the_processor(name, has, lacks):
    features = set(cpu_features(resolve(name).to_tvm()))
    assert has <= features and not lacks & features


def test_an_unknown_name_is_told_the_names():
    with pytest.raises(TargetError, match="'graviton9': must be cpu or cuda") as told:
        resolve("graviton9")
    assert all(name in str(told.value) for name in NAMED)


def test_threads_are_the_computers_cores_unless_given():
    assert resolve("raspberry-pi-5").threads == 4
    assert resolve("raspberry-pi-5", 2).threads == 2
    assert resolve("graviton3").threads == available_cores()
    assert resolve("graviton3", 8).threads == 8


def write_compiler(folder, name, machine):
    """A file that says, as compilers do, which machine it compiles for."""
    file = folder / name
    file.write_text(f"#!/bin/sh\necho {machine}\n")
    file.chmod(0o755)
    return str(file)


def test_the_linker_of_another_architecture_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=f"there is no {OTHER}-g[+][+]: install one") as told:
        linking._linker(OTHER)
    assert f"apt install g++-{OTHER.replace('_', '-')}" in str(told.value)
    write_compiler(tmp_path, f"{OTHER}-gcc", OTHER)
    assert linking._linker(OTHER) == f"{OTHER}-gcc"
    write_compiler(tmp_path, f"{OTHER}-g++", OTHER)
    assert linking._linker(OTHER) == f"{OTHER}-g++"
    monkeypatch.setenv("CXX", write_compiler(tmp_path, "c++", MACHINES[OTHER] + "-other-linux-gnu"))
    assert linking._linker(OTHER) == str(tmp_path / "c++")
    for unfit in (write_compiler(tmp_path, "native", "riscv64-linux-gnu"), "/nowhere/g++", "'"):
        monkeypatch.setenv("CXX", unfit)
        assert linking._linker(OTHER) == f"{OTHER}-g++"


def test_this_architecture_is_linked_by_this_machines_compiler():
    triple = next(each for each, machine in MACHINES.items() if machine == platform.machine())
    assert linking._linker(triple) == linking._linker("") == linking.cxx_compiler()


def test_a_step_is_exported_for_another_computer(rng, tmp_path):
    """It was compiled and called for this one."""
    if shutil.which(f"{OTHER}-g++") is None:
        pytest.skip(f"no {OTHER}-g++")
    model = make_mlp(8, 4)
    step = needle_tvm.jit(lambda x: model(x).sum())
    x = tensor(rng.standard_normal((3, 8)).astype("float32"))
    step(x)
    name = "graviton2" if OTHER == ARM else "x86-64-v3"
    found = Artifact.open(step.export(tmp_path / name, target=name))
    assert found.target["mcpu"] == NAMED[name].mcpu and found.golden() is not None
    assert f"is compiled for {MACHINES[OTHER]}" in found.obstacle
    with pytest.raises(TargetError, match=r"export\(path, target=...\)"):
        needle_tvm.jit(lambda x: model(x).sum(), target=name)(x)
    step.export(tmp_path / "here")
    assert needle_tvm.load(tmp_path / "here")(x).shape == ()
