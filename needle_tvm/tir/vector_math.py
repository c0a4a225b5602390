"""Elementary functions of float32 as arithmetic that LLVM keeps in vectors.

LLVM calls the C library for `exp` and similar functions, once for every element of a vector.
`register` gives TVM other lowerings of them for CPUs, which run after loops are vectorised: calls
of functions whose LLVM IR `with_definitions` adds, and which LLVM inlines. They are the branch-free
formulas of needle's own kernels (src/cpu/isa/math.h names their sources), to within the same units
in the last place. Infinities, NaN and subnormal numbers come out right; other dtypes keep TVM's
lowering.

They are not TVM expressions: those can name a value used twice only by `Let`, and TVM's code
generator, unless it rejects it, visits a `Let` within the value of another one once for each outer
one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from needle_tvm._tvm.names import (
    IRModule,
    PrimFunc,
    cpu_features,
    tirx,
    tvm,
)
from needle_tvm.tir import llvm

_SHIFT = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer
_TWICE_BIAS = 254
_SIGN = 0x80000000
_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"  # x * 2^floor(n) in one instruction
_SCALE_LANES = 16
_AS_SET = 4  # the rounding mode that is in force


class _Value:
    """A value of LLVM IR: its name or literal, and the type of its elements."""

    def __init__(self, text: _Text, name: str, element: str) -> None:
        self._text, self.name, self.element = text, name, element

    def _arithmetic(self, float_op: str, integer_op: str, other: _Value) -> _Value:
        op = integer_op if self.element == "i32" else float_op
        return self._text.instruction(f"{op} {self}, {other.name}", self.element)

    def __add__(self, other: _Value) -> _Value:
        return self._arithmetic("fadd", "add", other)

    def __sub__(self, other: _Value) -> _Value:
        return self._arithmetic("fsub", "sub", other)

    def __mul__(self, other: _Value) -> _Value:
        return self._arithmetic("fmul", "mul", other)

    def __truediv__(self, other: _Value) -> _Value:
        return self._arithmetic("fdiv", "", other)

    def __and__(self, other: _Value) -> _Value:
        return self._arithmetic("", "and", other)

    def __or__(self, other: _Value) -> _Value:
        return self._arithmetic("", "or", other)

    def __lshift__(self, other: _Value) -> _Value:
        return self._arithmetic("", "shl", other)

    def __rshift__(self, other: _Value) -> _Value:
        return self._arithmetic("", "lshr", other)

    def __neg__(self) -> _Value:
        return self._text.instruction(f"fneg {self}", "float")

    def __lt__(self, other: _Value) -> _Value:
        return self._text.instruction(f"fcmp olt {self}, {other.name}", "i1")

    def __gt__(self, other: _Value) -> _Value:
        return self._text.instruction(f"fcmp ogt {self}, {other.name}", "i1")

    def equals(self, other: _Value) -> _Value:
        return self._text.instruction(f"fcmp oeq {self}, {other.name}", "i1")

    def __str__(self) -> str:
        """The value with its type, as an operand."""
        return f"{self._text.type_of(self.element)} {self.name}"


class _Text:
    """Writes the body of a function of vectors of so many lanes."""

    def __init__(self, lanes: int, features: frozenset[str]) -> None:
        self._lanes, self._features = lanes, features
        self.lines: list[str] = []
        self.declared: set[str] = set()

    def type_of(self, element: str, lanes: int | None = None) -> str:
        lanes = self._lanes if lanes is None else lanes
        return element if lanes == 1 else f"<{lanes} x {element}>"

    def instruction(self, text: str, element: str) -> _Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return _Value(self, name, element)

    def _literal(self, text: str, element: str) -> _Value:
        text = text if self._lanes == 1 else f"splat ({element} {text})"
        return _Value(self, text, element)

    def constant(self, value: float) -> _Value:
        """The nearest float32, which LLVM reads as the bits of a double."""
        nearest = struct.unpack("f", struct.pack("f", value))[0]
        return self._literal("0x" + struct.pack(">d", nearest).hex().upper(), "float")

    def integer(self, value: int) -> _Value:
        return self._literal(str(value), "i32")

    def bits(self, x: _Value) -> _Value:
        return self.instruction(f"bitcast {x} to {self.type_of('i32')}", "i32")

    def float_of(self, bits: _Value) -> _Value:
        return self.instruction(f"bitcast {bits} to {self.type_of('float')}", "float")

    def signed(self, bits: _Value) -> _Value:
        """The float that equals these bits as a signed integer."""
        return self.instruction(f"sitofp {bits} to {self.type_of('float')}", "float")

    def as_integer(self, condition: _Value) -> _Value:
        """1 if the condition holds, else 0."""
        return self.instruction(f"zext {condition} to {self.type_of('i32')}", "i32")

    def select(self, condition: _Value, one: _Value, other: _Value) -> _Value:
        return self.instruction(f"select {condition}, {one}, {other}", one.element)

    def is_nan(self, x: _Value) -> _Value:
        return self.instruction(f"fcmp uno {x}, {x.name}", "i1")

    def magnitude(self, x: _Value) -> _Value:
        return self.float_of(self.bits(x) & self.integer(_SIGN - 1))

    def with_sign_of(self, x: _Value, magnitude: _Value) -> _Value:
        return self.float_of(self.bits(magnitude) | (self.bits(x) & self.integer(_SIGN)))

    def polynomial(self, x: _Value, *coefficients: float) -> _Value:
        """A polynomial by Horner's scheme, the highest power first."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = value * x + self.constant(coefficient)
        return value

    def scaled(self, x: _Value, n: _Value) -> _Value | None:
        """x * 2^n for whole numbers n, rounded once; None if no instruction does that."""
        if self._lanes % _SCALE_LANES or "avx512f" not in self._features:
            return None
        part = self.type_of("float", _SCALE_LANES)
        self.declared.add(f"declare {part} @{_SCALE}({part}, {part}, {part}, i16, i32)")
        parts = []
        for first in range(0, self._lanes, _SCALE_LANES):
            lanes = range(first, first + _SCALE_LANES)
            one, other = (f"{part} {self._shuffled(each, None, lanes)}" for each in (x, n))
            options = f"{part} zeroinitializer, i16 -1, i32 {_AS_SET}"
            parts.append(
                self.instruction(f"call {part} @{_SCALE}({one}, {other}, {options})", "").name
            )
        width = _SCALE_LANES
        while len(parts) > 1:  # join pairs; of an odd number, the last with nothing
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

    def rounded(self, x: _Value) -> _Value:
        """x rounded: keeps a product from entering a sum unrounded (as a fused multiply-add would),
        where it would not have overflowed to infinity yet."""
        suffix = "f32" if self._lanes == 1 else f"v{self._lanes}f32"
        kind, name = self.type_of("float"), f"@llvm.arithmetic.fence.{suffix}"
        self.declared.add(f"declare {kind} {name}({kind})")
        return self.instruction(f"call {kind} {name}({x})", "float")

    def lane_by_lane(self, function: str, x: _Value) -> _Value:
        """A vector of a C function's results for each element of x."""
        kind = x.element
        self.declared.add(f"declare {function}({kind})")
        result = _Value(self, "poison", kind)
        for lane in range(self._lanes):
            element = self.instruction(f"extractelement {x}, i32 {lane}", kind).name
            value = self.instruction(f"call {function}({kind} {element})", kind).name
            result = self.instruction(f"insertelement {result}, {kind} {value}, i32 {lane}", kind)
        return result

    def _joined(self, one: str, other: str, width: int) -> str:
        operands = f"<{width} x float> {one}, <{width} x float> {other}"
        return self.instruction(f"shufflevector {operands}, {_mask(range(2 * width))}", "").name

    def _shuffled(self, one: _Value, other: None, lanes: range) -> str:
        poison = f"{self.type_of(one.element)} poison"
        return self.instruction(f"shufflevector {one}, {poison}, {_mask(lanes)}", "").name


