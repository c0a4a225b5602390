"""Exact polynomials, as dicts from products of factors to coefficients (`needle.sizes.dims`).

A factor is any object with a `_key` that identifies it, `bounds` (least, largest) and, if all of
its values are multiples of a number, `multiple_of`.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

Factors = tuple[Any, ...]  # in a fixed order; () is the constant 1
Terms = dict[Factors, Fraction]  # the coefficients are not 0


def order(factors: Factors) -> tuple[int, tuple[str, ...]]:
    """Return a sort key that puts products of more factors first. Two products keep their order if
    both are multiplied by the same factors."""
    return -len(factors), tuple(repr(each._key) for each in factors)


def add(left: Terms, right: Terms, times: Fraction | int = 1) -> Terms:
    """Return left + times * right."""
    out = dict(left)
    for factors, coefficient in right.items():
        total = out.pop(factors, 0) + coefficient * times
        if total:
            out[factors] = Fraction(total)
    return out


def multiply(left: Terms, right: Terms) -> Terms:
    """Return left * right."""
    out: Terms = {}
    for a, x in left.items():
        for b, y in right.items():
            factors = tuple(sorted(a + b, key=lambda each: repr(each._key)))
            out = add(out, {factors: x * y})
    return out


def multiple_of(factors: Factors) -> int:
    """Return a number that divides all values of a product of factors."""
    return math.prod(getattr(each, "multiple_of", 1) for each in factors)


def interval(terms: Terms) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound of the value, from the bounds of the factors."""
    low = high = Fraction(0)
    for factors, coefficient in terms.items():
        ends = [coefficient]
        for each in factors:
            ends = [end * bound for end in ends for bound in each.bounds]
        low, high = low + min(ends), high + max(ends)
    return low, high


def divide(terms: Terms, divisor: Terms) -> tuple[Terms, Terms]:
    """Return (quotient, rest), both with whole values, such that terms = quotient * divisor + rest,
    by long division of polynomials."""
    leading = min(divisor, key=order)
    left, quotient, rest = dict(terms), Terms(), Terms()
    while left:
        first = min(left, key=order)
        factors = _without(first, leading)
        ratio = left[first] / divisor[leading]
        if factors is None or (ratio * multiple_of(factors)).denominator != 1:
            rest[first] = left.pop(first)
            continue
        part = {factors: ratio}
        quotient = add(quotient, part)
        left = add(left, multiply(part, divisor), -1)
    return quotient, rest


def _without(factors: Factors, gone: Factors) -> Factors | None:
    """Return the factors without the factors in `gone`, or None if one of `gone` is not among
    them."""
    left = {each._key: each for each in factors}
    counts = Counter(each._key for each in factors)
    counts.subtract(each._key for each in gone)
    if min(counts.values(), default=0) < 0:
        return None
    return tuple(left[key] for key in counts.elements())
