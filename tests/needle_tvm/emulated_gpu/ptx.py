"""Translates inline assembly in CUDA source to C++ for the host's compiler: calls of headers/ptx.h.

It knows the instructions that TVM writes (itself and for `T.ptx`): mma.sync, ldmatrix, cp.async,
and a few around them. Any other becomes an `#error` that names the instruction, so that source
which needs it does not compile.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r'\s*"([=+]?)(\w)"\s*\((.*)\)\s*', re.DOTALL)
_INSTRUCTION = re.compile(r"(?:@(!?)(\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_TYPES = {"r": "uint32_t", "f": "float", "l": "uint64_t", "h": "uint16_t", "n": ""}

# Possible reduction lengths of an mma of 16 x 8 results, by the type of its operands.
_TERMS = {"f16": ("8", "16"), "bf16": ("8", "16"), "tf32": ("4", "8")}
_COMPARED = {"eq": "==", "ne": "!="}

Values = Callable[[str], str]


def translated(source: str) -> str:
    """CUDA source with calls instead of inline assembly."""
    text, done = [], 0
    for found in _ASM.finditer(source):
        if found.start() < done:
            continue
        end = _closing(source, found.end() - 1)
        text += [source[done : found.start()], _statement(source[found.end() : end])]
        done = end + 1
    return "".join([*text, source[done:]])


def _statement(assembly: str) -> str:
    """The C++ for the contents of an asm statement's parentheses."""
    code, *given = _split(assembly, ":")
    text = "".join(ast.literal_eval(literal) for literal in _LITERAL.findall(code))
    operands = []
    for operand in (each for part in given[:2] for each in _split(part, ",") if each.strip()):
        shape = _OPERAND.fullmatch(operand)
        if shape is None or shape[2] not in _TYPES:
            return _unknown(f"operand {operand.strip()}")
        operands.append((shape[1], shape[2], shape[3]))

    def value(name: str) -> str:
        """The C++ of an operand that is read: %3, a number, a register, an address in brackets."""
        return re.sub(r"%(\d+)|\b([a-z]\w*)\b", one, name.strip().strip("[]"))

    def one(found: re.Match[str]) -> str:
        if found[1] is None:
            return f"needle_{found[2]}"
        _, kind, expression = operands[int(found[1])]
        cast = _TYPES[kind]
        return f"(({cast})({expression}))" if cast else f"({expression})"

    def place(name: str) -> str:
        """The C++ of an operand that is written."""
        number = re.fullmatch(r"%(\d+)", name.strip())
        return operands[int(number[1])][2] if number else f"needle_{name.strip()}"

    lines = []
    for piece in text.split(";"):
        instruction = piece.strip().removeprefix("{").strip()
        if instruction in ("", "}"):
            continue
        line = _line(instruction, value, place)
        if line is None:
            return _unknown(" ".join(instruction.split()))
        lines.append(line)
    return f"do {{ {' '.join(lines)} }} while (0)"


def _unknown(what: str) -> str:
    return f'\n#error "the emulated GPU does not know this PTX: {what.replace(chr(34), chr(39))}"\n'


def _line(instruction: str, value: Values, place: Values) -> str | None:
    """The C++ of one instruction, or None if it is unknown."""
    if register := re.fullmatch(r"\.reg \.(pred|u32|b32|u64|b64) (\w+)", instruction):
        kinds = {"pred": "bool", "u32": "uint32_t", "u64": "uint64_t"}
        return f"{kinds[register[1].replace('b', 'u')]} {place(register[2])};"
    parts = _INSTRUCTION.fullmatch(instruction)
    if parts is None:
        return None
    negated, predicate, opcode, rest = parts.groups()
    arguments = [each.strip() for each in _split(rest, ",") if each.strip()]
    code = _call(opcode, arguments, value, place)
    if code is None or predicate is None:
        return code
    return f"if ({negated}{value(predicate)}) {{ {code} }}"


def _call(opcode: str, arguments: list[str], value: Values, place: Values) -> str | None:
    def values(group: str) -> str:
        return "{" + ", ".join(value(each) for each in _members(group)) + "}"

    def into(group: str, call: str) -> str:
        places = [place(each) for each in _members(group)]
        stores = " ".join(_set(each, f"needle_got[{i}]") for i, each in enumerate(places))
        return f"{{ const auto needle_got = needle::ptx::{call}; {stores} }}"

    if found := re.fullmatch(
        r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.f32\.(\w+)\.(\w+)\.f32", opcode
    ):
        terms, left, right = found.groups()
        if left != right or terms not in _TERMS.get(left, ()):
            return None
        d, *others = arguments
        given = ", ".join(map(values, others))
        return into(d, f"mma<{terms}, needle::ptx::{left}>({given})")
    if found := re.fullmatch(
        r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", opcode
    ):
        transposed = "true" if found[2] else "false"
        return into(arguments[0], f"ldmatrix<{found[1]}, {transposed}>({value(arguments[1])})")
    if re.fullmatch(
        r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::(?:64|128|256)B)?", opcode
    ):
        if not all(re.fullmatch(r"\[?%\d+(?:\+\d+)?\]?|\d+", each) for each in arguments):
            return None  # a predicate that says whether to copy
        to, at, size, *given = map(value, arguments)
        return f"needle::ptx::cp_async({to}, {at}, {size}, {given[0] if given else size});"
    if opcode in ("cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all"):
        return f"needle::ptx::{opcode.replace('.', '_')}({', '.join(map(value, arguments))});"
    if found := re.fullmatch(r"st\.shared(?:\.v([24]))?\.[ub]32", opcode):
        count = found[1] or "1"
        return f"needle::ptx::st_shared<{count}>({value(arguments[0])}, {values(arguments[1])});"
    if found := re.fullmatch(r"setp\.(eq|ne)\.[usb]32", opcode):
        p, a, b = arguments
        return _set(place(p), f"({value(a)} {_COMPARED[found[1]]} {value(b)})")
    if opcode == "cvta.to.shared.u64":
        at = f"(const void*){value(arguments[1])}"
        return _set(place(arguments[0]), f"uint64_t(needle::ptx::shared_address({at}))")
    if opcode == "cvt.u32.u64":
        return _set(place(arguments[0]), f"(uint32_t){value(arguments[1])}")
    if opcode == "cvt.rna.tf32.f32":
        return _set(place(arguments[0]), f"needle::emulated::to_tf32({value(arguments[1])})")
    return None


def _set(place: str, value: str) -> str:
    return f"needle::ptx::set({place}, {value});"


def _members(group: str) -> list[str]:
    """The registers of a group in braces, or a single register."""
    return [each.strip() for each in group.strip().strip("{}").split(",")]


def _characters(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Position, character and bracket depth, for all characters outside string literals."""
    depth, at = 0, start
    while at < len(text):
        if literal := _LITERAL.match(text, at):
            at = literal.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        yield at, text[at], depth
        at += 1


def _closing(text: str, start: int) -> int:
    """The position where the parenthesis opened at `start` closes."""
    return next(at for at, _, depth in _characters(text, start) if depth == 0)


def _split(text: str, mark: str) -> list[str]:
    """Split text at every `mark` outside of brackets and literals."""
    cuts = [at for at, each, depth in _characters(text) if each == mark and depth == 0]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]
