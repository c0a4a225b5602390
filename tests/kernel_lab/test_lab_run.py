"""A run of the lab from end to end, and its results."""

import io
import json
import platform
from dataclasses import replace

import pytest
from rich.console import Console

from kernel_lab import build, load, peers, registry, run, table
from kernel_lab.errors import LabUsageError, WrongResult
from kernel_lab.factors import against, factor, with_quartiles
from kernel_lab.ladders import gemm_cpu
from kernel_lab.results import LabResult, RungResult
from kernel_lab.run import Request
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from needle_runtime.process import timing
from needle_runtime.target import host
from needle_tvm.errors import ToolchainError

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

# If OpenBLAS were told of AVX-512 on a processor without it, it would run invalid instructions.
NUMPY = {"NumPy", "NumPy, tuned"} if host.openblas_environment() else {"NumPy"}
SMALL = {"M": 24, "N": 40, "K": 16}


def quick(request):
    """The result of a request, timed in blocks too short to be accurate: no test reads times."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_SECONDS_BLOCK", "_SECONDS_WARM"):
            patch.setattr(run, name, 0.01)
        patch.setitem(timing.IDLE_SECONDS, "cpu", 0.01)
        return run.run(request)


@pytest.fixture(scope="module")
def result():
    rungs = ["naive", "vectorise", "cache_block"]
    return quick(Request("gemm", size=SMALL, rungs=rungs, rounds=2, peers=True))


@pytest.fixture(scope="module")
def swept():
    sweep = ("M", [8, 16])
    return quick(Request("gemm", size=SMALL, rungs=["cache_block"], rounds=1, sweep=sweep))


def test_rungs_are_checked_timed_and_compared(result):
    assert [rung.name for rung in result.rungs] == ["naive", "vectorise", "cache_block"]
    for entry in (*result.rungs, *result.peers):
        assert entry.check.error <= entry.check.tolerance < 1e-4
        assert len(entry.blocks) == 2 and entry.seconds.median > 0
        assert entry.gigaflops == pytest.approx(
            2 * 24 * 40 * 16 / entry.seconds.median / 1e9, rel=1e-9
        )
        assert entry.speedup_naive is not None
    assert result.rung("naive").speedup_naive.median == 1.0
    assert result.rung("vectorise").speedup_previous is None  # the rung it starts from is left out
    assert {peer.name for peer in result.peers} >= NUMPY
    assert result.best().kind in ("naive", "rewrite", "schedule")
    limit = result.roofline
    assert limit.seconds == pytest.approx(
        max(result.flops / limit.gigaflops, result.bytes / limit.gigabytes) / 1e9
    )


def test_the_json_is_whole_and_has_no_nan(result):
    text = json.dumps(result.to_dict(), allow_nan=False)
    read = json.loads(text)
    assert read["size"] == SMALL
    assert [rung["name"] for rung in read["rungs"]] == ["naive", "vectorise", "cache_block"]
    assert read["rungs"][0]["seconds"]["median"] > 0


def test_the_json_of_a_sweep_has_its_points(swept):
    read = json.loads(json.dumps(swept.to_dict(), allow_nan=False))
    assert [point["size"]["M"] for point in read["sweep"]] == [8, 16]


def test_a_rung_brings_what_the_report_shows(result):
    entry = result.rung("cache_block")
    assert "T.parallel" in entry.script and "def cache_block(" in entry.source
    assert entry.module["main"] is not None


def test_the_sweep_times_the_rungs_at_every_size(swept):
    assert swept.sweep_axis == "M" and len(swept.sweep) == 2
    for point in swept.sweep:
        assert point.flops == 2 * point.size["M"] * 40 * 16
        assert point.seconds["cache_block"] > 0


@pytest.mark.slow
def test_the_sweep_times_the_peers_too():
    request = Request(
        "gemm", size=SMALL, rungs=["cache_block"], rounds=1, peers=True, sweep=("M", [8])
    )
    (point,) = quick(request).sweep
    assert {"cache_block", *NUMPY} <= set(point.seconds)
    assert all(seconds > 0 for seconds in point.seconds.values())


def printed(result):
    from rich.console import Console

    written = io.StringIO()
    table.print_result(result, Console(width=120, file=written))
    return written.getvalue()


def test_the_table_shows_every_rung(result):
    text = printed(result)
    for word in ("naive", "cache_block", *NUMPY, "roofline"):
        assert word in text


def test_the_table_shows_the_sweep(swept):
    text = printed(swept)
    assert "GFLOP/s by M" in text and "M=16" in text


def test_a_wrong_rung_is_named_and_not_timed(monkeypatch):
    gemm = registry.ladder("gemm", "cpu")
    wrong = Ladder(gemm.workload, "cpu")

    def doubled(case):
        from needle_tvm._tvm.names import te

        a, b, c = gemm.workload.define(case)
        return [a, b, te.compute(c.shape, lambda i, j: c[i, j] * 2.0, name="twice")]

    @wrong.rung(expected=(1, 1), kind="naive", define=doubled)
    def twice_as_much(sch, case):
        """Computes twice what it should."""

    monkeypatch.setitem(registry.LADDERS, ("gemm", "cpu"), wrong)
    with pytest.raises(WrongResult, match="twice_as_much differs from NumPy"):
        run.run(Request("gemm", size=SMALL, rounds=1))
    wrong.rungs.append(gemm_cpu.ladder["vectorise"])
    found = quick(Request("gemm", size=SMALL, rounds=1, keep_going=True))
    assert "differs from NumPy" in found.rung("twice_as_much").refused
    assert found.rung("twice_as_much").seconds is None
    vectorised = found.rung("vectorise")
    assert vectorised.seconds.median > 0 and vectorised.speedup_naive is None


@pytest.mark.slow
def test_a_peer_that_fails_is_left_out_if_the_run_keeps_going(monkeypatch):
    monkeypatch.setattr(
        peers, "of", lambda workload, device: (peers.Peer("broken", "no_such", "none"),)
    )
    request = Request("gemm", size=SMALL, rungs=["vectorise"], rounds=1, peers=True)
    with pytest.raises(timing.TimingError, match="no_such"):
        quick(request)
    found = quick(replace(request, keep_going=True))
    assert "no_such" in found.rung("broken").refused
    assert found.rung("vectorise").seconds.median > 0
    printed = io.StringIO()
    table.print_result(found, Console(file=printed, width=200))
    assert "broken refused: broken: " in printed.getvalue()


def test_what_is_a_surprise():
    assert not run.surprises(1.0, (2, 4)) and not run.surprises(6.0, (2, 4))
    assert run.surprises(0.9, (2, 4)) and run.surprises(6.1, (2, 4))
    assert not run.surprises(100.0, None)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("gemm", size={"M": 0}), "M=0: must be at least 1"),
        (Request("gemm", size={"M": "many"}), "M=many: must be a whole number"),
        (Request("gemm", size={"M": 2.5}), "M=2.5: must be a whole number"),
        (Request("gemm", size={"Q": 3}), "no size 'Q'"),
        (Request("gemm", size={"M": 10**9}), "elements"),
        (Request("gemm", size={"M": 10000, "N": 10000, "K": 10**20}), "elements"),
        (Request("gemm", rungs=["fastest"]), "no rung 'fastest'"),
        (Request("fft"), "unknown workload 'fft'"),
        (Request("conv1d", size={"mode": "valid"}), "full or same"),
        (Request("conv1d", size={"M": 4, "N": 9}), "must not be longer"),
        (Request("gemm", sweep=("M", [8, 0])), "M=0: must be at least 1"),
    ],
)
def test_a_bad_request_is_refused_by_name(request_, words):
    with pytest.raises(LabUsageError, match=words):
        run.run(request_)


def test_columns_without_an_entry_are_left_out():
    entry = RungResult("naive", "naive", "the start", seconds=timing.Spread(2e-3, 1e-3, 3e-3))
    entry.speedup_previous = timing.Spread(2.0, 1.96, 2.04)
    machine = {"processor": "p", "threads": 1}
    result = LabResult("w", "t", "cpu", {}, 1, 1, {}, machine, "2026", [entry])
    assert table.rows(result) == [
        ["", "kind", "time", "GFLOP/s", "x previous"],
        ["naive", "naive", "2.00 ms", "0", "2.00 (1.96-2.04)"],
    ]


def test_factors_are_written_as_people_say_them():
    assert factor(5740.3) == "5,740x" and factor(2.004) == "2.00x" and factor(1.0) == "1.00x"
    assert factor(0.0943) == "10.6 times slower"
    assert against(5740.3, "naive") == "5,740 times as fast as naive"
    assert against(0.0943, "tile") == "10.6 times slower than tile"
    assert with_quartiles(timing.Spread(0.0943, 0.09, 0.1)) == "10.6 times slower"


def test_a_loaded_machine_is_said_and_shares_of_impossible_speed_are_left_out(result):
    rungs = [replace(entry, roofline=0.5) for entry in result.rungs]
    quiet = replace(result, load=0.01, rungs=rungs, peers=[])
    assert quiet.doubt is None and "busy" not in printed(quiet)
    busy = replace(quiet, load=0.45)
    assert "other work had 45% of the processors' time" in " ".join(printed(busy).split())
    quiet.rungs[1].roofline = 1.19
    said = " ".join(printed(quiet).split())
    assert "vectorise took 84% of the least time" in said and "% roof" not in said


def test_other_work_is_measured(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", stat)
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda pid: {1})
    stat.write_text("cpu 9 9 9 9 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0\ncpu1 10 0 5 100 5 0 0 0 0 0\n")

    def later(seconds):
        stat.write_text("cpu0 999 0 0 0 0 0 0 0\ncpu1 12 1 6 130 7 0 1 1 0 0\n")

    monkeypatch.setattr(load.time, "sleep", later)
    assert load.busy_share() == pytest.approx(6 / 38)  # user 2, nice 1, system 1, irq 1, stolen 1
    monkeypatch.setattr(load, "_STAT", tmp_path / "missing")
    assert load.busy_share() is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("gemm", "cuda", timed=False, arch="sm75"), "must be like sm_75"),
        (Request("gemm", "cpu", timed=False, arch="sm_75"), "the device is a CPU"),
        (Request("gemm", "cuda", arch="sm_75"), "cannot be timed here|no CUDA device"),
    ],
)
def test_an_architecture_that_cannot_be_meant_is_refused(request_, words):
    with pytest.raises(LabUsageError, match=words):
        run.run(request_)


def test_rungs_are_refused_for_the_architecture_that_is_asked_for():
    size = {"M": 128, "N": 128, "K": 64}
    found = run.run(Request("gemm", "cuda", size, timed=False, arch="sm_75"))
    assert found.target["arch"] == "sm_75"
    assert "it needs sm_80" in found.rung("tensor_core_mma").refused


def test_code_that_cannot_be_linked_here_is_one_line(tmp_path, monkeypatch):
    from needle_tvm._tvm.names import make_target

    foreign = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 1}
    if platform.machine() == "aarch64":
        pytest.skip("this machine links that code")
    module = registry.ladder("vector_add", "cpu")["naive"].module(Case({"N": 64}))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="linking code for aarch64-linux-gnu needs") as caught:
        build.write_library(module, make_target(foreign), tmp_path / "x.so")
    assert "\n" not in str(caught.value)
