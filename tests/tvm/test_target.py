"""Targets are resolved without TVM, and refused by name."""

import json
import os

import pytest

from needle_tvm import host
from needle_tvm._tvm import cpu_features
from needle_tvm.errors import TargetError
from needle_tvm.target import resolve
from needle_tvm.threads import available_cores

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


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="a GPU is here")
@pytest.mark.parametrize("target", ["cuda", "cuda:0"])
def test_cuda_without_a_gpu_is_one_line(target):
    with pytest.raises(TargetError, match="no CUDA device") as caught:
        resolve(target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("threads", [0, -2, 1.5, "2"])
def test_threads_must_be_a_positive_integer(threads):
    with pytest.raises(TargetError, match="threads="):
        resolve("cpu", threads)


def test_features_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(host, "cpuinfo", lambda: ("old", frozenset({"avx", "fma"})))
    assert host.missing_features(["avx", "avx512f", "fma"]) == ["avx512f"]
    monkeypatch.setattr(host, "cpuinfo", lambda: ("unknown", frozenset()))
    assert host.missing_features(["avx512f"]) == []


# Each of the second has instructions in ordinary code that the first does not have.
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

    flags = frozenset(host.CPUINFO_NAMES[name] for name in required(here))
    monkeypatch.setattr(host, "cpuinfo", lambda: (here, flags))
    assert host.missing_features(required(here)) == []
    assert host.missing_features(required(other))


def test_the_description_is_canonical_json():
    spec = resolve({"mcpu": "x86-64-v3", "kind": "llvm"}, 2)
    assert json.loads(spec.description) == {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    assert spec == resolve({"kind": "llvm", "mcpu": "x86-64-v3"}, 2)
