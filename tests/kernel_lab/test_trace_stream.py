"""The bytes counted without a trace: against traces, counts by hand, and planted faults.

`test_trace_ladders` compares every rung of every CPU ladder with its trace at a small size.
"""

import pytest

pytest.importorskip("tvm")

from kernel_lab import registry
from kernel_lab.scaled import trace_at
from kernel_lab.trace import NotInterpreted, TraceTooLarge, stream, trace
from kernel_lab.trace.stream import Cache, moved
from kernel_lab.traffic import processor_caches, traffic
from kernel_lab.workload import Case, Processor
from needle_tvm._tvm.names import te
from tests.kernel_lab import kernels
from tests.kernel_lab.cache_model import CACHES, of_trace

REAL = (Cache(32 << 10, 8), Cache(512 << 10, 8))  # of Zen 3


@pytest.mark.parametrize(
    "name, rung",
    [
        ("conv1d", "register_tile"),
        ("conv1d", "window"),
        ("depthwise", "register_tile"),
        ("depthwise", "one_thread"),
    ],
)
def test_bytes_at_the_size_of_the_run_are_those_of_its_trace(name, rung):
    ladder = registry.ladder(name, "cpu")
    case = Case(ladder.workload.size("cpu"), Processor(2, 16, 8))
    whole = trace_at(ladder.workload, ladder[rung], case, case, ignore=("local",)).trace
    for caches in (CACHES, REAL):
        assert moved(ladder[rung].module(case), caches) == of_trace(whole, caches)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_each_core_has_its_own_caches(cores):
    ladder = registry.ladder("gemm", "cpu")
    case = Case({"M": 96, "N": 48, "K": 32}, Processor(cores, 16, 8))
    module = ladder["parallel"].module(case)
    whole = trace(module, ladder.workload.inputs(case.size), cores=cores)
    assert moved(module, CACHES, cores=cores) == of_trace(whole)


def test_dot_product_instructions_load_what_the_trace_says():
    ladder = registry.ladder("int8_gemm", "cpu")
    case = Case({"M": 16, "N": 64, "K": 16}, Processor(2, 32, 16, dots=True))
    for rung in ladder.rungs:
        if rung.claims(case.size) is None:
            inputs = ladder.workload.inputs(case.size)
            whole = trace(rung.module(case), inputs, ignore=("local",))
            assert moved(rung.module(case), CACHES) == of_trace(whole), rung.name


def test_a_naive_gemm_accesses_four_elements_at_each_step():
    n = 512  # 67 million accesses: no trace holds them
    found = moved(kernels.gemm(n, n, 64).mod)
    assert found.accessed == 4 * (4 * n * n * 64 + n * n)


def test_a_column_of_a_power_of_two_misses_in_full():
    # The lines of a column of B stand 2,048 bytes apart: they share 2 of the first-level cache's 64
    # sets, so 16 of the 512 have room. The lines of A and C miss at most once for each use.
    m, n = 4, 512
    found = moved(kernels.gemm(m, n, n).mod, REAL)
    loads = m * n * n
    assert loads <= found.missed[0] // 64 <= loads + loads // 16 + m * n
    # With 8 elements more to a row, the lines of a column use all sets, and 16 columns share them.
    padded = moved(kernels.gemm(m, n + 8, n).mod, REAL)
    assert padded.missed[1] < found.missed[1] / 8


def test_each_line_of_a_vector_comes_in_once():
    n = 1000
    found = moved(kernels.vector_add(n).mod, REAL)
    assert (found.accessed, found.missed) == (12 * n, (3 * 64 * -(-n * 4 // 64),) * 2)


def test_tiling_moves_the_marks_to_the_right():
    ladder = registry.ladder("gemm", "cpu")
    case = Case({"M": 64, "N": 512, "K": 512}, Processor(2, 16, 8))
    naive, reorder, tile, kept = (
        traffic(ladder.workload, ladder[name].module(case), case, REAL)
        for name in ("naive", "reorder", "tile", "cache_write")
    )
    for level in range(len(REAL)):
        assert naive.missed[level] < reorder.missed[level] < tile.missed[level]
    # The loops of a tiled block make the same accesses; only sums in a local block save any.
    assert naive.accessed == pytest.approx(tile.accessed, rel=0.01)
    assert kept.accessed > 2 * tile.accessed


def _planted(old, new):
    def plant(monkeypatch):
        run = stream._run

        def wrong(text):
            assert old in text
            return run(text.replace(old, new))

        monkeypatch.setattr(stream, "_run", wrong)

    return plant


def _no_stores(monkeypatch):
    access = stream.Stream._access
    monkeypatch.setattr(
        stream.Stream,
        "_access",
        lambda self, buffer, index, stores: stores or access(self, buffer, index, stores),
    )


FAULTS = {
    "none": lambda monkeypatch: None,
    "an element counts twice": _planted("accessed += size", "accessed += 2 * size"),
    "lines begin elsewhere": _planted("line = address / 64", "line = (address + 32) / 64"),
    "no line is replaced": _planted(
        "set[way] = moved;", "if (!here) { set[way] = wanted; break; }"
    ),
    "all workers share a cache": _planted("worker = (", "worker = 0 * ("),
    "the tail is counted in full": _planted("< 639", "< 640"),
    "stores are not counted": _no_stores,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_wrong_byte_count_is_caught(monkeypatch, fault):
    sch = kernels.conv1d_inline(600, 40)
    outer, _ = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 8])
    sch.parallel(outer)
    whole = of_trace(trace(sch.mod))
    FAULTS[fault](monkeypatch)
    assert (moved(sch.mod, CACHES) == whole) is (fault == "none")


def test_kernels_whose_bytes_cannot_be_counted_are_refused():
    a = te.placeholder((8,), "int32", name="A")
    gather = kernels.schedule(a, te.compute((8,), lambda i: a[a[i]], name="B"))
    with pytest.raises(NotInterpreted, match="address in A depends on data"):
        moved(gather.mod)
    with pytest.raises(TraceTooLarge, match="makes up to 300 accesses, more than the limit of 299"):
        moved(kernels.vector_add(100).mod, limit=299)
    gpu = registry.ladder("vector_add", "cuda")
    case = Case({"N": 1024})
    with pytest.raises(NotInterpreted, match="stream: "):
        moved(gpu["naive"].module(case))
    assert traffic(gpu.workload, gpu["naive"].module(case), case, REAL) is None


def test_caches_are_those_that_the_system_describes(tmp_path):
    assert processor_caches(tmp_path) == ()
    for number, (level, kind, size) in enumerate(
        [
            (1, "Data", "48K"),
            (1, "Instruction", "32K"),
            (2, "Unified", "1280K"),
            (3, "Unified", "8M"),
        ]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        facts = {"level": level, "type": kind, "size": size, "ways_of_associativity": 12}
        for name, fact in facts.items():
            (folder / name).write_text(f"{fact}\n")
    assert processor_caches(tmp_path) == (Cache(48 << 10, 12), Cache(1280 << 10, 12))
    (tmp_path / "index2" / "ways_of_associativity").write_text("0\n")
    assert processor_caches(tmp_path) == ()
