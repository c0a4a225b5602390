"""Formulas of `vector_math` that hold for ordinary arguments, with the C library for all others."""

from __future__ import annotations

from needle_tvm.tir.vector_text import Text, Value

_SHIFT = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer
_LARGE = 1e5  # angles up to here lose no digit when multiples of pi / 2 are subtracted
# pi / 2 in three parts, of which the first two have few enough digits.
_HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512449129139937e-15)


def sine(v: Text, x: Value) -> Value:
    return _angle(v, x, "@sinf", 0)


def cosine(v: Text, x: Value) -> Value:
    return _angle(v, x, "@cosf", 1)


def _angle(v: Text, x: Value, function: str, turn: int) -> Value:
    """The sine of x + turn * pi / 2: a polynomial (coefficients from Cephes) of what is left of x
    beside a multiple of pi / 2."""
    if not v.has_fma:
        return v.lane_by_lane(function, x)
    shifted = v.fma(x, v.constant(0.636619772), v.constant(_SHIFT))
    n = shifted - v.constant(_SHIFT)
    r = x
    for part in _HALF_PI:
        r = v.fma(n, v.constant(-part), r)
    z = r * r
    odd = v.polynomial(z, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    odd = v.fma(odd * z, r, r)
    even = v.polynomial(z, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5)
    even = v.fma(even, z, v.constant(1.0))
    quarter = v.bits(shifted) + v.integer(turn)
    swapped = (quarter & v.integer(1)).equals(v.integer(1))
    sign = (quarter & v.integer(2)) << v.integer(30)
    found = v.float_of(v.bits(v.select(swapped, even, odd)) ^ sign)
    if not turn:
        found = v.select(x.equals(v.constant(0.0)), x, found)  # -0.0
    return v.unless(v.magnitude(x) > v.constant(_LARGE), found, function, x)


def remainder(v: Text, x: Value, y: Value) -> Value:
    """C's fmod. The quotient is exact up to 2^22, or 2^51 of float64; where it was rounded up, what
    is left is below 0."""
    narrow = x.element == "float"
    function = "@fmodf" if narrow else "@fmod"
    if not v.has_fma:
        return v.lane_by_lane(function, x, y)
    a, b = v.intrinsic("fabs", x), v.intrinsic("fabs", y)
    quotient = v.intrinsic("trunc", a / b)
    rest = v.fma(-quotient, b, a)
    rest = v.select(rest < v.like(x, 0.0), rest + b, rest)
    found = v.intrinsic("copysign", rest, x)
    large = quotient > v.like(x, 2.0**22 if narrow else 2.0**51)
    return v.unless(large | b.equals(v.like(x, float("inf"))), found, function, x, y)


def power(v: Text, x: Value, y: Value) -> Value:
    """C's powf: 2^(y * log2(|x|)) in float64, with the sign and the exceptions of C's."""
    if not v.has_fma:
        return v.lane_by_lane("@powf", x, y)
    zero, one, infinity = v.wide(0.0), v.wide(1.0), v.wide(float("inf"))
    base, exponent = v.cast("fpext", v.magnitude(x), "double"), v.cast("fpext", y, "double")
    log = _log2(v, base)
    log = v.select(base.equals(zero), -infinity, log)
    log = v.select(base < infinity, log, base)  # infinity and NaN
    t = exponent * log
    t = v.select(t > v.wide(200.0), v.wide(200.0), t)  # NaN passes both
    t = v.select(t < v.wide(-200.0), v.wide(-200.0), t)
    result = v.cast("fptrunc", _exp2(v, t), "float")
    result = v.select(base.equals(one), v.constant(1.0), result)
    # A whole exponent keeps the sign of x if it is odd; below 0, others have no result.
    whole = v.intrinsic("trunc", y).equals(y)
    half = y * v.constant(0.5)
    even = v.intrinsic("trunc", half).equals(half)
    sign = v.bits(x) & v.integer(-0x80000000)
    signed = v.float_of(v.bits(result) | v.select(even, v.integer(0), sign))
    result = v.select(whole, signed, result)
    below = (x < v.constant(0.0)) & (x > v.constant(float("-inf")))
    nothing = v.select(whole, v.integer(0), v.as_integer(below)).equals(v.integer(1))
    result = v.select(nothing, v.constant(float("nan")), result)
    result = v.select(v.is_nan(y), y, result)
    certain = y.equals(v.constant(0.0)) | x.equals(v.constant(1.0))
    return v.select(certain, v.constant(1.0), result)


def _log2(v: Text, x: Value) -> Value:
    """log2(2^e * m) of a normal float64 with m in [sqrt(1/2), sqrt(2)], to 36 bits, by the series
    of the inverse hyperbolic tangent of (m - 1) / (m + 1)."""
    shift = v.integer(52, "i64")
    bits = v.bits(x)
    above = bits - v.integer(0x3FE6A09E667F3BCD, "i64")
    e = v.instruction(f"ashr {above}, {shift.name}", "i64")
    m = v.cast("bitcast", bits - (e << shift), "double")
    s = (m - v.wide(1.0)) / (m + v.wide(1.0))
    z = s * s
    p = v.wide(2 / 13)
    for divisor in (11, 9, 7, 5, 3, 1):
        p = v.fma(p, z, v.wide(2 / divisor))
    whole = v.cast("sitofp", v.cast("trunc", e, "i32"), "double")
    return v.fma(p * s, v.wide(1.4426950408889634), whole)


def _exp2(v: Text, x: Value) -> Value:
    """2^x of |x| <= 200."""
    shifted = x + v.wide(6755399441055744.0)  # 1.5 * 2^52
    f = (x - (shifted - v.wide(6755399441055744.0))) * v.wide(0.6931471805599453)
    p = v.wide(1 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        p = v.fma(p, f, v.wide(1 / divisor))
    scale = (v.bits(shifted) + v.integer(1023, "i64")) << v.integer(52, "i64")
    return p * v.cast("bitcast", scale, "double")
