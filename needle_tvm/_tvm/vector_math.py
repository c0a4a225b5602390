"""float32 functions as arithmetic that LLVM keeps in vectors.

LLVM calls the C library for `exp` and its kin, once for every element of a vector. `register`
gives TVM other lowerings of them for CPUs, which run after loops were vectorised: the branch-free
formulas of needle's own kernels (src/cpu/isa/math.h names their sources), within the same units in
the last place. Infinities, NaN and subnormal numbers come out as they should; other dtypes keep
TVM's lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle_tvm._tvm.names import Target, cpu_features, tirx, tvm

_SHIFT = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer
_TWICE_BIAS = 254
_SIGN = 0x80000000
_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"  # x * 2^floor(n) in one instruction
_SCALE_LANES = 16
_AS_SET = 4  # the rounding that is in force


class _Vector:
    """Constants and bits for values with the lanes of `like`; names what is read more than once."""

    def __init__(self, like: Any) -> None:
        self.element, _, lanes = str(like.ty).partition("x")
        self._lanes = int(lanes or 1)
        self._bound: list[tuple[Any, Any]] = []

    def bind(self, value: Any) -> Any:
        variable = tirx.Var(f"t{len(self._bound)}", str(value.ty))
        self._bound.append((variable, value))
        return variable

    def bound_in(self, result: Any) -> Any:
        """`result` with all that was bound around it."""
        for variable, value in reversed(self._bound):
            result = tirx.Let(variable, value, result)
        return result

    def constant(self, value: float, dtype: str = "float32") -> Any:
        scalar = tirx.const(value, dtype)
        return scalar if self._lanes == 1 else tirx.Broadcast(scalar, self._lanes)

    def bits(self, x: Any) -> Any:
        return tirx.reinterpret(self._of("uint32"), x)

    def float_of(self, bits: Any) -> Any:
        return tirx.reinterpret(self._of("float32"), bits)

    def signed(self, bits: Any) -> Any:
        """The float that equals these bits as a signed integer."""
        return tirx.Cast(self._of("float32"), tirx.reinterpret(self._of("int32"), bits))

    def integer(self, value: int) -> Any:
        return self.constant(value, "uint32")

    def magnitude(self, x: Any) -> Any:
        return self.bind(self.float_of(self.bits(x) & self.integer(_SIGN - 1)))

    def with_sign_of(self, x: Any, magnitude: Any) -> Any:
        return self.float_of(self.bits(magnitude) | (self.bits(x) & self.integer(_SIGN)))

    def polynomial(self, x: Any, *coefficients: float) -> Any:
        """Horner's scheme, the highest power first."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = value * x + self.constant(coefficient)
        return value

    def scaled(self, x: Any, n: Any) -> Any:
        """x * 2^n of whole numbers n, rounded once; None where no instruction does that."""
        target = Target.current()
        whole = self._lanes % _SCALE_LANES == 0
        if not whole or target is None or "avx512f" not in cpu_features(target):
            return None
        x, n, dtype = self.bind(x), self.bind(n), f"float32x{_SCALE_LANES}"
        unread = tirx.Broadcast(tirx.const(0.0, "float32"), _SCALE_LANES)
        every, rounding = tirx.const(-1, "int16"), tirx.const(_AS_SET, "int32")
        parts = []
        for first in range(0, self._lanes, _SCALE_LANES):
            lanes = list(range(first, first + _SCALE_LANES))
            one, other = (tirx.Shuffle([each], lanes) for each in (x, n))
            parts.append(
                tirx.call_llvm_pure_intrin(dtype, _SCALE, one, other, unread, every, rounding)
            )
        return tirx.Shuffle(parts, list(range(self._lanes)))

    def _of(self, dtype: str) -> str:
        return dtype if self._lanes == 1 else f"{dtype}x{self._lanes}"


def _exp(v: _Vector, x: Any) -> Any:
    """e^x = 2^n * e^r with |r| <= ln(2)/2."""
    low, high, shift = (v.constant(c) for c in (-104.5, 89.0, _SHIFT + _TWICE_BIAS))
    x = v.bind(tirx.Select(x > high, high, x))  # NaN passes both
    x = v.bind(tirx.Select(x < low, low, x))
    shifted = v.bind(x * v.constant(1.44269504) + shift)
    n = v.bind(shifted - shift)
    r = v.bind(n * v.constant(-0.693145752) + x)
    r = v.bind(n * v.constant(-1.42860677e-6) + r)
    p = v.polynomial(r, 1.38888889e-3, 8.33333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5)
    p = p * (r * r) + r + v.constant(1.0)
    scaled = v.scaled(p, n)
    if scaled is not None:
        return v.bind(scaled)
    # In two factors for the sake of subnormal results. The lowest bits of `shifted` are n and
    # twice the bias of an exponent; the shift to the left drops all others.
    e = v.bind(v.bits(shifted))
    half = v.bind(e >> v.integer(1))
    for part in (half, e - half):
        p = p * v.float_of(part << v.integer(23))
    return v.bind(p)


