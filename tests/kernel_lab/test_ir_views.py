"""Analysis of generated code: counts on hand-written code, then on real rungs."""

import platform
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("tvm")

from kernel_lab import ir_views
from kernel_lab.code_counts import hot_part, ptx_counts, x86_counts
from kernel_lab.errors import LabError
from needle_tvm._tvm.names import make_target
from needle_tvm.target.nvcc import resources
from tests.kernel_lab import kernels

ASSEMBLY = """
main_compute_:
	movq	%rdi, %rax
.LBB0_1:
	vmovss	(%rax), %xmm0
	addq	$4, %rax
	jne	.LBB0_1
.LBB0_2:
	xorl	%ecx, %ecx
.LBB0_3:
	vmovaps	64(%rsp), %zmm9                 # 64-byte Reload
	vbroadcastss	(%rdx), %zmm1
	vfmadd231ps	(%rsi), %zmm1, %zmm9
	vfmadd231ps	%ymm2, %ymm1, %ymm3
	vaddss	128(%rsp), %xmm4, %xmm4
	vmovaps	%zmm9, 64(%rsp)                 # 64-byte Spill
	leaq	8(%rsp), %r9
	incq	%rcx
	jne	.LBB0_3
	jmp	.LBB0_2
	retq
"""

PTX = """
.visible .entry main_kernel(
)
{
	.reg .f32 	%f<9>;
	mov.u32 	%r1, %tid.x;
$L__BB0_1:
	ld.global.nc.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd1];
	st.shared.v4.f32 	[%r2], {%f1, %f2, %f3, %f4};
	bar.sync 	0;
	ld.shared.f32 	%f5, [%r3];
	fma.rn.f32 	%f6, %f5, %f5, %f6;
	@%p1 fma.rn.f32 	%f7, %f5, %f5, %f7;
	@%p2 bra 	$L__BB0_1;
	st.global.f32 	[%rd2], %f6;
	ret;
}
"""


def test_the_hot_part_is_the_innermost_loop_with_the_most_arithmetic():
    hot = hot_part(ASSEMBLY)
    assert hot.lines[0] == ".LBB0_3:" and hot.lines[-1].split() == ["jne", ".LBB0_3"]
    assert (hot.arithmetic, hot.name) == (3, "hot loop")


def test_where_all_was_unrolled_the_hot_part_is_a_block():
    unrolled = ASSEMBLY.replace("\tretq", "\tvaddps\t%zmm0, %zmm0, %zmm0\n" * 4 + "\tretq")
    hot = hot_part(unrolled.replace("\tjmp", ".LBB0_4:\n\tjmp"))
    assert (hot.lines[0], hot.arithmetic, hot.name) == (".LBB0_4:", 4, "hot block")


def test_assembly_is_counted():
    counts = x86_counts(hot_part(ASSEMBLY).lines)
    assert counts.instructions == 9
    assert counts.registers == {"zmm": 4, "ymm": 1, "xmm": 1}
    assert (counts.widest, counts.fma, counts.packed, counts.scalar) == ("zmm", 2, 2, 1)
    assert (counts.stack_loads, counts.stack_stores) == (2, 1)


def test_ptx_is_counted():
    hot = hot_part(PTX)
    assert hot.lines[0] == "$L__BB0_1:" and len(hot.lines) == 8 and hot.is_loop
    counts = ptx_counts(PTX.splitlines())
    assert counts.accesses == {
        "ld.global": {"v4": 1},
        "st.shared": {"v4": 1},
        "ld.shared": {"": 1},
        "st.global": {"": 1},
    }
    assert (counts.fma, counts.mma, counts.barriers, counts.asynchronous) == (2, 0, 1, 0)
    assert ptx_counts(hot.lines).instructions == 7
    tensor = "\twmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 \t{%f1};\n\tcp.async.ca.shared 4;"
    assert (ptx_counts(tensor.splitlines()).mma, ptx_counts(tensor.splitlines()).asynchronous) == (
        1,
        1,
    )


def test_what_ptxas_says_is_read():
    said = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'main_kernel' for 'sm_90'