def _mask(lanes: range) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


def _exp(v: _Text, x: _Value) -> _Value:
    """e^x = 2^n * e^r with |r| <= ln(2)/2."""
    low, high, shift = (v.constant(c) for c in (-104.5, 89.0, _SHIFT + _TWICE_BIAS))
    x = v.select(x > high, high, x)  # NaN passes both
    x = v.select(x < low, low, x)
    shifted = x * v.constant(1.44269504) + shift
    n = shifted - shift
    r = n * v.constant(-0.693145752) + x
    r = n * v.constant(-1.42860677e-6) + r
    p = v.polynomial(r, 1.38888889e-3, 8.33333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5)
    p = p * (r * r) + r + v.constant(1.0)
    scaled = v.scaled(p, n)
    if scaled is not None:
        return scaled
    # In two factors, so that results may be subnormal. The lowest bits of `shifted` are n plus
    # twice the exponent bias; the shift to the left drops all others.
    e = v.bits(shifted)
    half = e >> v.integer(1)
    for part in (half, e - half):
        p = p * v.float_of(part << v.integer(23))
    return v.rounded(p)


def _tanh(v: _Text, x: _Value) -> _Value:
    """An odd polynomial near 0, else 1 - 2 / (e^(2|x|) + 1)."""
    a, one = v.magnitude(x), v.constant(1.0)
    far = v.with_sign_of(x, one - v.constant(2.0) / (_exp(v, a + a) + one))
    z = x * x
    p = v.polynomial(
        z,
        -5.70498872745e-3,
        2.06390887954e-2,
        -5.37397155531e-2,
        1.33314422036e-1,
        -3.33332819422e-1,
    )
    return v.select(a < v.constant(0.625), p * z * x + x, far)


