"""kernel_lab.show judges the function it is given: compared with NumPy, with kernel_lab.trace, and
with rungs of the registry."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab import build, registry, show
from kernel_lab.errors import LabError, LabUsageError
from kernel_lab.trace import statistics, trace
from kernel_lab.workload import Case, Processor
from needle_tvm._tvm.names import te

AVX2 = Processor(cores=1, registers=16, lanes=8)
SIZE = {"M": 19, "N": 24, "K": 7}
GEMM = registry.workload("gemm")


def reorder(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    sch.reorder(i, k, j)


def column_inside(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    sch.reorder(j, k, i)


def counted(rung, **size):
    case = Case(GEMM.size("cpu", size), AVX2)
    return trace(rung.module(case), GEMM.inputs(case.size), cores=1, ignore=("local",))


def test_a_right_schedule_is_right_and_its_counts_are_those_of_a_trace():
    shown = show(reorder, size=SIZE, processor=AVX2)
    assert shown.right and shown.error is None and shown.wrong is None
    assert shown.size == shown.traced == SIZE
    found = counted(registry.ladder("gemm", "cpu")["naive"], **SIZE)
    naive = show(lambda sch, case: None, size=SIZE, processor=AVX2)
    assert naive.lines == {c.name: c.line_accesses for c in statistics.buffer_counts(found)}
    assert naive.lines["A"] == naive.lines["B"] == 19 * 24 * 7
    assert naive.misses(640) == statistics.cache(found, 640).misses > shown.misses(640)


def test_the_registers_of_a_named_processor_reach_the_schedule():
    rung = registry.ladder("gemm", "cpu")["register_tile"]
    shown = show(rung.schedule, size={"M": 8, "N": 32, "K": 4}, processor=AVX2)
    counts = statistics.buffer_counts(counted(rung, M=8, N=32, K=4))
    assert shown.lines == {c.name: c.line_accesses for c in counts}
    # 4 rows of 16 columns: 4 tiles, 4 steps of k, and a vector is a line.
    assert shown.lines == {"A": 4 * 4 * 4, "B": 4 * 4 * 4, "C": 4 * 4}


def last_column_twice(case):
    """The product, with the column before the last in place of the last one."""
    m, n, k = case["M"], case["N"], case["K"]
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    column = n - 2
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, te.min(j, column)], axis=r), name="C")
    return [a, b, c]


def test_the_first_wrong_element_is_named():
    shown = show(reorder, size=SIZE, processor=AVX2, define=last_column_twice)
    assert not shown.right and shown.error is None
    a, b = GEMM.inputs(SIZE)
    exact = a.astype(np.float64) @ b
    assert shown.wrong.buffer == "C" and shown.wrong.index == (0, 23) and shown.wrong.count == 19
    assert shown.wrong.value == pytest.approx(exact[0, 22], rel=1e-5)
    assert shown.wrong.expected == pytest.approx(exact[0, 23], rel=1e-12)
    assert shown.seconds is None and shown.faster is None
    assert "wrong at M=19, N=24, K=7: C[0, 23] is " in str(shown)
    assert "wrong at" in shown._repr_html_() and "</svg>" in shown._repr_html_()


def test_a_schedule_that_tvm_refuses_has_a_reason_and_the_line():
    def sum_on_threads(sch, case):
        k = sch.get_loops(sch.get_sblock("C"))[2]
        sch.parallel(k)

    shown = show(sum_on_threads, size=SIZE)
    assert not shown.right and shown.wrong is None and shown.lines == {}
    first = sum_on_threads.__code__.co_firstlineno
    assert shown.error.startswith(f'TVM refuses line {first + 2} (sch.parallel(k)): The "parallel"')
    assert "\n" not in shown.error and shown.error in str(shown)
    assert "<svg" not in shown._repr_html_()
    with pytest.raises(LabError, match="sum_on_threads has no trace: TVM refuses"):
        shown.misses(640)


def test_an_error_in_the_function_itself_reaches_the_caller():
    with pytest.raises(AttributeError, match="spilt"):
        show(lambda sch, case: sch.spilt(), size=SIZE)


def test_the_picture_is_of_the_given_function_and_changes_with_it():
    def drawn(schedule):
        schedule.__name__ = "mine"
        return show(schedule, size=SIZE, processor=AVX2).picture

    first, again, other = drawn(reorder), drawn(lambda s, c: reorder(s, c)), drawn(column_inside)
    rasters = [re.findall(r"base64,([^\"]*)", svg) for svg in (first, again, other)]
    assert len(rasters[0]) == 3
    assert rasters[0] == rasters[1] and all(a != b for a, b in zip(*rasters[1:], strict=True))
    assert "mine" in first and "at M=19, N=24, K=7" in first


def test_the_time_is_that_of_a_call_beside_a_rung():
    shown = show(reorder, size={"M": 64, "N": 64, "K": 64}, beside="naive")
    assert shown.seconds > 0 and shown.faster > 0
    assert re.search(r"at M=64, N=64, K=64, [\d.]+ times as fast as naive", str(shown))
    assert show(reorder, size=SIZE).faster is None


def test_a_run_too_large_to_trace_is_counted_at_a_smaller_size():
    shown = show(reorder, size={"M": 256, "N": 256, "K": 256}, processor=AVX2)
    assert shown.right and shown.size == {"M": 256, "N": 256, "K": 256}
    assert shown.traced == {"M": 16, "N": 16, "K": 8}
    said = "right at M=16, N=16, K=8, the size checked in place of M=256, N=256, K=256\n"
    assert said in f"{shown}\n"
    assert show(reorder).size == dict(GEMM.sizes["cpu"][0])


def tiles_of_six(outside):
    """A product in tiles of 6 rows; the last tile reads rows of A `outside` of the array."""

    def define(case):
        m, n, k = case["M"], case["N"], case["K"]
        a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
        r = te.reduce_axis((0, k), name="k")

        def product(band, i, j):
            row = band * 6 + i
            return te.sum(a[row if outside else te.min(row, m - 1), r] * b[r, j], axis=r)

        tiles = te.compute((-(-m // 6), 6, n), product, name="tiles")
        return [a, b, te.compute((m, n), lambda i, j: tiles[i // 6, i % 6, j], name="C")]

    return define


@pytest.mark.parametrize("m", [511, 512, 516])  # remainders 1, 2 and 0
def test_the_size_checked_in_place_of_a_large_one_cuts_the_tiles_alike(m):
    size = {"M": m, "N": 256, "K": 64}
    inside, outside = (
        show(lambda sch, case: None, size=size, processor=AVX2, define=tiles_of_six(each))
        for each in (False, True)
    )
    assert inside.right and inside.traced["M"] < 100 and inside.traced["M"] % 6 == m % 6
    assert outside.right == (m % 6 == 0)
    assert outside.right or "trace: A[" in outside.error


def threads(sch, case):
    i, j, _ = sch.get_loops(sch.get_sblock("C"))
    block, thread = sch.split(sch.fuse(i, j), [None, 64])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def test_a_gpu_schedule_is_counted_without_a_gpu(monkeypatch):
    monkeypatch.setattr(build, "why_no_gpu", lambda: "there is no GPU")
    shown = show(threads, device="cuda", arch="sm_75", size={"M": 8, "N": 32, "K": 4})
    assert shown.right and shown.seconds is None
    # A warp has 32 neighbouring columns of one row: one element of A, 32 of B and of C.
    assert shown.gpu.requests.loads == {"A": 1, "B": 4, "C": 4}
    assert shown.gpu.requests.stores == {"C": 4}
    assert "sectors of 32 bytes for a warp's store: C 4\n" in str(shown)
    assert "not timed: there is no GPU" in str(shown)
    assert "</svg>" in shown.picture


def test_a_gpu_schedule_without_threads_is_no_kernel():
    shown = show(lambda sch, case: None, device="cuda", arch="sm_75", size=SIZE)
    assert "bound to blocks or threads" in shown.error and not shown.right


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": 3}, r"schedule is 3: must be a function of the arguments \(sch, case\)"),
        ({"schedule": lambda sch: None}, r"schedule is <function .*\(sch, case\)"),
        ({"define": "gemm"}, r"define is 'gemm': must be a function of the arguments \(case\)"),
        ({"workload": "gem"}, "unknown workload 'gem'"),
        ({"device": "tpu"}, "gemm has no ladder for 'tpu'"),
        ({"size": {"X": 3}}, "gemm has no size 'X'"),
        ({"size": {"M": 0}}, "gemm: M=0: must be at least 1"),
        ({"beside": "tiles"}, "gemm on cpu has no rung 'tiles'"),
        ({"processor": 16}, "processor is 16"),
        ({"arch": "sm_75"}, "arch is 'sm_75': the device is a CPU"),
        (
            {"device": "cuda", "beside": "tensor_cores", "size": {"M": 33}},
            "beside is 'tensor_cores': it refuses M=33",
        ),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(LabUsageError, match=message):
        show(**{"schedule": reorder, **arguments})
