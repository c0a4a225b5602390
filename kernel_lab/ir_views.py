"""A rung's code at each stage: TVMScript, LLVM or CUDA, assembly or PTX, with instruction counts.

The functions import TVM's compiler when they are called.
"""

from __future__ import annotations

import difflib
import html
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_lab import build
from kernel_lab.code_counts import (
    HotPart,
    PtxCounts,
    X86Counts,
    hot_part,
    ptx_counts,
    x86_counts,
)
from kernel_lab.errors import LabError
from needle_runtime.text import counted
from needle_tvm.target import nvcc
from needle_tvm.target.nvcc import Resources, resources

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target

_NVCC_SECONDS = 600  # allows for other work on the machine
_WIDEST = 160  # the most characters shown of an unchanged line in a difference


def tvmscript(module: IRModule) -> str:
    """Return the module's TVMScript, without the lines that every script begins with."""
    from needle_tvm._tvm.names import script

    lines = script(module).splitlines()
    kept = [line for line in lines if not line.startswith("# from tvm")]
    return "\n".join(kept).strip() + "\n"


def unified(old: str, new: str, context: int = 2) -> str:
    """Return the changed lines of two texts, with `context` lines around them, as `diff -w` writes
    them.

    Lines that differ only in their indentation count as the same and are written as in `new`, so
    that a new loop around a nest does not mark every line of the nest as changed. Unchanged lines
    are cut to 160 characters. Lines are matched with difflib's SequenceMatcher (Ratcliff and
    Obershelp's pattern matching).
    """
    before, after = ([line.rstrip() for line in text.splitlines()] for text in (old, new))
    matcher = difflib.SequenceMatcher(
        None, [line.lstrip() for line in before], [line.lstrip() for line in after], autojunk=False
    )
    lines = []
    for group in matcher.get_grouped_opcodes(context):
        (_, first, _, from_, _), (_, _, last, _, to) = group[0], group[-1]
        lines.append(f"@@ -{first + 1},{last - first} +{from_ + 1},{to - from_} @@")
        for kind, i, i_end, j, j_end in group:
            if kind == "equal":
                lines += [f" {_cut(line)}" for line in after[j:j_end]]
                continue
            lines += [f"-{line}" for line in before[i:i_end]]
            lines += [f"+{line}" for line in after[j:j_end]]
    return "\n".join(lines)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..."


def difference(left: str, right: str, left_name: str, right_name: str, context: int = 3) -> str:
    """Return an HTML table with the two texts side by side and the changes within a line marked.

    Only `context` unchanged lines around each change are kept. Lines are matched with difflib's
    SequenceMatcher (Ratcliff and Obershelp's pattern matching).
    """
    old, new = left.splitlines(), right.splitlines()
    rows = [
        f"<tr><th colspan=2>{html.escape(left_name)}</th>"
        f"<th colspan=2>{html.escape(right_name)}</th></tr>"
    ]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    end = 0
    for group in matcher.get_grouped_opcodes(context):
        if group[0][1] > end:
            rows.append('<tr class="gap"><td colspan=4>...</td></tr>')
        end = group[-1][2]
        for kind, first, last, from_, to in group:
            for step in range(max(last - first, to - from_)):
                rows.append(
                    _row(
                        (first + step + 1, old[first + step]) if first + step < last else None,
                        (from_ + step + 1, new[from_ + step]) if from_ + step < to else None,
                        changed=kind != "equal",
                    )
                )
    if len(rows) == 1:
        rows.append('<tr class="gap"><td colspan=4>no difference</td></tr>')
    columns = "<colgroup>" + 2 * '<col class="number"><col>' + "</colgroup>\n"
    return f'<table class="diff">\n{columns}' + "\n".join(rows) + "\n</table>"