def _sigmoid(v: _Text, x: _Value) -> _Value:
    one = v.constant(1.0)
    e = _exp(v, -v.magnitude(x))
    return v.select(x < v.constant(0.0), e, one) / (one + e)


def _erf(v: _Text, x: _Value) -> _Value:
    """One polynomial near 0, one in the exponent elsewhere."""
    t, s = v.magnitude(x), x * x
    r = v.polynomial(t, -1.72853470e-5, 3.83197126e-4)
    u = v.polynomial(t, -3.88396438e-3, 2.42546219e-2)
    r = r * s + u
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = r * t + v.constant(coefficient)
    far = v.with_sign_of(x, v.constant(1.0) - _exp(v, r * t - t))
    p = v.polynomial(
        s,
        -5.96761703e-4,
        4.99119423e-3,
        -2.67681349e-2,
        1.12819925e-1,
        -3.76125336e-1,
        1.28379166e-1,
    )
    return v.select(t > v.constant(0.927734375), far, p * x + x)


def _erf_float64(v: _Text, x: _Value) -> _Value:
    """The C library's erf, lane by lane: LLVM has no erf of vectors to take apart itself."""
    return v.lane_by_lane("double @erf", x)


def _log(v: _Text, x: _Value) -> _Value:
    """log(2^i * (1 + m)) with m in [-1/3, 1/3]."""
    zero, infinity = v.constant(0.0), v.constant(float("inf"))
    tiny = x < v.constant(1.17549435e-38)
    scaled = v.bits(v.select(tiny, x * v.constant(8388608.0), x))
    e = (scaled - v.integer(0x3F2AAAAB)) & v.integer(0xFF800000)
    m = v.float_of(scaled - e) - v.constant(1.0)
    i = v.signed(e) * v.constant(1.19209290e-7)
    i = v.select(tiny, i - v.constant(23.0), i)
    s = m * m
    r = v.polynomial(s, -0.130310059, -0.121484190, -0.166846052, -0.249996200)
    r = v.polynomial(s, 0.140869141, 0.139814854, 0.200120345) * m + r
    r = (r * m + v.constant(0.333331972)) * m + v.constant(-0.5)
    r = i * v.constant(0.693147182) + (r * s + m)
    r = v.select(x < infinity, r, x)
    r = v.select(x.equals(zero), -infinity, r)
    return v.select(x < zero, v.constant(float("nan")), r)


def _bfloat16(v: _Text, x: _Value) -> _Value:
    """Round to the nearest bfloat16, ties to even; any NaN becomes a quiet NaN."""
    bits, kept = v.bits(x), v.integer(0xFFFF0000)
    to_even = (bits >> v.integer(16)) & v.integer(1)
    nearest = v.float_of((bits + v.integer(0x7FFF) + to_even) & kept)
    quiet = v.float_of((bits | v.integer(0x00400000)) & kept)
    return v.select(v.is_nan(x), quiet, nearest)


