"""Passes and rules ask one object about the target, and every table by kind has every kind."""

import pytest

pytest.importorskip("tvm")

from needle_runtime.memory import ALIGNMENT
from needle_runtime.target import features, kind
from needle_tvm.kernels import search_interface
from needle_tvm.kernels.attention import fuse_attention
from needle_tvm.lower import pipeline
from needle_tvm.target import spec
from needle_tvm.target.info import TargetInfo, target_info
from needle_tvm.target.spec import resolve
from needle_tvm.tune import bench, library, space

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"
BY_KIND = {
    "devices": spec.DEVICES,
    "pipelines": pipeline.PIPELINES,
    "schedule rules": search_interface._RULES,
    "attention": fuse_attention._KERNELS,
    "seconds": bench._SECONDS,
    "writers": library._WRITERS,
    "TVM's rules": space._RULES,
}


@pytest.mark.parametrize("name", BY_KIND)
def test_a_table_has_every_kind(name):
    assert set(BY_KIND[name]) == set(kind.KINDS)


@pytest.mark.parametrize(
    ("mcpu", "triple", "vectors", "fuses", "in_halves"),
    [
        ("x86-64", X86, (16, 16), False, False),
        ("sandybridge", X86, (32, 16), False, False),
        ("haswell", X86, (32, 16), True, False),
        ("znver4", X86, (64, 32), True, True),
        ("znver5", X86, (64, 32), True, False),
        ("neoverse-n1", ARM, (16, 32), True, False),
    ],
)
def test_a_processor_has_the_vectors_of_its_widest_feature(mcpu, triple, vectors, fuses, in_halves):
    info = target_info(resolve({"kind": kind.CPU, "mcpu": mcpu, "mtriple": triple}, 3).to_tvm())
    assert info.is_cpu and not info.is_gpu and info.cores == 3
    assert info.vectors == vectors and info.vectors.bytes <= ALIGNMENT
    assert (info.fuses, info.in_halves) == (fuses, in_halves)
    wide, half, byte = (info.lanes(dtype) for dtype in ("float64", "bfloat16", "bool"))
    assert (8 * wide, 2 * half, byte) == (vectors[0],) * 3


def test_a_row_of_the_table_is_all_that_a_feature_takes(monkeypatch):
    target = resolve({"kind": kind.CPU, "mcpu": "znver5", "mtriple": X86}).to_tvm()
    wider = features.FEATURES["avx512fp16"]._replace(vectors=features.Vectors(128, 64))
    monkeypatch.setitem(features.FEATURES, "avx512vnni", wider)
    assert TargetInfo(target).vectors == (128, 64) and TargetInfo(target).lanes("float32") == 32


def test_a_gpu_has_an_architecture_and_its_hosts_features():
    info = target_info(resolve("cuda:sm_90a").to_tvm())
    assert info.is_gpu and not info.is_cpu
    assert (info.arch, info.capability) == ("sm_90a", 90)
    assert info.features == TargetInfo(info.target.host).features
