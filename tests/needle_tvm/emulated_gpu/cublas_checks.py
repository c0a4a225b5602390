"""Matmuls by cuBLAS in compiled models, on an emulated GPU with a cuBLAS made for the test.

test_library_products.py runs these like checks.py. The first check needs a process that has not
found the library yet.
"""

import ctypes

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from apps import models
from apps.contestants import build_model
from needle.trace import trace
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.errors import TargetError
from needle_runtime.target import cublas
from needle_tvm.compiler import products
from needle_tvm.frontend import lowering
from needle_tvm.frontend.translate import translate
from needle_tvm.kernels.dense.gpu.library_products import Product, library_products
from needle_tvm.lower import build, pipeline
from needle_tvm.lower.variant import Choice
from needle_tvm.target.spec import resolve
from tests.needle_tvm.emulated_gpu import (
    build_cublas,
    checks,  # noqa: F401  there is an emulated GPU from here on
)


@pytest.fixture(scope="module")
def library():
    """The emulated cuBLAS, which this process can find from here on."""
    path = build_cublas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cublas, "places", lambda: iter([str(path)]))
        assert cublas.find() == str(path)
        yield ctypes.CDLL(str(path))


def compiled(model, *inputs, **options):
    return needle_tvm.compile(
        model, *inputs, target="cuda", products="cublas", recompile=True, **options
    )


def chain(count, width=16):
    return ndl.nn.Sequential(*(ndl.nn.Linear(width, width) for _ in range(count))).eval()


def test_without_cublas_an_artifact_is_refused_in_one_line(tmp_path):
    if cublas.find() is not None:
        pytest.skip("there is a cuBLAS")
    x = np.zeros((4, 16), np.float32)
    found = compiled(chain(1), x)
    with pytest.raises(
        TargetError, match=r"needs cuBLAS, but neither libcublas.so.13 nor"
    ) as error:
        found(x)
    assert "\n" not in str(error.value)
    folder = found.export(tmp_path / "model")
    for load in (needle_runtime.load, needle_tvm.load):
        with pytest.raises(TargetError, match="needs cuBLAS"):
            load(folder)
    with pytest.raises(TargetError, match="measuring needs cuBLAS"):
        needle_tvm.compile(chain(1), x, target="cuda", products="measured")


def test_a_model_whose_products_are_cublas_s(library, tmp_path):
    model, inputs = build_model(models.find("mlp").factory, batch=2)
    x = np.asarray(inputs[0])
    found = compiled(model.eval(), x)
    before = library.needle_products()  # the check at the first compile has called some
    assert found.manifest["libraries"] == ["cublas"]
    assert found.manifest["functions"]["main"]["graph"] is not None
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = rng.standard_normal(x.shape, dtype=np.float32)
        expected = model(ndl.Tensor(x)).numpy()
        have = found(x).numpy()
        np.testing.assert_allclose(have, expected, atol=1e-5 * np.abs(expected).max())
    assert found.program.executor._local.replay.nodes == 2 * 5  # each product, and what follows it
    # Once to load everything, once to be captured: what is replayed calls nothing.
    assert library.needle_products() - before == 2 * 5
    loaded = needle_runtime.load(found.export(tmp_path / "model"))
    assert needle_runtime.self_test(loaded).passed


# Shapes of both operands, and which of them are given with their last two axes swapped.
LAYOUTS = [
    ((3, 5), (5, 7), ""),
    ((5, 3), (5, 7), "x"),
    ((3, 5), (7, 5), "w"),
    ((5, 3), (7, 5), "xw"),
    ((2, 4, 3, 5), (5, 7), ""),
    ((2, 4, 3, 5), (7, 5), "w"),
    ((2, 4, 3, 5), (2, 4, 5, 7), ""),
    ((2, 4, 5, 3), (2, 4, 5, 7), "x"),
    ((2, 4, 3, 5), (2, 4, 7, 5), "w"),
]


