"""Count instructions in generated code: the hot part of x86 assembly or PTX.

Works on text; nothing is compiled here.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field

_X86_LABEL = re.compile(r"^(\.L\w+|[\w.$]+):")
_X86_JUMP = re.compile(r"^\s+j\w+\s+(\.L\w+)")
_PTX_LABEL = re.compile(r"^(\$\w+):")
_PTX_JUMP = re.compile(r"^\s+(?:@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)")
_X86_ARITHMETIC = re.compile(
    r"^v?(fn?m(add|sub)\w*|(add|sub|mul|div|max|min|sqrt)[ps][sdh]|p?dp\w+)$"
)
_PTX_ARITHMETIC = re.compile(r"^(fma|mul|add|sub|max|min|mma|wmma|div|ex2)\.")


@dataclass(frozen=True)
class HotPart:
    """The lines of code with the most arithmetic instructions, and whether they are a loop."""

    lines: list[str]
    arithmetic: int
    is_loop: bool

    @property
    def name(self) -> str:
        """The part's name: "hot loop", or "hot block" if it is not a loop."""
        return "hot loop" if self.is_loop else "hot block"


def instructions(lines: list[str]) -> list[tuple[str, str]]:
    """Return (mnemonic, operands) of each instruction, without labels, directives and comments."""
    found = []
    for line in lines:
        text = re.split(r"\s*(?:#|//)", line, maxsplit=1)[0].strip()
        text = re.sub(r"^@!?%\w+\s+", "", text)  # PTX's predicate
        if not text or text.endswith(":") or text.startswith((".", "{", "}", "$")):
            continue
        mnemonic, _, operands = text.partition("\t" if "\t" in text else " ")
        found.append((mnemonic, operands.strip().rstrip(";")))
    return found


def hot_part(text: str) -> HotPart:
    """Return the innermost loop or straight-line block with the most arithmetic. In a tie, a loop
    goes before a block, and a longer part before a shorter one.

    An innermost loop is a backward jump with no other backward jump inside. A block goes from label
    to label; if everything was unrolled, the work is in a block.
    """
    ptx = ".entry" in text
    label, jump = (_PTX_LABEL, _PTX_JUMP) if ptx else (_X86_LABEL, _X86_JUMP)
    arithmetic = _PTX_ARITHMETIC if ptx else _X86_ARITHMETIC
    lines = text.splitlines()
    places: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if match := label.match(line):
            places[match[1]] = number
        elif (match := jump.match(line)) and match[1] in places:
            spans.append((places[match[1]], number))
    innermost = [
        (first, last)
        for first, last in spans
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in spans)
    ]
    edges = [0, *places.values(), len(lines)]
    blocks = [(first, last - 1) for first, last in itertools.pairwise(edges)]
    parts = []
    for is_loop, found in ((True, innermost), (False, blocks)):
        for first, last in found:
            body = lines[first : last + 1]
            names = [name for name, _ in instructions(body)]
            count = sum(bool(arithmetic.match(name)) for name in names)
            parts.append(HotPart(body, count, is_loop))
    return max(parts, key=lambda part: (part.arithmetic, part.is_loop, len(part.lines)))


@dataclass(frozen=True)
class X86Counts:
    """Instructions in a piece of x86 code. `registers` counts instructions by the widest vector
    register they name. `stack_stores` and `stack_loads` count values that did not fit into
    registers: in a hot loop, spills or a local buffer left in memory."""

    instructions: int = 0
    registers: dict[str, int] = field(default_factory=dict)
    fma: int = 0
    packed: int = 0
    scalar: int = 0
    stack_loads: int = 0
    stack_stores: int = 0

    @property
    def widest(self) -> str:
        """The widest vector register used: "zmm", "ymm", "xmm" or "none"."""
        return next((name for name in ("zmm", "ymm", "xmm") if self.registers.get(name)), "none")


def x86_counts(lines: list[str]) -> X86Counts:
    """Count instructions in AT&T-syntax assembly, as LLVM prints it."""
    found = instructions(lines)
    registers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, operands in found:
        for register in ("zmm", "ymm", "xmm"):
            if f"%{register}" in operands:
                registers[register] += 1
                break
        counts["fma"] += bool(re.match(r"vfn?m(add|sub)", name))
        if _X86_ARITHMETIC.match(name):
            counts["packed" if re.search(r"p[sdh]$|^vpdp", name) else "scalar"] += 1
        if "(%rsp" in operands and not name.startswith("lea"):
            stored = operands.endswith(")") and "mov" in name
            counts["stack_stores" if stored else "stack_loads"] += 1
    return X86Counts(len(found), dict(registers), **counts)


@dataclass(frozen=True)
class PtxCounts:
    """Instructions in a piece of PTX. `accesses` maps "ld.global", "st.shared" and so on to the
    number of instructions by vector width ("", "v2", "v4")."""

    instructions: int = 0
    accesses: dict[str, dict[str, int]] = field(default_factory=dict)
    fma: int = 0
    mma: int = 0
    barriers: int = 0
    asynchronous: int = 0


def ptx_counts(lines: list[str]) -> PtxCounts:
    """Count instructions in PTX."""
    found = instructions(lines)
    accesses: dict[str, dict[str, int]] = {}
    counts: Counter[str] = Counter()
    for name, _ in found:
        if match := re.match(r"(ld|st)\.(?:volatile\.)?(global|shared|local)\b(.*)", name):
            widths = accesses.setdefault(f"{match[1]}.{match[2]}", {})
            width = next(iter(re.findall(r"\bv[248]\b", match[3])), "")
            widths[width] = widths.get(width, 0) + 1
        counts["fma"] += name.startswith("fma.")
        counts["mma"] += name.startswith(("mma.", "wmma.mma"))
        counts["barriers"] += name.startswith(("bar.", "barrier."))
        counts["asynchronous"] += name.startswith("cp.async")
    return PtxCounts(len(found), accesses, **counts)
