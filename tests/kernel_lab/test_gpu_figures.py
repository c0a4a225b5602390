"""The static figures of GPU rungs, against the toolkit's calculator and the compiled code."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernel_lab import gpu_figures, registry
from kernel_lab.code_counts import PtxCounts
from kernel_lab.cross_compile import Kernel, compile_together
from kernel_lab.errors import LabUsageError
from kernel_lab.occupancy import SMS, occupancy
from kernel_lab.run import Request, run
from kernel_lab.trace import gpu, trace
from kernel_lab.workload import Case
from needle_tvm.target import nvcc
from needle_tvm.target.nvcc import Resources

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
KIB = 1024


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limits"),
    [
        # 8 warps a block of 64 * 32 = 2,048 registers a warp: 16,384 of a quarter are 8 warps.
        ("sm_80", 256, 64, 4 * KIB, 4, ("registers",)),
        # 65 registers are handed out as 72, 2,304 a warp: 7 warps a quarter, 28 of an SM, 3 blocks.
        ("sm_80", 256, 65, 4 * KIB, 3, ("registers",)),
        # 40 are 1,280 a warp: 12 a quarter (of 12.8), where all 65,536 at once would be 51.
        ("sm_80", 32, 40, 0, 32, ("blocks",)),
        ("sm_80", 128, 40, 0, 12, ("registers",)),
        ("sm_80", 256, 32, 0, 8, ("warps", "registers")),
        # 33,280 + 1,024 bytes are 268 pieces of 128: 4 blocks of 164 KiB, 6 of 228 KiB.
        ("sm_80", 128, 32, 33280, 4, ("shared memory",)),
        ("sm_90", 128, 32, 33280, 6, ("shared memory",)),
        # On sm_75 nothing is reserved, and an SM has 32 warps and 64 KiB.
        ("sm_75", 256, 64, 16 * KIB, 4, ("warps", "registers", "shared memory")),
        ("sm_75", 1, 16, 0, 16, ("blocks",)),
    ],
)
def test_occupancy_computed_by_hand(arch, threads, registers, shared, blocks, limits):
    held = occupancy(arch, threads, registers, shared)
    assert (held.blocks, held.limits) == (blocks, limits)
    assert held.warps == blocks * -(-threads // 32) and held.most == SMS[int(arch[3:])].warps


def test_an_unknown_gpu_has_no_occupancy():
    with pytest.raises(LabUsageError, match="no limits are known for sm_52, only for sm_75"):
        occupancy("sm_52", 32, 32, 0)


_CALCULATOR = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int major, minor, warps, shared, reserved, threads, regs, smem;
  while (scanf("%d %d %d %d %d %d %d %d", &major, &minor, &warps, &shared, &reserved, &threads,
               &regs, &smem) == 8) {
    cudaOccDeviceProp sm;
    sm.computeMajor = major; sm.computeMinor = minor; sm.maxThreadsPerBlock = 1024;
    sm.maxThreadsPerMultiprocessor = 32 * warps; sm.regsPerBlock = sm.regsPerMultiprocessor = 65536;
    sm.warpSize = 32; sm.sharedMemPerBlock = 48 * 1024; sm.sharedMemPerMultiprocessor = shared;
    sm.numSms = 1; sm.sharedMemPerBlockOptin = shared - reserved;
    sm.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024; kernel.numRegs = regs; kernel.sharedSizeBytes = smem;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult found;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &sm, &kernel, &state, threads, 0)) return 1;
    printf("%d %u\n", found.activeBlocksPerMultiprocessor, found.limitingFactors);
  }
}
"""
_FACTORS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}


def test_occupancy_is_that_of_the_toolkits_calculator(tmp_path):
    places = [Path(p, "include") for p in ("/usr/local/cuda", *Path("/usr/local").glob("cuda-*"))]
    include = next((p for p in places if (p / "cuda_occupancy.h").exists()), None)
    if include is None or shutil.which("g++") is None:
        pytest.skip("there is no cuda_occupancy.h or no g++")
    (tmp_path / "calculator.cc").write_text(_CALCULATOR)
    program = str(tmp_path / "calculator")
    subprocess.run(
        ["g++", "-w", f"-I{include}", "-o", program, str(tmp_path / "calculator.cc")], check=True
    )
    draw = np.random.default_rng(24)
    rows, ours = [], []
    for number, sm in SMS.items():
        for _ in range(300):
            threads, registers = int(draw.integers(1, 513)), int(draw.integers(16, 129))
            if draw.random() < 0.5:
                threads = 32 * -(-threads // 32)
            shared = int(draw.integers(0, 48 * KIB + 1)) * int(draw.integers(0, 2))
            major, minor = divmod(number, 10)
            used = (threads, registers, shared)
            rows.append((major, minor, sm.warps, sm.shared, sm.reserved, *used))
            ours.append(occupancy(f"sm_{number}", threads, registers, shared))
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(theirs) == len(ours)
    for row, (blocks, factors), held in zip(rows, theirs, ours, strict=True):
        assert held.blocks == blocks, row
        assert sum(_FACTORS[limit] for limit in held.limits) == factors, row


def elf_figures(cubin):
    """Registers and shared bytes of each kernel by the sections of a cubin: ptxas keeps the
    registers in the upper byte of the code's sh_info (before sm_100), and each kernel's shared
    memory is the size of a section."""
    at, size, count, names_at = struct.unpack_from("<Q10xHHH", cubin, 40)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + n * size) for n in range(count)]
    strings = heads[names_at][4]
    found = {}
    for name_at, _, _, _, _, length, _, info, _, _ in heads:
        start = strings + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text."):
            found.setdefault(name[6:], {})["registers"] = info >> 24
        if name.startswith(".nv.shared.") and "reserved" not in name:
            found.setdefault(name[11:], {})["shared"] = length
    return found