def all_layouts(*values):
    def turned(value, name, turn):
        axes = list(range(len(value.shape)))
        return value.permute((*axes[:-2], axes[-1], axes[-2])) if name in turn else value

    pairs = zip(values[::2], values[1::2], LAYOUTS, strict=True)
    return tuple(turned(x, "x", turn) @ turned(w, "w", turn) for x, w, (_, _, turn) in pairs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layouts(library, dtype):
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal(shape).astype(dtype) for shapes in LAYOUTS for shape in shapes[:2]
    ]
    before = library.needle_products()
    found = compiled(all_layouts, *map(ndl.Tensor, values))
    notes = found.manifest["products"]
    turns = [["x" in turn, "w" in turn] for _, _, turn in LAYOUTS]
    assert [note["transposed"] for note in notes] == turns
    assert {note["dtype"] for note in notes} == {dtype}
    for have, x, w, (_, _, turn) in zip(
        found(*values), values[::2], values[1::2], LAYOUTS, strict=True
    ):
        x = x.swapaxes(-1, -2) if "x" in turn else x
        w = w.swapaxes(-1, -2) if "w" in turn else w
        # Sums of 5 terms in float64, rounded once.
        np.testing.assert_allclose(have.numpy(), x @ w, rtol=1e-5, atol=1e-6)
    assert library.needle_products() - before >= len(LAYOUTS)
    assert library.needle_rounded_products() == 0


def test_tf32_is_asked_of_cublas(library, tmp_path):
    x, w = (np.random.default_rng(i).standard_normal((16, 16), np.float32) for i in range(2))
    graph = trace(lambda x, w: x @ w, ndl.Tensor(x), ndl.Tensor(w))
    spec = resolve("cuda")
    target = spec.to_tvm()
    found = library_products(
        translate(graph, prefer_emit=True), target, chosen=Choice(), precision="tf32"
    )
    module = pipeline.run(pipeline.of(target, "tuned").graph, found, target)
    module = build.schedule(module, target, "tuned")
    notes = build.write_library(module, target, tmp_path)
    manifest = build.describe(lowering.signature(graph), module, spec, target, notes)
    write_manifest(tmp_path, manifest)
    before = library.needle_rounded_products()
    (have,) = needle_runtime.Program(Artifact.open(tmp_path)).run([x, w])
    assert library.needle_rounded_products() == before + 1
    np.testing.assert_allclose(have, x @ w, rtol=1e-5, atol=1e-5)  # the emulated one is exact


def test_measuring_compiles_and_times_both(library):
    measure = products.measure_on(resolve("cuda"))
    product = Product(1, 8, 16, 16, "float32", (False, True), stored=True, followed=True)
    before = library.needle_products()
    assert measure(product, False) > 0
    assert library.needle_products() == before
    assert measure(product, True) > 0
    assert library.needle_products() > before
    batch = Product(3, 4, 8, 5, "float64", (True, False), stored=False, followed=False)
    assert measure(batch, True) > 0 and measure(batch, False) > 0


def test_the_faster_one_is_taken_and_both_times_are_kept(library, monkeypatch):
    x = np.zeros((4, 16), np.float32)
    layers = (ndl.nn.Linear(16, 16), ndl.nn.Linear(16, 32), ndl.nn.Linear(32, 32))
    times = {16: (2e-6, 1e-6), 32: (1e-6, 2e-6)}  # by columns: our own, cuBLAS
    asked = []

    def measure(product, by_library):
        asked.append((product, by_library))
        return times[product.columns][by_library]

    monkeypatch.setattr(products, "measure_on", lambda spec: measure)
    found = needle_tvm.compile(
        ndl.nn.Sequential(*layers).eval(), x, target="cuda", products="measured", recompile=True
    )
    chosen = [
        (note["columns"], note["chosen"], note["own_seconds"], note["cublas_seconds"])
        for note in found.manifest["products"]
    ]
    assert chosen == [
        (16, "cublas", 2e-6, 1e-6),
        (32, "own", 1e-6, 2e-6),
        (32, "own", 1e-6, 2e-6),
    ]
    assert len(asked) == len(set(asked)) == 6  # each matmul once by either implementation
    assert found.script.count("R.call_dps_packed(") == 1
    expected = ndl.nn.Sequential(*layers)(ndl.Tensor(x)).numpy()
    np.testing.assert_allclose(found(x).numpy(), expected, atol=1e-6)