def _tanh(v: _Vector, x: Any) -> Any:
    """Near 0 an odd polynomial, else 1 - 2 / (e^(2|x|) + 1)."""
    a, one = v.magnitude(x), v.constant(1.0)
    far = v.with_sign_of(x, one - v.constant(2.0) / (_exp(v, a + a) + one))
    z = v.bind(x * x)
    p = v.polynomial(
        z,
        -5.70498872745e-3,
        2.06390887954e-2,
        -5.37397155531e-2,
        1.33314422036e-1,
        -3.33332819422e-1,
    )
    return tirx.Select(a < v.constant(0.625), p * z * x + x, far)


def _sigmoid(v: _Vector, x: Any) -> Any:
    one = v.constant(1.0)
    e = _exp(v, -v.magnitude(x))
    return tirx.Select(x < v.constant(0.0), e, one) / (one + e)


def _erf(v: _Vector, x: Any) -> Any:
    """One polynomial near 0, one in the exponent elsewhere."""
    t, s = v.magnitude(x), v.bind(x * x)
    r = v.polynomial(t, -1.72853470e-5, 3.83197126e-4)
    u = v.polynomial(t, -3.88396438e-3, 2.42546219e-2)
    r = v.bind(r * s + u)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = r * t + v.constant(coefficient)
    far = v.with_sign_of(x, v.constant(1.0) - _exp(v, v.bind(r * t - t)))
    p = v.polynomial(
        s,
        -5.96761703e-4,
        4.99119423e-3,
        -2.67681349e-2,
        1.12819925e-1,
        -3.76125336e-1,
        1.28379166e-1,
    )
    return tirx.Select(t > v.constant(0.927734375), far, p * x + x)


def _log(v: _Vector, x: Any) -> Any:
    """log(2^i * (1 + m)) with m in [-1/3, 1/3]."""
    zero, infinity = v.constant(0.0), v.constant(float("inf"))
    tiny = x < v.constant(1.17549435e-38)
    scaled = v.bind(v.bits(tirx.Select(tiny, x * v.constant(8388608.0), x)))
    e = v.bind((scaled - v.integer(0x3F2AAAAB)) & v.integer(0xFF800000))
    m = v.bind(v.float_of(scaled - e) - v.constant(1.0))
    i = v.signed(e) * v.constant(1.19209290e-7)
    i = tirx.Select(tiny, i - v.constant(23.0), i)
    s = v.bind(m * m)
    r = v.polynomial(s, -0.130310059, -0.121484190, -0.166846052, -0.249996200)
    r = v.polynomial(s, 0.140869141, 0.139814854, 0.200120345) * m + r
    r = (r * m + v.constant(0.333331972)) * m + v.constant(-0.5)
    r = i * v.constant(0.693147182) + (r * s + m)
    r = tirx.Select(x < infinity, r, x)
    r = tirx.Select(x == zero, -infinity, r)
    return tirx.Select(x < zero, v.constant(float("nan")), r)


_FORMULAS = {"exp": _exp, "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf, "log": _log}
_ATTRIBUTE = "llvm.FLowerIntrinsic"
_LEVEL = 99  # above TVM's own lowerings


def register() -> None:
    """Have TVM use the formulas in what this process builds for CPUs. To be called once."""
    # A comparison to the code generator, but without this a loop of it is taken apart.
    tvm.ir.register_op_attr("tirx.isnan", "TVectorizable", True)
    for name, formula in _FORMULAS.items():
        before = tvm.ir.Op.get(f"tirx.{name}").get_attr(_ATTRIBUTE)
        tirx.op.register_intrin_lowering(
            f"tirx.{name}", target="llvm", f=_lowering(formula, before), level=_LEVEL
        )


def _lowering(
    formula: Callable[[_Vector, Any], Any], otherwise: Callable[[Any], Any] | None
) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        (x,) = call.args
        vector = _Vector(x)
        if vector.element != "float32":
            return call if otherwise is None else otherwise(call)
        return vector.bound_in(formula(vector, vector.bind(x)))

    return lower
