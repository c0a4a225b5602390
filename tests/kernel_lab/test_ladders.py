"""Every rung of every CPU ladder has a description and is right at every size it claims."""

import re

import numpy as np
import pytest

from kernel_lab import build, registry
from kernel_lab.contestants import unwritten
from kernel_lab.errors import LabUsageError
from kernel_lab.results import KINDS
from kernel_lab.trace import trace
from kernel_lab.workload import Case, Processor, describe
from needle_runtime.artifact.tolerance import compare
from needle_runtime.memory import aligned_copy

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

# Small sizes: whole tiles, one element less and one more, and smaller than any tile.
SIZES = {
    "vector_add": ({"N": 1}, {"N": 77}, {"N": 128}),
    "conv1d": (
        {"M": 1, "N": 1},
        {"M": 37, "N": 5, "mode": "same"},
        {"M": 257, "N": 61, "mode": "same"},
        {"M": 256, "N": 32},
    ),
    "depthwise": (
        {"B": 1, "C": 1, "H": 1, "W": 1, "K": 1},
        {"B": 2, "C": 2, "H": 5, "W": 33, "K": 4},
        {"B": 1, "C": 2, "H": 16, "W": 32, "K": 7},
        {"B": 1, "C": 1, "H": 3, "W": 4, "K": 9},
    ),
    "separable": (
        {"B": 1, "C": 1, "H": 1, "W": 1, "K": 1, "O": 1},
        {"B": 2, "C": 3, "H": 9, "W": 17, "K": 3, "O": 5},
        {"B": 1, "C": 4, "H": 16, "W": 32, "K": 7, "O": 8},
    ),
    "gemm": (
        {"M": 1, "N": 1, "K": 1},
        {"M": 50, "N": 37, "K": 61},
        {"M": 64, "N": 64, "K": 64},
        {"M": 33, "N": 31, "K": 130},
    ),
    "gelu_matmul": ({"M": 1, "N": 1, "K": 1}, {"M": 50, "N": 37, "K": 61}),
    "int8_gemm": ({"M": 33, "N": 37, "K": 61},),
    "softmax": ({"M": 5, "N": 77}, {"M": 3, "N": 128}),
    "layer_norm": ({"M": 5, "N": 77}, {"M": 3, "N": 128}),
    "attention": ({"H": 2, "M": 9, "N": 77, "D": 5},),
}
MORE_SIZES = {  # for the slow variant of the same test
    "conv1d": ({"M": 33, "N": 33}, {"M": 130, "N": 4, "mode": "same"}, {"M": 700, "N": 65}),
    "depthwise": (
        {"B": 1, "C": 3, "H": 9, "W": 17, "K": 3},
        {"B": 2, "C": 2, "H": 8, "W": 16, "K": 2},
    ),
    "gemm": ({"M": 7, "N": 100, "K": 3}, {"M": 256, "N": 96, "K": 128}),
    "gelu_matmul": ({"M": 64, "N": 64, "K": 64},),
    "int8_gemm": (
        {"M": 1, "N": 1, "K": 1},
        {"M": 300, "N": 5, "K": 2},
        {"M": 7, "N": 100, "K": 1023},
        {"M": 8, "N": 64, "K": 8},
    ),
    "softmax": ({"M": 1, "N": 1}, {"M": 2, "N": 63}, {"M": 17, "N": 1000}),
    "layer_norm": ({"M": 1, "N": 1}, {"M": 2, "N": 65}, {"M": 33, "N": 1000}),
    "attention": (
        {"H": 1, "M": 1, "N": 1, "D": 1},
        {"H": 1, "M": 16, "N": 600, "D": 32},
        {"H": 3, "M": 5, "N": 256, "D": 64},
        {"H": 1, "M": 8, "N": 257, "D": 33},
    ),
}

CPU = [
    (ladder, rung)
    for (_, device), ladder in registry.LADDERS.items()
    if device == "cpu"
    for rung in ladder.rungs
]


@pytest.fixture(scope="module")
def target():
    return build.make_target("cpu")


def test_every_workload_has_sizes_to_be_tested_at():
    assert set(SIZES) == set(registry.WORKLOADS)


@pytest.mark.parametrize(
    "ladder", registry.LADDERS.values(), ids=lambda x: f"{x.workload.name}-{x.device}"
)
def test_a_ladder_begins_naive_and_its_rungs_are_described(ladder):
    names = [rung.name for rung in ladder.rungs]
    assert len(set(names)) == len(names)
    assert ladder.rungs[0].kind == "naive" and ladder.rungs[0].after is None
    for position, rung in enumerate(ladder.rungs):
        assert rung.kind in KINDS
        assert len(rung.reason) > 40, f"{rung.name} says too little of why"
        low, high = rung.expected
        assert 0 < low <= high
        assert rung.reason.startswith("FAILS") == (rung.kind == "failed")
        assert "Picture:" not in rung.reason and "Prediction:" not in rung.caption
        if position:
            assert rung.after in names[:position]
        assert f"def {rung.schedule.__name__}(" in rung.source