ptxas info    : Function properties for main_kernel
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem
"""
    (found,) = resources(said)
    assert (found.kernel, found.registers, found.shared) == ("main_kernel", 40, 2048)
    assert (found.spill_stores, found.spill_loads) == (12, 8)


def tiled():
    s = kernels.gemm(64, 64, 64)
    block = s.get_sblock("C")
    i, j, k = s.get_loops(block)
    io, ii = s.split(i, [None, 8])
    jo, ji = s.split(j, [None, 16])
    s.reorder(io, jo, k, ii, ji)
    s.reverse_compute_at(s.cache_write(block, 0, "local"), jo)
    s.vectorize(ji)
    s.unroll(ii)
    s.decompose_reduction(block, k)
    return s.mod


needs_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="counts x86-64 assembly"
)


@needs_x86
@pytest.mark.parametrize("cpu, register", [("haswell", "ymm"), ("znver4", "zmm")])
def test_a_vectorised_rung_computes_in_wide_registers(cpu, register):
    code = ir_views.cpu_code(tiled(), make_target({"kind": "llvm", "mcpu": cpu}))
    assert code.counts.fma >= 8 and code.counts.scalar == 0
    assert code.counts.registers[register] >= code.counts.fma
    assert f"{code.counts.fma} FMA" in code.summary()
    assert "define" in code.llvm and ".cfi" not in code.assembly
    block = ir_views.llvm_block(code.llvm)
    assert block.count("@llvm.fmuladd") >= 8 and "!dbg" not in block


@needs_x86
def test_a_naive_rung_computes_in_scalars():
    code = ir_views.cpu_code(
        kernels.gemm(64, 64, 64).mod, make_target({"kind": "llvm", "mcpu": "haswell"})
    )
    assert code.counts.packed == 0 and code.counts.scalar > 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_gpu_rung_is_compiled_without_a_gpu():
    code = ir_views.gpu_code(kernels.shared_gemm(32, 32, 128, 16, 16).mod, "sm_75")
    assert code.cuda.startswith('extern "C" __global__') and "__shared__" in code.cuda
    assert code.counts.fma == code.hot_counts.fma >= 16 and code.hot_counts.barriers == 2
    assert code.counts.accesses["ld.global"] == {"": 2}  # a slice of A and one of B
    (used,) = code.resources
    assert used.shared == 2 * 16 * 16 * 4 and 0 < used.registers < 255
    assert (used.spill_stores, used.spill_loads) == (0, 0)
    assert "sm_75" in code.summary()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_what_nvcc_refuses_is_one_line():
    with pytest.raises(LabError, match="nvcc failed"):
        ir_views.assembled("this is not CUDA", "sm_90")


def test_scripts_are_the_modules_own():
    text = ir_views.tvmscript(kernels.gemm(8, 8, 8).mod)
    assert text.startswith("@I.ir_module") and "T.grid(8, 8, 8)" in text


def rows_of(table):
    table = re.sub("<colgroup>.*</colgroup>", "", table)
    root = ElementTree.fromstring(re.sub("colspan=([24])", r'colspan="\1"', table))
    return [["".join(cell.itertext()) for cell in row] for row in root]


def test_a_difference_stands_side_by_side():
    left = "\n".join(["same"] * 10 + ["for i in range(8):", "gone"] + ["same"] * 10)
    right = "\n".join(["same"] * 10 + ["for i in parallel(8):"] + ["same"] * 10 + ["<new>"])
    table = ir_views.difference(left, right, "naive", "a & b", context=2)
    rows = rows_of(table)
    assert rows[0] == ["naive", "a & b"]
    assert ["11", "for i in range(8):", "11", "for i in parallel(8):"] in rows
    assert ["12", "gone", "", ""] in rows
    assert ["", "", "22", "<new>"] in rows
    assert rows.count(["..."]) == 2
    assert '<td class="added">for i in <b>p' in table
    # Two lines before and after the first change, two before the second.
    assert sum(row[1:2] == ["same"] for row in rows) == 6


def test_equal_texts_have_no_difference():
    assert rows_of(ir_views.difference("x", "x", "a", "b"))[-1] == ["no difference"]


def test_a_compiler_that_does_not_end_is_an_error_of_the_lab(monkeypatch):
    monkeypatch.setattr(ir_views, "_NVCC_SECONDS", 0.05)
    with pytest.raises(LabError, match="sleep took longer than 0"):
        ir_views._run(["/bin/sleep", "5"])


def test_a_difference_ignores_indentation_and_is_one_that_patch_applies(tmp_path):
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("needs patch")
    body = [f"        a{n}" for n in range(9)]
    old = "\n".join(["def f():", "    for i in x:", *body, "    end"])
    deeper = [f"    {line}" for line in [*body[:-1], "        b8"]]
    loops = ["    for p in y:", "        for i in p:"]
    new = "\n".join(["def f():", *loops, *deeper, "    end", "    more"])
    found = ir_views.unified(old, new)
    marked = [line for line in found.splitlines() if line[0] in "-+"]
    assert [line.split() for line in marked] == [
        ["-", "for", "i", "in", "x:"],
        ["+", "for", "p", "in", "y:"],
        ["+", "for", "i", "in", "p:"],
        ["-", "a8"],
        ["+", "b8"],
        ["+", "more"],
    ]
    (tmp_path / "text").write_text(f"{old}\n")
    (tmp_path / "diff").write_text(f"--- text\n+++ text\n{found}\n")
    subprocess.run([patch, "-l", "text", "diff"], cwd=tmp_path, check=True, capture_output=True)
    patched = (tmp_path / "text").read_text()
    assert [line.split() for line in patched.splitlines()] == [
        line.split() for line in new.split("\n")
    ]
    assert ir_views.unified(new, new) == ""


def test_unchanged_lines_of_a_difference_are_cut_and_changed_ones_are_not():
    long = "x" * 400
    found = ir_views.unified(f"{long}\na{long}", f"  {long}\nb{long}").splitlines()
    assert found == ["@@ -1,2 +1,2 @@", f"   {long[:158]} ...", f"-a{long}", f"+b{long}"]