def _odd(v: _Text, x: _Value) -> _Value:
    """Round a float64 to odd float32: to the neighbour nearer to 0, with the last bit set if
    anything was lost (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE
    Trans. Computers 57, 2008). Rounding that once more, to fewer bits, gives what rounding x would.
    """
    narrow = v.instruction(f"fptrunc {x} to {v.type_of('float')}", "float")
    back = v.instruction(f"fpext {narrow} to {v.type_of('double')}", "double")
    zero = v.instruction(f"sitofp {v.integer(0)} to {v.type_of('double')}", "double")
    above = v.as_integer(v.select(x < zero, back < x, back > x))
    inexact = v.as_integer(v.instruction(f"fcmp une {back}, {x.name}", "i1"))
    return v.float_of((v.bits(narrow) - above) | inexact)


_FORMULAS: dict[str, Callable[[_Text, _Value], _Value]] = {
    "bfloat16": _bfloat16,
    "odd": _odd,
    "exp": _exp,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "erf_float64": _erf_float64,
    "log": _log,
}
# Our own operations on CPUs: float32 -> float32, float64 -> float32.
ROUND_TO_BFLOAT16, ROUND_TO_ODD = "tirx.needle_bfloat16", "tirx.needle_odd"
_OWN = {"bfloat16": ROUND_TO_BFLOAT16, "odd": ROUND_TO_ODD}
_TAKES = {"odd": "float64", "erf_float64": "float64"}  # the others take float32
_VECTORS_OF_FLOAT64 = {"erf": "erf_float64"}  # those without a lowering that takes vectors
_ATTRIBUTE = "llvm.FLowerIntrinsic"
_LEVEL = 99  # above TVM's own lowerings
_FUNCTION = re.compile(rf"needle_({'|'.join(_FORMULAS)})_x([0-9]+)")


def register() -> None:
    """Have TVM call the formulas in everything this process builds for CPUs. Call once."""
    # Their calls take vectors like others, but without this their loops would not be vectorised.
    for name in ("isnan", "erf"):
        tvm.ir.register_op_attr(f"tirx.{name}", "TVectorizable", True)
    for name in (ROUND_TO_BFLOAT16, ROUND_TO_ODD):
        for attribute, value in (
            ("TVectorizable", True),
            ("TCallEffectKind", tirx.CallEffectKind.Pure.value),
            ("TScriptPrinterName", name.partition(".")[2]),
        ):
            tvm.ir.register_op_attr(name, attribute, value)
    for name in _FORMULAS.keys() - _VECTORS_OF_FLOAT64.values():
        op = f"tirx.{name}" if name not in _OWN else _OWN[name]
        before = tvm.ir.Op.get(op).get_attr(_ATTRIBUTE)
        tirx.op.register_intrin_lowering(op, target="llvm", f=_lowering(name, before), level=_LEVEL)


def _lowering(name: str, otherwise: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        (x,) = call.args
        element, _, lanes = str(x.ty).partition("x")
        formula = name
        if lanes and element == "float64":
            formula = _VECTORS_OF_FLOAT64.get(name, name)
        if element != _TAKES.get(formula, "float32"):
            return call if otherwise is None else otherwise(call)
        return tirx.call_pure_extern(str(call.ty), f"needle_{formula}_x{lanes or 1}", x)

    return lower


def with_definitions(module: IRModule) -> IRModule:
    """Add to each function of a module the IR of the formulas that it calls."""

    def text(called: list[re.Match[str]], function: PrimFunc) -> str:
        features = frozenset(cpu_features(function.attrs["target"]))
        return _definitions([(match[1], match[2]) for match in called], features)

    return llvm.defining(module, _FUNCTION, text)


def _definitions(functions: Sequence[tuple[str, str]], features: frozenset[str]) -> str:
    """LLVM IR of functions by name and lanes: on vectors, or on scalars if there is one lane."""
    lines: list[str] = []
    declared: set[str] = set()
    for name, lanes in functions:
        text = _Text(int(lanes), features)
        x = _Value(text, "%x", "double" if name in _TAKES else "float")
        result = _FORMULAS[name](text, x)
        # linkonce_odr: once in a program, however many linked modules define the same function.
        kind = f"linkonce_odr {text.type_of(result.element)}"
        signature = f"{kind} @needle_{name}_x{lanes}({x}) alwaysinline"
        lines += [f"define {signature} {{", *text.lines, f"  ret {result}", "}"]
        declared |= text.declared
    return "\n".join([*sorted(declared), *lines, ""])