def _row(left: tuple[int, str] | None, right: tuple[int, str] | None, *, changed: bool) -> str:
    texts = [html.escape(side[1]) if side else "" for side in (left, right)]
    if changed and left and right:
        texts = _marked(left[1], right[1])
    cells = []
    for side, text, name in zip((left, right), texts, ("removed", "added"), strict=True):
        number = side[0] if side else ""
        style = f' class="{name}"' if changed and side else ""
        cells.append(f"<td>{number}</td><td{style}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _marked(left: str, right: str) -> list[str]:
    """Return the two lines, with <b> around their differences if at least half of their text is
    equal."""
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    if matcher.ratio() < 0.5:
        return [html.escape(left), html.escape(right)]
    marked = ["", ""]
    for kind, *places in matcher.get_opcodes():
        for side, line in enumerate((left, right)):
            part = html.escape(line[places[2 * side] : places[2 * side + 1]])
            marked[side] += f"<b>{part}</b>" if kind != "equal" and part else part
    return marked


@dataclass(frozen=True)
class CpuCode:
    """A rung as LLVM compiles it: the IR, the assembly, and the assembly's hot part with its
    counts."""

    llvm: str
    assembly: str
    hot: HotPart
    counts: X86Counts

    def summary(self) -> str:
        """Return the counts in one line."""
        c = self.counts
        used = ", ".join(f"{count} {name}" for name, count in sorted(c.registers.items())[::-1])
        return (
            f"{self.hot.name}: {counted(c.instructions, 'instruction')}, widest register {c.widest}"
            f" (by width: {used or 'none'}), {c.fma} FMA, {c.packed} packed and {c.scalar} scalar"
            f" arithmetic, stack {counted(c.stack_loads, 'load')}"
            f" and {counted(c.stack_stores, 'store')}"
        )


def cpu_code(module: IRModule, target: Target) -> CpuCode:
    """Compile a rung for a CPU and analyse the code. Counts are for x86-64 assembly."""
    from needle_tvm.lower.libraries import generated_source

    library = build.compile_module(module, target)
    assembly = without_directives(generated_source(library, "asm"))
    hot = hot_part(assembly)
    return CpuCode(generated_source(library, "ll"), assembly, hot, x86_counts(hot.lines))


def llvm_block(llvm: str) -> str:
    """Return the basic block of LLVM IR with the most arithmetic on floats or vectors.

    Debug metadata is left out.
    """
    arithmetic = re.compile(
        r"\bf(?:mul|add|sub|div)\b|@llvm\.fm(?:a|uladd)\b|\b(?:mul|add) (?:nsw )?<"
    )
    lines = [re.sub(r", ![\w.]+ !\d+", "", line) for line in llvm.splitlines()]
    lines = [line for line in lines if not line.lstrip().startswith("#dbg")]
    blocks = re.split(r"\n(?=[\w.]+:|define )", "\n".join(lines))
    return max(blocks, key=lambda text: len(arithmetic.findall(text)), default="").strip()


def without_directives(assembly: str) -> str:
    """Return the assembly without the lines for debuggers and linkers."""
    directive = re.compile(r"^\s*(?:\.(?!L)\w+|\.L(?:tmp|func|cfi|info|debug|line|string)\w*:)")
    return "\n".join(line for line in assembly.splitlines() if not directive.match(line))


@dataclass(frozen=True)
class GpuCode:
    """A rung compiled for a GPU: CUDA, PTX and its hot part, counts, and ptxas' figures."""

    arch: str
    cuda: str
    ptx: str
    hot: HotPart
    counts: PtxCounts
    hot_counts: PtxCounts
    resources: list[Resources]

    def summary(self) -> str:
        """Return the counts in one line."""
        parts = []
        for access in ("ld.global", "st.global", "ld.shared", "st.shared", "ld.local", "st.local"):
            widths = self.counts.accesses.get(access)
            if widths:
                by_width = ", ".join(
                    f"{count} {width or 'scalar'}" for width, count in sorted(widths.items())
                )
                parts.append(f"{access} {by_width}")
        parts += [f"{self.counts.fma} fma", f"{self.counts.mma} mma"]
        parts.append(counted(self.counts.barriers, "barrier"))
        if self.counts.asynchronous:
            parts.append(f"{self.counts.asynchronous} cp.async")
        parts += [
            f"{r.kernel}: {counted(r.registers, 'register')}, {counted(r.shared, 'byte')} shared,"
            f" spills {r.spill_stores} and {counted(r.spill_loads, 'byte')}"
            for r in self.resources
        ]
        return f"{self.arch}, whole kernel: " + "; ".join(parts)


def gpu_code(module: IRModule, arch: str = build.CUDA_ARCHITECTURES[-1]) -> GpuCode:
    """Compile a rung for a GPU of architecture `arch`; no GPU is needed.

    Raises TargetError if there is no nvcc, LabError if nvcc rejects the code.
    """
    source = cuda_source(module, arch)
    ptx, report = assembled(source, arch)
    hot = hot_part(ptx)
    return GpuCode(
        arch,
        kernels_of(source),
        ptx,
        hot,
        ptx_counts(ptx.splitlines()),
        ptx_counts(hot.lines),
        resources(report),
    )


def cuda_source(module: IRModule, arch: str) -> str:
    """Return the CUDA code that TVM generates for architecture `arch`. Needs no nvcc."""
    from needle_tvm.lower.gpu_code import device_source

    return device_source(build.compile_module(module, build.make_target("cuda", arch)))


def kernels_of(source: str) -> str:
    """Return the kernels in CUDA source that TVM generated, without the code before them."""
    found = re.search(r'^extern "C" __global__ [^;{]*\{', source, re.MULTILINE)
    return source[found.start() :].strip() + "\n" if found else source


def assembled(source: str, arch: str) -> tuple[str, str]:
    """Return the PTX of CUDA source, and ptxas' report on it.

    Raises TargetError if there is no nvcc, LabError with nvcc's first errors if it rejects the
    code.
    """
    with tempfile.TemporaryDirectory() as directory:
        file, ptx = Path(directory, "kernel.cu"), Path(directory, "kernel.ptx")
        file.write_text(source)
        command = [nvcc.require(), "-std=c++17", f"-arch={arch}"]
        _run([*command, "-ptx", "-o", str(ptx), str(file)])
        report = _run(
            [*command, "-Xptxas", "-v", "-cubin", "-o", f"{directory}/kernel.cubin", str(ptx)]
        )
        return ptx.read_text(), report


def _run(command: list[str]) -> str:
    try:
        done: Any = subprocess.run(
            command, capture_output=True, text=True, timeout=_NVCC_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{Path(command[0]).name} took longer than {_NVCC_SECONDS} s") from None
    if done.returncode:
        said = str(done.stderr or done.stdout)
        errors = [line for line in said.splitlines() if "error" in line.lower()]
        raise LabError(
            f"{Path(command[0]).name} failed: {'; '.join(errors[:5]) or said[-400:].strip()}"
        )
    return str(done.stdout + done.stderr)
