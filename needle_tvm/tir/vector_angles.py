"""Formulas for `vector_math` that fall back on the C library for extreme arguments."""

from __future__ import annotations

from collections.abc import Sequence

from needle_tvm.tir.vector_constants import constant, table
from needle_tvm.tir.vector_text import Text, Value


def sine(v: Text, x: Value) -> Value:
    return _angle(v, x, "@sinf", 0)


def cosine(v: Text, x: Value) -> Value:
    return _angle(v, x, "@cosf", 1)


def _angle(v: Text, x: Value, function: str, turn: int) -> Value:
    """Return the sine of x + turn * pi / 2, by a polynomial in the difference between x and the
    nearest multiple of pi / 2."""
    if not v.has_fma:
        return v.lane_by_lane(function, x)
    shifted = v.fma(x, v.named("PerHalfPi"), v.named("Round"))
    n = shifted - v.named("Round")
    r = x
    for part in table("MinusHalfPi"):
        r = v.fma(n, v.constant(part), r)
    z = r * r
    odd = v.polynomial(z, *table("Sine"))
    odd = v.fma(odd * z, r, r)
    even = v.polynomial(z, *table("Cosine"))
    even = v.fma(even, z, v.constant(1.0))
    quarter = v.bits(shifted) + v.integer(turn)
    swapped = (quarter & v.integer(1)).equals(v.integer(1))
    sign = (quarter & v.integer(2)) << v.integer(30)
    found = v.float_of(v.bits(v.select(swapped, even, odd)) ^ sign)
    if not turn:
        found = v.select(x.equals(v.constant(0.0)), x, found)  # -0.0
    return v.unless(v.magnitude(x) > v.named("AngleMost"), found, function, x)


def remainder(v: Text, x: Value, y: Value) -> Value:
    """Return C's fmod. Quotients up to 2^22, or 2^51 for float64, are exact or one too large. If
    the quotient is one too large, the remainder is below 0 and is corrected."""
    narrow = x.element == "float"
    function = "@fmodf" if narrow else "@fmod"
    if not v.has_fma:
        return v.lane_by_lane(function, x, y)
    a, b = v.intrinsic("fabs", x), v.intrinsic("fabs", y)
    quotient = v.intrinsic("trunc", a / b)
    rest = v.fma(-quotient, b, a)
    rest = v.select(rest < v.like(x, 0.0), rest + b, rest)
    found = v.intrinsic("copysign", rest, x)
    large = quotient > v.like(x, constant("QuotientMost" if narrow else "QuotientMostWide"))
    return v.unless(large | b.equals(v.like(x, float("inf"))), found, function, x, y)


def power(v: Text, x: Value, y: Value) -> Value:
    """Return C's powf: 2^(y * log2(|x|)) in float64, with C's sign and special cases."""
    if not v.has_fma:
        return v.lane_by_lane("@powf", x, y)
    zero, one, infinity = v.wide(0.0), v.wide(1.0), v.wide(float("inf"))
    base, exponent = v.cast("fpext", v.magnitude(x), "double"), v.cast("fpext", y, "double")
    log = _log2(v, base)
    log = v.select(base.equals(zero), -infinity, log)
    log = v.select(base < infinity, log, base)  # infinity and NaN
    t = exponent * log
    most, least = v.wide(constant("Exp2Most")), v.wide(-constant("Exp2Most"))
    t = v.select(t > most, most, t)  # NaN passes both
    t = v.select(t < least, least, t)
    result = v.cast("fptrunc", _exp2(v, t), "float")
    result = v.select(base.equals(one), v.constant(1.0), result)
    # With an odd whole exponent, the result has the sign of x. For x below 0, the result is NaN if
    # the exponent is not whole.
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
    """Return log2 of a normal float64 x = 2^e * m, with m in [sqrt(1/2), sqrt(2)], to 36 bits, by
    the series of the inverse hyperbolic tangent of (m - 1) / (m + 1)."""
    shift = v.integer(52, "i64")
    bits = v.bits(x)
    above = bits - v.integer(int(constant("SqrtHalfBits")), "i64")
    e = v.instruction(f"ashr {above}, {shift.name}", "i64")
    m = v.cast("bitcast", bits - (e << shift), "double")
    s = (m - v.wide(1.0)) / (m + v.wide(1.0))
    z = s * s
    p = _polynomial(v, z, table("Log2"))
    whole = v.cast("sitofp", v.cast("trunc", e, "i32"), "double")
    return v.fma(p * s, v.wide(constant("PerLn2Wide")), whole)


def _polynomial(v: Text, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the value of a float64 polynomial, by Horner's scheme."""
    p = v.wide(coefficients[0])
    for coefficient in coefficients[1:]:
        p = v.fma(p, x, v.wide(coefficient))
    return p


def _exp2(v: Text, x: Value) -> Value:
    """Return 2^x for arguments in the range to which `power` clips them."""
    shift = v.wide(constant("RoundWide"))
    shifted = x + shift
    f = (x - (shifted - shift)) * v.wide(constant("Ln2Wide"))
    p = _polynomial(v, f, table("Exp2"))
    scale = (v.bits(shifted) + v.integer(1023, "i64")) << v.integer(52, "i64")
    return p * v.cast("bitcast", scale, "double")
