"""Targets are resolved without TVM, and refused by name."""

import json
import os

import pytest

from needle_runtime.errors import TargetError
from needle_runtime.process.threads import available_cores
from needle_runtime.target import host
from needle_runtime.target.features import Processor
from needle_tvm._tvm.names import cpu_features
from needle_tvm.target.spec import resolve

X86 = "x86_64-unknown-linux-gnu"


def test_the_host_is_what_llvm_says_it_is():
    spec = resolve("cpu")
    assert spec.threads == available_cores()
    target = spec.to_tvm()
    assert target.attrs["mcpu"] != "host"
    assert int(target.attrs["num-cores"]) == spec.threads


def test_the_key_of_the_host_names_its_processor(monkeypatch):
    before = resolve("cpu").key()
    monkeypatch.setattr(host, "identity", lambda: "another")
    assert resolve("cpu").key() != before
    explicit = {"kind": "llvm", "mcpu": "x86-64-v3"}
    assert "host" not in resolve(explicit).key()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tpu", "'tpu': must be cpu or cuda"),
        ("", "'': must be"),
        (None, "None: must be"),
        ("cuda:" + "9" * 5000, "must be cpu or cuda"),
        ({"kind": "rocm"}, "kind 'rocm'"),
        ({"kind": "llvm", "speed": "fast"}, "field 'speed'"),
    ],
)
def test_an_unknown_target_is_named(target, message):
    with pytest.raises(TargetError, match=message):
        resolve(target)


def test_an_unknown_processor_is_named():
    with pytest.raises(TargetError, match="no processor named 'pentium17'"):
        resolve({"kind": "llvm", "mcpu": "pentium17"}).to_tvm()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mtriple": "bogus"}, "mtriple='bogus'"),
        ({"mtriple": "riscv64-linux-gnu"}, "mtriple='riscv64-linux-gnu'"),
        ({"mtriple": "x86_64-linux\0"}, "mtriple="),
        ({"mcpu": 5}, "mcpu=5: must be a str"),
        ({"mcpu": None}, "mcpu=None: must be a str"),
        ({"mattr": "+avx2"}, r"mattr='\+avx2': must be a list"),
        ({"mattr": ["garbage"]}, "mattr: 'garbage' must be"),
        ({"mattr": ["avx2"]}, "mattr: 'avx2' must be"),
        ({"mattr": ["+garbage"]}, r"mattr: '\+garbage' must be"),
        ({"mattr": ["-sse2"]}, "mattr: '-sse2' must be"),
        ({"mattr": ["+reserve-x1"]}, r"mattr: '\+reserve-x1' must be"),
        ({"mattr": ["+avx2,+fma"]}, "mattr: "),
        ({"mattr": [5, ""]}, "mattr: 5 must be"),
        ({"mattr": [""]}, "mattr: '' must be"),
        ({"mtriple": "x86_64-windows"}, "mtriple='x86_64-windows': must be the triple of Linux"),
        ({"mtriple": "x86_64-linux-gnux32"}, "mtriple="),
        ({"num-cores": 0}, "num-cores=0: must be an integer from 1"),
        ({"num-cores": -1}, "num-cores=-1"),
        ({"num-cores": True}, "num-cores=True"),
        ({"num-cores": 10**30}, "num-cores=1000"),
        ({5: 1}, "target field 5"),
    ],
)
def test_a_field_that_is_none_is_named(fields, message):
    with pytest.raises(TargetError, match=message):
        resolve({"kind": "llvm", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mcpu": "i386"}, "'i386' lacks 64bit"),
        ({"mcpu": "pentium4"}, "'pentium4' lacks 64bit"),
        ({"mcpu": ""}, "no processor named ''"),
        ({"mcpu": "neoverse-n1"}, "no processor named 'neoverse-n1' for 'x86_64-"),
        ({"mcpu": "x86-64", "mattr": ["+neon"]}, "no feature named 'neon' for 'x86_64-"),
        (
            {"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu", "mattr": ["-neon"]},
            "lacks neon",
        ),
        ({"mcpu": "znver4", "mtriple": "aarch64-linux-gnu"}, "'znver4' for 'aarch64-"),
    ],
)
def test_what_llvm_has_no_code_for_is_named(fields, message):
    with pytest.raises(TargetError, match=message):
        resolve({"kind": "llvm", "mtriple": X86, **fields}).to_tvm()


def test_features_are_added_and_taken_away():
    fields = {"kind": "llvm", "mtriple": X86, "mcpu": "x86-64-v3"}
    features = set(cpu_features(resolve(fields).to_tvm()))
    changed = cpu_features(resolve({**fields, "mattr": ["+avx512f", "-bmi2"]}).to_tvm())
    assert "bmi2" in features and "avx512f" not in features
    assert "bmi2" not in changed and "avx512f" in changed


def test_threads_and_cores_that_differ_are_refused():
    assert resolve({"kind": "llvm", "num-cores": 3}).threads == 3
    assert resolve({"kind": "llvm", "num-cores": 3}, 3).threads == 3
    with pytest.raises(TargetError, match="threads=2: the target says num-cores=3"):
        resolve({"kind": "llvm", "num-cores": 3}, 2)


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="a GPU is here")
@pytest.mark.parametrize("target", ["cuda", "cuda:0"])
def test_cuda_without_a_gpu_is_one_line(target):
    with pytest.raises(TargetError, match="no CUDA device") as caught:
        resolve(target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("threads", [0, -2, 1.5, "2", True, 10**6, 10**30])
def test_threads_must_be_a_positive_integer(threads):
    with pytest.raises(TargetError, match="threads="):
        resolve("cpu", threads)


def test_features_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(host, "processor", lambda: Processor("old", frozenset({"avx", "fma"})))
    assert host.missing_features(["avx", "avx512f", "fma"]) == ["avx512f"]
    monkeypatch.setattr(host, "processor", lambda: Processor("", None))
    assert host.missing_features(["avx512f"]) is None


# Ordinary code for the second processor has instructions that the first does not have.
@pytest.mark.parametrize(
    ("here", "other"),
    [
        ("sapphirerapids", "diamondrapids"),
        ("sapphirerapids", "lunarlake"),
        ("sapphirerapids", "znver4"),
        ("znver4", "sapphirerapids"),
        ("znver2", "znver4"),
        ("haswell", "bdver4"),
        ("x86-64-v2", "x86-64-v3"),
        ("ivybridge", "haswell"),
    ],
)
def test_code_for_another_processor_is_refused_here(monkeypatch, here, other):
    def required(processor):
        target = resolve({"kind": "llvm", "mcpu": processor, "mtriple": X86}).to_tvm()
        return host.checkable(cpu_features(target))

    monkeypatch.setattr(host, "processor", lambda: Processor(here, frozenset(required(here))))
    assert host.missing_features(required(here)) == []
    assert host.missing_features(required(other))


def test_the_description_is_canonical_json():
    spec = resolve({"mcpu": "x86-64-v3", "kind": "llvm"}, 2)
    assert json.loads(spec.description) == {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    assert spec == resolve({"kind": "llvm", "mcpu": "x86-64-v3"}, 2)
