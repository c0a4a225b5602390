"""Rungs keep their claims: at a claimed size TVM compiles the rung, and its results are right.

test_ladders.py compiles and runs CPU rungs at small sizes; here they only get the wide grid. The
rungs of matmul have their own tests (test_ladders.py, test_gpu_ladders.py).
"""

import itertools
import shutil

import pytest

from kernel_lab import build, ir_views, registry
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import trace
from kernel_lab.workload import Case, describe
from needle_runtime.artifact.tolerance import compare

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")


def grid(**values):
    """Every combination of these values."""
    return [
        dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())
    ]


# Sizes that are not a multiple of any tile, some smaller than a tile in one dimension only.
SAMPLE = {
    "vector_add": ({"N": 7}, {"N": 300}),
    "conv1d": ({"M": 130, "N": 33, "mode": "same"}, {"M": 8, "N": 4}),
    "depthwise": (
        {"B": 1, "C": 2, "H": 9, "W": 4, "K": 3},
        {"B": 2, "C": 1, "H": 4, "W": 33, "K": 2},
    ),
    "separable": (
        {"B": 1, "C": 2, "H": 9, "W": 4, "K": 3, "O": 3},
        {"B": 2, "C": 1, "H": 4, "W": 33, "K": 2, "O": 8},
    ),
    "gelu_matmul": ({"M": 33, "N": 4, "K": 10}, {"M": 3, "N": 40, "K": 16}),
    "gemm": ({"M": 33, "N": 4, "K": 10}, {"M": 3, "N": 40, "K": 16}),
    **dict.fromkeys(("int8_gemm", "softmax", "layer_norm", "attention"), ()),  # on CPUs alone
}
WIDE = {
    "vector_add": grid(N=(1, 2, 31, 32, 33, 255, 256, 257, 1000)),
    "conv1d": grid(M=(65, 128, 600), N=(2, 7, 32, 65), mode=("full", "same")),
    "depthwise": grid(B=(1,), C=(3,), H=(1, 8, 17), W=(1, 8, 33), K=(1, 2, 9)),
    "separable": grid(B=(2,), C=(1, 4), H=(4, 17), W=(1, 8, 33), K=(1, 3), O=(5, 8)),
    "gelu_matmul": grid(M=(1, 16, 64), N=(1, 7, 32, 64), K=(1, 11, 16)),
    "int8_gemm": grid(M=(1, 8, 21), N=(1, 16, 33), K=(1, 4, 30)),
    "softmax": grid(M=(1, 5), N=(1, 7, 64, 65, 128, 200)),
    "layer_norm": grid(M=(1, 17), N=(1, 7, 64, 65, 128, 200)),
    "attention": grid(H=(1, 2), M=(1, 9), N=(1, 32, 65, 300), D=(1, 33)),
}
RUNGS = [
    (ladder, rung)
    for (name, _), ladder in registry.LADDERS.items()
    if name in SAMPLE
    for rung in ladder.rungs
]
GPU_RUNGS = [(ladder, rung) for ladder, rung in RUNGS if ladder.device == "cuda"]
# The matmul ladder is tested in test_gpu_ladders.py and test_ladders.py.
WIDE_RUNGS = [(ladder, rung) for ladder, rung in RUNGS if ladder.workload.name in WIDE]
IDS = [f"{ladder.workload.name}-{ladder.device}-{rung.name}" for ladder, rung in WIDE_RUNGS]


def keeps_its_claim(ladder, rung, size, target):
    """Whether the size is claimed. Fails if a claimed size does not compile or is wrong, or if the
    error for a refused one does not name the rung."""
    workload = ladder.workload
    case = Case(size, build.processor(target))
    if rung.claims(size) is not None:
        with pytest.raises(LabUsageError, match=rung.name):
            rung.module(case)
        return False
    module = rung.module(case)
    if ladder.device == "cuda":  # later passes than the trace's insert barriers and the like
        build.compile_module(module, target)
    inputs = workload.inputs(size)
    found = trace(module, inputs, limit=4_000_000, ignore=("local",))
    expected = workload.reference(size, inputs)
    result = list(found.arrays.values())[len(inputs)].reshape(expected.shape)
    compared = compare(expected, result, workload.tolerance(size), same_dtype=False)
    assert compared.right, describe(size)
    return True