def test_every_prediction_is_narrow_and_derived_from_numbers():
    for ladder in registry.LADDERS.values():
        for rung in ladder.rungs[1:]:
            low, high = rung.expected
            assert high <= 3 * low * (1 + 1e-9), f"{rung.name}: {low:g} to {high:g} says little"
            assert re.search(r"\d", rung.prediction), f"{rung.name}: no derivation"
            assert rung.prediction in " ".join(rung.reason.split()), rung.name


def test_a_rewrite_changes_the_definition_and_a_schedule_does_not():
    for ladder in registry.LADDERS.values():
        for rung in ladder.rungs[1:]:
            before = ladder[rung.after]
            assert rung.rewrites == (rung.define is not before.define), rung.name
            assert rung.rewrites == (rung.kind == "rewrite") or rung.kind == "failed", rung.name


@pytest.mark.parametrize(
    ("ladder", "rung"), CPU, ids=[f"{ladder.workload.name}-{rung.name}" for ladder, rung in CPU]
)
def test_a_rung_is_right_where_it_claims_and_refuses_by_name_where_not(ladder, rung, target):
    claimed = right_where_claimed(ladder, rung, target, SIZES[ladder.workload.name])
    assert claimed, f"{rung.name} claims none of the sizes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ladder", "rung"), CPU, ids=[f"{ladder.workload.name}-{rung.name}" for ladder, rung in CPU]
)
def test_a_rung_is_right_at_more_sizes(ladder, rung, target):
    right_where_claimed(ladder, rung, target, MORE_SIZES.get(ladder.workload.name, ()))


def test_a_product_of_bytes_is_right_without_the_instruction_of_four_products():
    ladder = registry.ladder("int8_gemm", "cpu")
    case = Case(ladder.workload.size("cpu", {"M": 9, "N": 37, "K": 6}), Processor(lanes=4))
    inputs = ladder.workload.inputs(case.size)
    exact = ladder.workload.reference(case.size, inputs)
    for name in ("quads", "cache_block"):
        module = ladder[name].module(case)
        assert "kernel_lab_dots" not in module.script()
        result = trace(module, inputs).arrays["C"].reshape(exact.shape)
        assert np.array_equal(result, exact), name


def right_where_claimed(ladder, rung, target, sizes):
    """The number of sizes that the rung claims. Fails if a claimed one is wrong, or if the error
    for another does not name the rung."""
    workload = ladder.workload
    claimed = 0
    for given in sizes:
        size = workload.size("cpu", given)
        case = Case(size, build.processor(target))
        if rung.claims(size) is not None:
            with pytest.raises(LabUsageError, match=rung.name):
                rung.module(case)
            continue
        claimed += 1
        inputs = [aligned_copy(array) for array in workload.inputs(size, seed=claimed)]
        out = aligned_copy(unwritten(workload.shapes(size)[-1], workload.result_dtype))
        library = build.compile_module(rung.module(case), target)
        library["main"](*map(_tensor, (*inputs, out)))
        expected = workload.reference(size, inputs)
        compared = compare(expected, out, workload.tolerance(size), same_dtype=False)
        assert compared.right, f"{rung.name} at {describe(size)}"
    return claimed


def _tensor(array):
    from needle_tvm._tvm.names import tvm

    return tvm.runtime.from_dlpack(array)


@pytest.mark.parametrize("name", ["conv1d", "depthwise", "separable", "gemm", "int8_gemm"])
def test_useful_arithmetic_counts_no_padding(name):
    """The count is the number of terms in NumPy's definition, counted by convolving ones."""
    workload = registry.WORKLOADS[name]
    for given in SIZES[name]:
        size = workload.size("cpu", given)
        ones = [np.ones(shape, np.float32) for shape in workload.shapes(size)[:-1]]
        total = workload.reference(size, ones).sum()
        if name == "separable":  # the reference sums each depthwise term once per output channel
            image = size["B"] * size["O"] * size["C"] * size["H"] * size["W"]
            total = total / size["O"] + image
        assert workload.flops(size) == 2 * total
        dtypes = workload.dtypes or ["float32"] * len(workload.shapes(size))
        arrays = [np.empty(s, t) for s, t in zip(workload.shapes(size), dtypes, strict=True)]
        assert workload.bytes(size) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("mode", ["full", "same"])
@pytest.mark.parametrize(("m", "n"), [(9, 4), (9, 5), (4, 4), (1, 1)])
def test_conv1d_is_numpys_convolution(mode, m, n):
    workload = registry.WORKLOADS["conv1d"]
    size = workload.size("cpu", {"M": m, "N": n, "mode": mode})
    a, w = workload.inputs(size)
    expected = np.convolve(a.astype(np.float64), w, mode)
    np.testing.assert_allclose(workload.reference(size, [a, w]), expected, rtol=1e-12)


def test_inputs_are_seeded():
    workload = registry.WORKLOADS["gemm"]
    size = workload.size("cpu", {"M": 3, "N": 4, "K": 5})
    first, again = workload.inputs(size, seed=3), workload.inputs(size, seed=3)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (workload.inputs(size, seed=4)[0] != first[0]).any()
