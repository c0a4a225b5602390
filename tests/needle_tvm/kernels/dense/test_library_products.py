"""Which products become cuBLAS's, by choice and by measurement, and the code that calls it.

What runs is checked on an emulated GPU: emulated_gpu/cublas_checks.py.
"""

import subprocess

import numpy as np
import pytest
import tvm_ffi

import needle_tvm
from needle import Tensor, nn, ops
from needle.trace import trace
from needle_runtime.artifact import artifact
from needle_runtime.errors import ArtifactError, TargetError
from needle_runtime.target import cublas
from needle_tvm.compiler import products
from needle_tvm.errors import StageError
from needle_tvm.frontend.translate import translate
from needle_tvm.kernels.dense.gpu.library_products import (
    FUNCTION,
    SOURCE,
    Product,
    is_used,
    library_products,
)
from needle_tvm.lower import build
from needle_tvm.lower.libraries import compiled_function, cxx_compiler
from needle_tvm.lower.variant import Variant
from needle_tvm.target import nvcc
from needle_tvm.target.spec import resolve
from needle_tvm.tune.options import Options
from tests.needle_tvm import emulated_gpu
from tests.needle_tvm.emulated_gpu.test_emulated_gpu import check

needs_compiler = pytest.mark.skipif(cxx_compiler() is None, reason="no C++ compiler")


def array(*shape, dtype="float32"):
    return Tensor(np.zeros(shape, dtype), requires_grad=False)


def test_what_is_chosen_is_noted():
    choice = products.Choice()
    graph = trace(lambda a, b: ops.relu(a @ b), array(4, 8), array(8, 16))
    module = translate(graph, prefer_emit=True)
    assert not is_used(module)
    module = library_products(module, resolve("cuda:sm_90").to_tvm(), chosen=choice)
    product = Product(1, 4, 8, 16, "float32", (False, False), stored=False, followed=True)
    assert choice.notes == [{**product.facts(), "chosen": "cublas"}]
    assert is_used(module)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"products": "blas"}, StageError, "must be one of own, cublas, measured"),
        ({"products": "cublas", "target": "cpu"}, TargetError, "targets of kind cuda"),
        ({"products": "cublas", "stage": "fused"}, StageError, "not stage='fused'"),
        ({"products": "cublas", "trials": 4}, StageError, "needle's own kernels only"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(given, error, words):
    options = {"target": "cuda:sm_90", **given}
    with pytest.raises(error, match=words):
        needle_tvm.compile(nn.Linear(4, 4).eval(), array(2, 4), **options)


def test_measuring_takes_the_gpu_that_is_compiled_for(monkeypatch):
    spec = resolve("cuda:sm_80")
    monkeypatch.setattr(products.gpu, "gpus", lambda: (emulated_gpu.GPU,))
    with pytest.raises(TargetError, match="needs a GPU of sm_80; this one is sm_90"):
        products.check("measured", spec, "tuned", Options())


def test_each_product_is_measured_once_and_the_faster_one_kept():
    asked = []

    def measure(product, by_library):
        asked.append((product.rows, by_library))
        return {8: (3.0, 2.0), 64: (2.0, 2.0)}[product.rows][by_library]

    choice = products.Choice(measure)
    small, large = (
        Product(1, rows, 4, 4, "float32", (False, False), True, True) for rows in (8, 64)
    )
    assert [choice(each) for each in (small, large, small)] == [True, False, True]
    assert asked == [(8, False), (8, True), (64, False), (64, True)]
    kept = [(n["rows"], n["chosen"], n["own_seconds"], n["cublas_seconds"]) for n in choice.notes]
    assert kept == [(8, "cublas", 3.0, 2.0), (64, "own", 2.0, 2.0)]


@needs_compiler
def test_a_program_of_cublas_alone_is_linked():
    """It has no kernel and no loop of its own."""
    a = array(8, 8)
    compiled = needle_tvm.compile(
        lambda a, b: a @ b, a, a, target="cuda:sm_90", products="cublas", recompile=True
    )
    assert compiled.artifact.read("lib.so") and not compiled.manifest.get("kernels")


@pytest.mark.parametrize(
    "product",
    [
        Product(1, 6, 16, 32, "float32", (False, True), stored=True, followed=True),
        Product(3, 6, 16, 32, "float64", (True, False), stored=False, followed=False),
        Product(1, 6, 16, 32, "bfloat16", (False, False), stored=True, followed=False),
    ],
)
def test_what_is_measured_is_the_product_that_is_asked_for(product):
    module, signature = products.example(product)
    target = resolve("cuda:sm_90").to_tvm()
    choice = products.Choice()
    library_products(module, target, chosen=choice)
    assert choice.notes == [{**product.facts(), "chosen": "cublas"}]
    assert len(signature["params"]) == product.stored + product.followed
    build.lower_module(
        module, target, Variant("tuned")
    )  # is well formed, and has passes of its own


@needs_compiler
@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_the_library_carries_the_function_and_the_manifest_names_what_it_takes(tmp_path):
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    found = needle_tvm.compile(layers, array(2, 8), target="cuda:sm_90", products="cublas")
    said = subprocess.run(
        ["nm", "-D", "--defined-only", found.path / artifact.LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"__tvm_ffi_{FUNCTION}" in said.stdout
    assert found.manifest["libraries"] == ["cublas"]
    assert [note["chosen"] for note in found.manifest["products"]] == ["cublas"]
    own = needle_tvm.compile(layers, array(2, 8), target="cuda:sm_90")
    assert "libraries" not in own.manifest and not own.from_cache
    manifest = {**found.manifest, "libraries": ["cudnn"]}
    (tmp_path / artifact.LIBRARY).write_bytes(b"\x7fELF")
    artifact.write_manifest(tmp_path, manifest)
    with pytest.raises(ArtifactError, match="is not an artifact's manifest"):
        artifact.read_manifest(tmp_path)


@needs_compiler
@pytest.mark.skipif(cublas.find() is not None, reason="there is a cuBLAS")
def test_without_cublas_a_call_says_so(tmp_path):
    linked, compiled = tmp_path / "gemm.so", tmp_path / "gemm.o"
    compiled.write_bytes(compiled_function(SOURCE))
    subprocess.run([cxx_compiler(), "-shared", "-o", linked, compiled], check=True)
    gemm = tvm_ffi.load_module(str(linked))[FUNCTION]
    tensor = tvm_ffi.from_dlpack(np.zeros((4, 4), np.float32))
    with pytest.raises(RuntimeError, match=r"neither libcublas\.so\.13 nor libcublas\.so\.12"):
        gemm(tensor, tensor, False, False, False, tensor, tensor)


@pytest.mark.slow
@pytest.mark.skipif(
    emulated_gpu.compiler() is None, reason="no C++ compiler to compile the emulated GPU with"
)
def test_products_by_an_emulated_cublas():
    check("", 600, file="cublas_checks.py")