@pytest.fixture(scope="module")
def targets():
    return {device: build.make_target(device, "sm_75") for device in ("cpu", "cuda")}


@pytest.mark.parametrize(
    ("ladder", "rung"), GPU_RUNGS, ids=[f"{x.workload.name}-{rung.name}" for x, rung in GPU_RUNGS]
)
def test_a_claimed_size_is_taken_and_right(ladder, rung, targets):
    for given in SAMPLE[ladder.workload.name]:
        size = ladder.workload.size(ladder.device, given)
        keeps_its_claim(ladder, rung, size, targets[ladder.device])


# Every fifth size has every value of each axis, where there are several axes.
@pytest.mark.parametrize(
    "step", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("ladder", "rung"), WIDE_RUNGS, ids=IDS)
def test_claimed_sizes_of_a_grid_are_taken_and_right(ladder, rung, targets, step):
    claimed = 0
    for given in WIDE[ladder.workload.name][::step]:
        size = ladder.workload.size(ladder.device, given)
        claimed += keeps_its_claim(ladder, rung, size, targets[ladder.device])
    assert claimed, f"{rung.name} claims none of the sizes"


# The largest size that fits into shared memory or a grid, and the next larger one.
LARGEST = [
    ("conv1d", "shared_memory", {"M": 16384}, "N", 5888),
    ("conv1d", "whole_tiles", {"M": 16384}, "N", 5888),
    ("separable", "fuse", {}, "C", 48),
    ("depthwise", "threads_2d", {"C": 1, "H": 2, "W": 2, "K": 3}, "B", 65535),
    ("gelu_matmul", "fuse", {"N": 1, "K": 1}, "M", 16 * 65535),
    ("gemm", "naive", {"N": 1, "K": 1}, "M", 65535),
    ("gemm", "threads_1d", {"M": 1, "K": 1}, "N", 65535),
    ("depthwise", "blocks_2d", {"B": 1, "C": 1, "W": 2, "K": 3}, "H", 65535),
]


@pytest.mark.parametrize(
    ("name", "rung", "given", "axis", "most"), LARGEST, ids=[f"{x[0]}-{x[1]}" for x in LARGEST]
)
def test_what_no_gpu_could_launch_is_refused(name, rung, given, axis, most):
    workload, rung = registry.workload(name), registry.ladder(name, "cuda")[rung]
    assert rung.claims(workload.size("cuda", {**given, axis: most})) is None
    beyond = Case(workload.size("cuda", {**given, axis: most + 1}))
    with pytest.raises(LabUsageError, match=f"{rung.name}.*at most|{rung.name}.*shared memory"):
        rung.module(beyond)


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rung", "given", "axis", "most"),
    [x for x in LARGEST if x[1] != "blocks_2d"],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_the_largest_claimed_size_compiles(name, rung, given, axis, most):
    size = registry.workload(name).size("cuda", {**given, axis: most})
    code = ir_views.gpu_code(registry.ladder(name, "cuda")[rung].module(Case(size)), "sm_75")
    assert all(0 <= r.shared <= build.SHARED_BYTES for r in code.resources) and code.resources


def test_a_kernel_longer_than_the_unrolling_takes_is_not_unrolled():
    """conv1d unrolls up to 64 taps; for more, the loop over them stays."""
    ladder = registry.ladder("conv1d", "cuda")
    for taps, loops in ((64, False), (65, True)):
        case = Case(ladder.workload.size("cuda", {"M": 130, "N": taps}))
        script = ladder["whole_tiles"].module(case).script()
        assert (f"in range({taps})" in script) == loops


@needs_nvcc
def test_without_questions_between_them_nvcc_joins_the_loads_of_shared_memory():
    """The docstring of conv1d's rung `whole_tiles` claims this against the rung before it."""
    ladder = registry.ladder("conv1d", "cuda")
    case = Case(ladder.workload.size("cuda"))
    loads = {
        name: ir_views.gpu_code(ladder[name].module(case), "sm_75").counts.accesses["ld.shared"]
        for name in ("register_tile", "whole_tiles")
    }
    assert set(loads["register_tile"]) == {""} and set(loads["whole_tiles"]) == {"v4"}
    assert 8 * loads["whole_tiles"]["v4"] < loads["register_tile"][""]
