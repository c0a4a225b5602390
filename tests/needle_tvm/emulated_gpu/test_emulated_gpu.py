"""Models and ops compiled for a GPU, run on the emulated one; see emulated_gpu/__init__.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.needle_tvm import emulated_gpu

HERE = Path(emulated_gpu.__file__).parent

pytestmark = pytest.mark.skipif(
    emulated_gpu.compiler() is None, reason="no C++ compiler to compile the emulated GPU with"
)
slow = pytest.mark.slow

# Each covers what no other does: elementwise, NaN in a reduction, sums by several threads, a matmul
# in shared memory, windows with padding, statements that an op writes itself, empty arrays.
SAMPLE = ("abs", "argmax", "concat", "matmul", "max_pool", "segment_sum", "softmax")


def check(what, seconds, file="checks.py", **environment):
    """Run one of the checks of a file, or all its cases; report what it prints if it fails."""
    run([f"{HERE / file}" + (f"::{what}" if what else "")], seconds, **environment)


def run(arguments, seconds, **environment):
    """Run pytest in a process that has an emulated GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"


@pytest.mark.slow
def test_a_case_of_each_rule():
    """In one process: products, attention, reductions, recurrence, tensor cores, an op."""
    cases = (
        "test_any_tile and (dense-0 or batched-0 or dense-float16-0)",
        "test_any_tile and (batched-tf32-0 or convolution-tf32-0)",
        "test_attention_of_any_shape and 0",
        "test_products_of_few_rows",
        "test_reductions_that_threads_share and (mean or softmax)",
        "test_steps_of_a_layer and 2-3-13",
        "test_op and (argmax or max_pool or segment_sum)",
        "test_every_stage_of_a_model and mlp",
    )
    files = [str(HERE / name) for name in ("checks.py", "products.py", "tensor_cores.py")]
    chosen = ["-k", " or ".join(f"({case})" for case in cases)]
    run([*files, *chosen], 600, NEEDLE_PRODUCTS="1", NEEDLE_EMULATED_ORDER="descending")


@slow
@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
def test_a_model_at_every_stage(name):
    check(f"test_every_stage_of_a_model_computes_what_the_model_does[{name}]", 600)


@slow
def test_an_artifact():
    check("test_an_exported_model_is_loaded_and_tested_by_its_example", 300)


@slow
def test_products_of_few_rows():
    check("test_products_of_few_rows", 600)


@slow
def test_products_in_tiles():
    check("test_any_tile_computes_the_product", 600, "products.py", NEEDLE_PRODUCTS="2")


@slow
@pytest.mark.parametrize(
    "what", ["attention_of_any_shape", "a_row_that_a_mask_hides_is_nan_and_no_other"]
)
def test_attention(what):
    check(f"test_{what}", 600, "products.py", NEEDLE_PRODUCTS="2")


@pytest.mark.long
def test_products_in_many_tiles():
    check("test_any_tile_computes_the_product", 7200, "products.py", NEEDLE_PRODUCTS="40")


@pytest.mark.long
def test_attention_of_many_shapes():
    check("test_attention_of_any_shape", 7200, "products.py", NEEDLE_PRODUCTS="40")


# One of the orders reveals threads that read another thread's result without a barrier between.
@slow
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_reductions_that_threads_share(order):
    check("test_reductions_that_threads_share", 600, NEEDLE_EMULATED_ORDER=order)


@slow
def test_tensor_cores_asynchronous_copies_and_dynamic_shared_memory():
    check(None, 300, file="instructions.py")


@slow
def test_products_on_tensor_cores():
    check(
        "test_any_tile_computes_the_product",
        900,
        "tensor_cores.py",
        NEEDLE_PRODUCTS="1",
        NEEDLE_EMULATED_ORDER="descending",
    )


@slow
def test_a_model_on_tensor_cores():
    check("test_the_mlp", 900, "tensor_cores.py")


@pytest.mark.long
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_all_models_and_many_products_on_tensor_cores(order):
    check(None, 7200, "tensor_cores.py", NEEDLE_PRODUCTS="10", NEEDLE_EMULATED_ORDER=order)


@slow
def test_ops():
    run([f"{HERE / 'checks.py'}::test_op[{name}]" for name in SAMPLE], 900)


@pytest.mark.long
def test_every_op():
    dtypes = "float32,float16,bfloat16,int32,bool"
    check("test_op", 14400, NEEDLE_EMULATED_DTYPES=dtypes)
