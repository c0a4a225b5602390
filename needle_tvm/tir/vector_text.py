"""Writes the LLVM IR of functions on vectors, instruction by instruction (see `vector_math`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from needle_tvm.target.info import TargetInfo
from needle_tvm.tir.vector_constants import constant

_SIGN = 0x80000000
_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"  # x * 2^floor(n) in one instruction
_LOOK_UP = "llvm.x86.avx512.permvar.sf.512"
_AVX512 = "avx512f"  # the feature with these two instructions
_PART = 16  # floats in one of their vectors
_AS_SET = 4  # the current rounding mode


class Value:
    """A value of LLVM IR: its name or literal, and the type of its elements."""

    def __init__(self, text: Text, name: str, element: str) -> None:
        self._text, self.name, self.element = text, name, element

    def _arithmetic(self, float_op: str, integer_op: str, other: Value) -> Value:
        op = integer_op if self.element in ("i32", "i64") else float_op
        return self._text.instruction(f"{op} {self}, {other.name}", self.element)

    def __add__(self, other: Value) -> Value:
        return self._arithmetic("fadd", "add", other)

    def __sub__(self, other: Value) -> Value:
        return self._arithmetic("fsub", "sub", other)

    def __mul__(self, other: Value) -> Value:
        return self._arithmetic("fmul", "mul", other)

    def __truediv__(self, other: Value) -> Value:
        return self._arithmetic("fdiv", "", other)

    def __and__(self, other: Value) -> Value:
        """Return the bitwise and, or the logical and of conditions."""
        return self._text.instruction(f"and {self}, {other.name}", self.element)

    def __or__(self, other: Value) -> Value:
        return self._text.instruction(f"or {self}, {other.name}", self.element)

    def __xor__(self, other: Value) -> Value:
        return self._text.instruction(f"xor {self}, {other.name}", self.element)

    def __lshift__(self, other: Value) -> Value:
        return self._arithmetic("", "shl", other)

    def __rshift__(self, other: Value) -> Value:
        return self._arithmetic("", "lshr", other)

    def __neg__(self) -> Value:
        return self._text.instruction(f"fneg {self}", self.element)

    def __lt__(self, other: Value) -> Value:
        return self._text.instruction(f"fcmp olt {self}, {other.name}", "i1")

    def __gt__(self, other: Value) -> Value:
        return self._text.instruction(f"fcmp ogt {self}, {other.name}", "i1")

    def equals(self, other: Value) -> Value:
        compare = "icmp eq" if self.element in ("i32", "i64") else "fcmp oeq"
        return self._text.instruction(f"{compare} {self}, {other.name}", "i1")

    def __str__(self) -> str:
        """Return the value with its type, as an operand."""
        return f"{self._text.type_of(self.element)} {self.name}"


class Text:
    """Writes the body of a function on vectors with `lanes` lanes."""

    def __init__(self, lanes: int, machine: TargetInfo) -> None:
        self._lanes, self._machine = lanes, machine
        self.lines: list[str] = ["entry:"]
        self.declared: set[str] = set()
        self.has_fma = machine.fuses

    def type_of(self, element: str, lanes: int | None = None) -> str:
        lanes = self._lanes if lanes is None else lanes
        return element if lanes == 1 else f"<{lanes} x {element}>"

    def instruction(self, text: str, element: str) -> Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return Value(self, name, element)

    def _literal(self, text: str, element: str) -> Value:
        text = text if self._lanes == 1 else f"splat ({element} {text})"
        return Value(self, text, element)

    def constant(self, value: float) -> Value:
        """Return a constant vector of the nearest float32."""
        return self._literal(_hexadecimal(value), "float")

    def named(self, name: str) -> Value:
        """Return the float32 constant `name` of the table, as a vector."""
        return self.constant(constant(name))

    def wide(self, value: float) -> Value:
        """Return a constant vector of a float64."""
        return self._literal("0x" + struct.pack(">d", value).hex().upper(), "double")

    def like(self, x: Value, value: float) -> Value:
        """Return a constant vector of a float of x's type."""
        return self.wide(value) if x.element == "double" else self.constant(value)

    def integer(self, value: int, element: str = "i32") -> Value:
        return self._literal(str(value), element)

    def cast(self, kind: str, x: Value, element: str) -> Value:
        """Return x converted by an LLVM conversion, such as `fpext`."""
        return self.instruction(f"{kind} {x} to {self.type_of(element)}", element)

    def intrinsic(self, name: str, *values: Value) -> Value:
        """Call an LLVM intrinsic on floats, such as fma, trunc, fabs or copysign."""
        element = values[0].element
        bits = {"float": "f32", "double": "f64"}[element]
        suffix = bits if self._lanes == 1 else f"v{self._lanes}{bits}"
        kind = self.type_of(element)
        kinds = ", ".join([kind] * len(values))
        self.declared.add(f"declare {kind} @llvm.{name}.{suffix}({kinds})")
        given = ", ".join(map(str, values))
        return self.instruction(f"call {kind} @llvm.{name}.{suffix}({given})", element)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def unless(self, condition: Value, result: Value, function: str, *values: Value) -> Value:
        """Return a C function's result in lanes where the condition holds, and `result` in
        others."""
        kind, any_lane = self.type_of(result.element), condition.name
        if self._lanes > 1:
            of = self.type_of("i1")
            name = f"@llvm.vector.reduce.or.v{self._lanes}i1"
            self.declared.add(f"declare i1 {name}({of})")
            any_lane = self.instruction(f"call i1 {name}({condition})", "i1").name
        self.lines += [f"  br i1 {any_lane}, label %slow, label %done", "slow:"]
        slow = self.select(condition, self.lane_by_lane(function, *values), result)
        self.lines += ["  br label %done", "done:"]
        return self.instruction(
            f"phi {kind} [ {result.name}, %entry ], [ {slow.name}, %slow ]", result.element
        )

    def bits(self, x: Value) -> Value:
        element = "i64" if x.element == "double" else "i32"
        return self.instruction(f"bitcast {x} to {self.type_of(element)}", element)

    def float_of(self, bits: Value) -> Value:
        return self.instruction(f"bitcast {bits} to {self.type_of('float')}", "float")

    def signed(self, bits: Value) -> Value:
        """Return the bits, read as a signed integer, converted to float."""
        return self.instruction(f"sitofp {bits} to {self.type_of('float')}", "float")

    def as_integer(self, condition: Value) -> Value:
        """Return 1 if the condition holds, else 0."""
        return self.instruction(f"zext {condition} to {self.type_of('i32')}", "i32")

    def select(self, condition: Value, one: Value, other: Value) -> Value:
        return self.instruction(f"select {condition}, {one}, {other}", one.element)

    def is_nan(self, x: Value) -> Value:
        return self.instruction(f"fcmp uno {x}, {x.name}", "i1")

    def magnitude(self, x: Value) -> Value:
        return self.float_of(self.bits(x) & self.integer(_SIGN - 1))

    def with_sign_of(self, x: Value, magnitude: Value) -> Value:
        return self.float_of(self.bits(magnitude) | (self.bits(x) & self.integer(_SIGN)))

    def polynomial(self, x: Value, *coefficients: float) -> Value:
        """Return the value of a polynomial by Horner's scheme; coefficients begin with the highest
        power."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = value * x + self.constant(coefficient)
        return value

    def scaled(self, x: Value, n: Value) -> Value | None:
        """Return x * 2^n for whole numbers n, rounded once; None if there is no such
        instruction."""
        if not self.has_wide_parts:
            return None
        part = self.type_of("float", _PART)
        self.declared.add(f"declare {part} @{_SCALE}({part}, {part}, {part}, i16, i32)")
        options = f"{part} zeroinitializer, i16 -1, i32 {_AS_SET}"
        return self._by_parts(lambda one, other: f"@{_SCALE}({one}, {other}, {options})", x, n)

    @property
    def has_wide_parts(self) -> bool:
        """Whether vectors fill whole registers of 16 floats and AVX-512 is available."""
        return self._lanes % _PART == 0 and self._machine.has(_AVX512)

    def looked_up(self, table: Sequence[float], place: Value) -> Value:
        """Return elements of a table of 16; the index is the lowest four bits of `place`. Call it
        only if `has_wide_parts`."""
        part, places = (self.type_of(each, _PART) for each in ("float", "i32"))
        self.declared.add(f"declare {part} @{_LOOK_UP}({part}, {places})")
        numbers = ", ".join(f"float {_hexadecimal(value)}" for value in table)
        return self._by_parts(lambda at: f"@{_LOOK_UP}({part} <{numbers}>, {at})", place)

    def _by_parts(self, call: Callable[..., str], *values: Value) -> Value:
        """Apply an instruction to 16 floats at a time; return the results as one vector."""
        parts = []
        for first in range(0, self._lanes, _PART):
            lanes = range(first, first + _PART)
            given = (
                f"{self.type_of(each.element, _PART)} {self._shuffled(each, None, lanes)}"
                for each in values
            )
            text = f"call {self.type_of('float', _PART)} {call(*given)}"
            parts.append(self.instruction(text, "").name)
        width = _PART
        while len(parts) > 1:  # join pairs; an odd part out is joined with poison
            parts = [
                self._joined(parts[i], parts[i + 1] if i + 1 < len(parts) else "poison", width)
                for i in range(0, len(parts), 2)
            ]
            width *= 2
        whole = range(self._lanes)
        return self.instruction(
            f"shufflevector <{width} x float> {parts[0]}, <{width} x float> poison, {_mask(whole)}",
            "float",
        )

    def rounded(self, x: Value) -> Value:
        """Return the product x behind a fence, so that LLVM does not fuse it into a multiply-add.
        That would add the unrounded product, which has not overflowed to infinity."""
        suffix = "f32" if self._lanes == 1 else f"v{self._lanes}f32"
        kind, name = self.type_of("float"), f"@llvm.arithmetic.fence.{suffix}"
        self.declared.add(f"declare {kind} {name}({kind})")
        return self.instruction(f"call {kind} {name}({x})", "float")

    def lane_by_lane(self, function: str, *values: Value) -> Value:
        """Call a C function for each element of the arguments; return the results as a vector."""
        kind = values[0].element
        self.declared.add(f"declare {kind} {function}({', '.join([kind] * len(values))})")
        if self._lanes == 1:
            return self.instruction(f"call {kind} {function}({', '.join(map(str, values))})", kind)
        result = Value(self, "poison", kind)
        for lane in range(self._lanes):
            elements = [
                self.instruction(f"extractelement {each}, i32 {lane}", kind).name for each in values
            ]
            given = ", ".join(f"{kind} {each}" for each in elements)
            value = self.instruction(f"call {kind} {function}({given})", kind).name
            result = self.instruction(f"insertelement {result}, {kind} {value}, i32 {lane}", kind)
        return result

    def _joined(self, one: str, other: str, width: int) -> str:
        operands = f"<{width} x float> {one}, <{width} x float> {other}"
        return self.instruction(f"shufflevector {operands}, {_mask(range(2 * width))}", "").name

    def _shuffled(self, one: Value, other: None, lanes: range) -> str:
        poison = f"{self.type_of(one.element)} poison"
        return self.instruction(f"shufflevector {one}, {poison}, {_mask(lanes)}", "").name


def _hexadecimal(value: float) -> str:
    """Return the nearest float32 in LLVM's notation: the bits of the equal double."""
    nearest = struct.unpack("f", struct.pack("f", value))[0]
    return "0x" + struct.pack(">d", nearest).hex().upper()


def _mask(lanes: range) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