@pytest.mark.slow
@needs_nvcc
def test_figures_are_those_of_the_machine_code():
    """ptxas' report on PTX of many kernels together, against the sections of each one's cubin."""
    from kernel_lab import ir_views

    gemm, separable = registry.ladder("gemm", "cuda"), registry.ladder("separable", "cuda")
    sources = {
        rung.name: ir_views.cuda_source(rung.module(Case(ladder.workload.size("cuda"))), "sm_80")
        for ladder, rung in (
            (gemm, gemm["naive"]),
            (gemm, gemm["shared_memory"]),
            (separable, separable["threads_2d"]),
        )
    }
    together = compile_together(sources, "sm_80")
    for name, source in sources.items():
        exact = elf_figures(nvcc.compile_cubin(source, "sm_80")[0])
        told = {
            kernel.resources.kernel: (kernel.resources.registers, kernel.resources.shared)
            for kernel in together[name]
        }
        assert told == {k: (v["registers"], v.get("shared", 0)) for k, v in exact.items()}, name
    assert [kernel.threads for kernel in together["naive"]] == [1]
    assert [kernel.threads for kernel in together["threads_2d"]] == [256, 256]


def kernel(widths):
    counts = PtxCounts(accesses={"ld.shared": widths})
    return Kernel(256, Resources("main_kernel", 64, 4096, 0, 0), counts)


def test_requests_follow_from_the_addresses():
    """Sectors and turns of `register_tile` by NumPy on the addresses its threads compute."""
    ladder = registry.ladder("gemm", "cuda")
    size = ladder.workload.size("cuda", {"M": 64, "N": 64, "K": 8})
    found = trace(ladder["register_tile"].module(Case(size)), ladder.workload.inputs(size))
    thread = np.arange(32)
    y, x = thread // 16, thread % 16
    # B_shared[k * 64 + x * 4 + j]: one by one, threads 4 apart; as 16 bytes, a quarter at a time.
    words = np.unique(x * 4)
    scalar = max(np.bincount(words % 32))
    quarters = [np.unique((x[q : q + 8, None] * 4 + np.arange(4)).ravel()) for q in range(0, 32, 8)]
    joined = max(max(np.bincount(words % 32)) for words in quarters)
    assert (scalar, joined) == (2, 1)
    for widths, expected in (({"": 64}, scalar), ({"v4": 16}, joined), ({"": 1, "v4": 1}, scalar)):
        asked = gpu_figures.requests_of(found, size, [kernel(widths)])
        assert asked.load_degree == expected
        assert asked.store_degree == 1
    # A's strip is 8 wide, K too: 32 threads read 32 neighbours. C: 2 rows of 16 elements 4 apart.
    stores = len(np.unique((y * 4 * 64 + x * 4) * 4 // 32))
    assert asked.loads == {"A": 4.0, "B": 4.0} and asked.stores == {"C": float(stores)}


def test_joined_accesses_are_counted_by_the_bytes_around_them():
    """A column of a 32 x 32 strip: 32 turns one by one; 16 bytes each, 8 threads of a quarter."""
    from needle_tvm._tvm.names import Schedule, te

    a = te.placeholder((32, 32), name="a")
    sch = Schedule(te.create_prim_func([a, te.compute((32, 32), lambda i, j: a[j, i], name="c")]))
    block = sch.get_sblock("c")
    copy = sch.cache_read(block, 0, "shared")
    i, j = sch.get_loops(block)
    i_block, _ = sch.split(i, [1, None])
    sch.bind(i_block, "blockIdx.x")
    sch.compute_at(copy, i_block)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    sch.bind(j, "threadIdx.x")
    found = trace(sch.mod, [np.ones((32, 32), np.float32)])
    report = next(r for r in gpu.site_reports(found) if r.scope == "shared" and not r.is_store)
    assert report.degree == 32 and gpu.joined_degree(found, report, 16) == 8
    assert gpu.joined_degree(found, report, 4) == report.degree


@needs_nvcc
def test_an_untimed_run_has_the_figures_in_its_result():
    size = {"M": 64, "N": 64, "K": 16}
    request = Request("gemm", "cuda", size, ["threads_1d"], timed=False, arch="sm_80", static=True)
    (entry,) = run(request).rungs
    (one,) = entry.to_dict()["static"]["kernels"]
    assert one["threads"] == 32 and one["spill_loads"] == 0
    held = occupancy("sm_80", 32, one["registers"], one["shared"])
    assert one["occupancy"] == {**vars(held), "limits": list(held.limits)}
    asked = entry.to_dict()["static"]["requests"]
    assert asked["sectors_per_load"]["A"] == 32 and asked["bank_degree_of_loads"] is None
    (row,) = gpu_figures.figure_rows([entry])
    assert row[0] == "threads_1d" and row[3] == "0/0" and "A 32" in row[8]


def test_without_nvcc_the_figures_say_so(monkeypatch):
    monkeypatch.setattr(nvcc, "find", lambda: None)
    request = Request("vector_add", "cuda", {"N": 1024}, ["threads"], timed=False, static=True)
    (entry,) = run(request).rungs
    assert entry.static.kernels == () and entry.static.requests.loads == {"a": 4.0, "b": 4.0}
    assert any("no nvcc was found" in line for line in gpu_figures.notes([entry]))
    assert gpu_figures.figure_rows([entry])[0][8:] == ["a 4, b 4", "c 4"]
