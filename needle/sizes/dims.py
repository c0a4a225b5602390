"""Open (symbolic) sizes: a `Dim` stands for every size within its bounds, and
the extents of results computed with it are expressions of dims.

An expression is kept in one exact form, a polynomial of dims and of quotients rounded down. Equal
expressions therefore have equal forms: n + n == 2 * n, and (4 * n) // 4 is n. A coefficient may be
a fraction if the value is known to be whole: n // 8 is n / 8 if n is a multiple of 8. Bounds come
from interval arithmetic. A comparison is True or False if the form and the bounds decide it; any
other use of the number raises a TraceError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ..common.state import state
from ..common.user_code import user_line
from ..errors import TraceError
from . import polynomials as poly
from .polynomials import Terms
from .size_numbers import SizeNumber

LARGEST = 2**31 - 1  # the largest size


class Expression:
    """An integer that depends on dims, such as 2 * n + 1. It is immutable and hashable.

    The operators `+ - * // %` (with ints and expressions) and `**` (with an int of at least 0) give
    expressions, or ints if the result depends on no dim. Divisors must be above 0.
    """

    __slots__ = ("_key", "_terms")
    _terms: Terms
    _key: tuple[Any, ...]  # strings and numbers, the same for equal forms

    @property
    def dims(self) -> frozenset[Dim]:
        """The dims that the value depends on."""
        return frozenset(dim for factors in self._terms for each in factors for dim in each.dims)

    @property
    def bounds(self) -> tuple[int, int]:
        """A lower and an upper bound of the value. The exact bounds may be closer together."""
        low, high = poly.interval(self._terms)
        # Rounding changes a quotient by less than 1. Without it, more terms cancel: n - n // 2.
        other_low, _ = poly.interval(_without_rounding(self._terms, upwards=False))
        _, other_high = poly.interval(_without_rounding(self._terms, upwards=True))
        return math.ceil(max(low, other_low)), math.floor(min(high, other_high))

    def value(self, sizes: Mapping[Dim, Any]) -> Any:
        """Return the value for `sizes`, which has an int or an expression for each dim. Raises
        KeyError if a dim is missing."""
        return self.built(sizes.__getitem__, operator.floordiv)

    def built(self, build: Callable[[Dim], Any], divide: Callable[[Any, Any], Any]) -> Any:
        """Return the expression rebuilt from other objects, which support `+` and `*`. `build`
        returns the object for a dim. `divide` returns the quotient, rounded down, of two objects or
        of an object and an int."""
        total: Any = 0
        for factors, coefficient in self._terms.items():
            product: Any = coefficient.numerator
            for each in factors:
                product = each.built(build, divide) * product
            if coefficient.denominator != 1:  # divides the product of the factors
                product = divide(product, coefficient.denominator)
            total = product + total
        return total

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        terms = _terms_of(other)
        return NotImplemented if terms is None else _expression(poly.add(self._terms, terms))

    def __sub__(self, other: Any) -> Any:
        terms = _terms_of(other)
        return NotImplemented if terms is None else _expression(poly.add(self._terms, terms, -1))

    def __mul__(self, other: Any) -> Any:
        terms = _terms_of(other)
        return NotImplemented if terms is None else _expression(poly.multiply(self._terms, terms))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Expression:
        return self

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, float) or (_terms_of(other) is not None and other < 0):
            return self.as_number() ** other
        if _terms_of(other) is None or isinstance(other, Expression):
            raise self._refused(f"a power with the exponent {other!r}")
        return math.prod([self] * int(other))

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else _quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else _quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else self - _quotient(self, other) * other

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else other - _quotient(other, self) * self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    # Comparisons: the form and the bounds decide them, or they raise

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, Expression) and self._key == other._key:
            return True
        return self._compared("==", other, lambda d: (d == (0, 0), d[0] > 0 or d[1] < 0))

    def __ne__(self, other: Any) -> Any:
        same = self == other
        return same if same is NotImplemented else not same

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", other, lambda d: (d[1] < 0, d[0] >= 0))

    def __le__(self, other: Any) -> Any:
        return self._compared("<=", other, lambda d: (d[1] <= 0, d[0] > 0))

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", other, lambda d: (d[0] > 0, d[1] <= 0))

    def __ge__(self, other: Any) -> Any:
        return self._compared(">=", other, lambda d: (d[0] >= 0, d[1] < 0))

    def _compared(
        self, sign: str, other: Any, judge: Callable[[tuple[int, int]], tuple[bool, bool]]
    ) -> Any:
        """Return True or False if `judge`, from the bounds of self - other, finds that the relation
        always or never holds. Raises TraceError if it finds neither."""
        if _terms_of(other) is None:
            return NotImplemented
        difference = self - other
        always, never = judge(bounds_of(difference))
        if not always and not never:
            raise _refusal(f"whether {self} {sign} {other}", (self, other))
        return always

    def _refused(self, use: str) -> TraceError:
        return _refusal(f"the value of {self} for {use}", (self,))

    def __index__(self) -> int:
        raise self._refused("an index, range() or another function of plain ints")

    def __int__(self) -> int:
        raise self._refused("int()")

    def __float__(self) -> float:
        raise self._refused("float()")

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __truediv__(self, other: Any) -> Any:
        return self.as_number() / other

    def __rtruediv__(self, other: Any) -> Any:
        known = isinstance(other, float) or _terms_of(other) is not None
        return other / self.as_number() if known else NotImplemented

    def as_number(self) -> SizeNumber:
        """Return this size as a number, for arithmetic whose results are not whole."""
        return SizeNumber(lambda of: of(self), self._refused)

    # A copy is the object itself, and unpickling creates an equal object.

    def __copy__(self) -> Expression:
        return self

    def __deepcopy__(self, memo: Any) -> Expression:
        return self

    def __reduce__(self) -> Any:
        return _expression, (self._terms,)

    def __repr__(self) -> str:
        text = ""
        for factors, coefficient in self._terms.items():
            number = abs(coefficient.numerator)
            parts = [str(number)] * (number != 1 or not factors) + [*map(repr, factors)]
            term = " * ".join(parts)
            if coefficient.denominator != 1:
                term = (
                    f"({term} // {coefficient.denominator})"
                    if len(parts) == 1
                    else (f"({term}) // {coefficient.denominator}")
                )
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {term}" if text else f"-{term}" if sign == "-" else term
        return text


class Dim(Expression):
    """A named size: every multiple of `multiple_of` from `min` to `max`.

    `min` and `max` become the least and the largest such multiple. `name` is a Python identifier.
    Two Dims are equal if their names and these three numbers are equal. `+ - * //` with integers
    and other dims give expressions. Raises TypeError or ValueError for other arguments. A dim
    cannot be 0, because arrays without elements need different code.

    >>> n = ndl.Dim("n", max=64, multiple_of=8)
    >>> n.described(), 2 * n + 1
    ('n (8 to 64, a multiple of 8)', 2 * n + 1)
    """

    __slots__ = ("max", "min", "multiple_of", "name")
    name: str
    min: int
    max: int
    multiple_of: int

    def __init__(self, name: str, *, max: int, min: int = 1, multiple_of: int = 1) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"Dim: name {name!r} is not a Python identifier")
        for what, number in {"min": min, "max": max, "multiple_of": multiple_of}.items():
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise TypeError(f"Dim {name!r}: {what} {number!r} is not an int")
            if not 1 <= number <= LARGEST:
                raise ValueError(f"Dim {name!r}: {what} {number} is not from 1 to {LARGEST}")
        least, largest = -(-min // multiple_of) * multiple_of, max // multiple_of * multiple_of
        if least > largest:
            raise ValueError(f"Dim {name!r}: no multiple of {multiple_of} is from {min} to {max}")
        facts = {"name": name, "min": int(least), "max": int(largest)}
        facts["multiple_of"] = int(multiple_of)
        for what, value in {**facts, "_key": tuple(facts.values())}.items():
            object.__setattr__(self, what, value)
        object.__setattr__(self, "_terms", {(self,): Fraction(1)})

    @property
    def dims(self) -> frozenset[Dim]:
        """A set that contains only this dim."""
        return frozenset({self})

    @property
    def bounds(self) -> tuple[int, int]:
        """The values of `min` and `max`."""
        return self.min, self.max

    def built(self, build: Callable[[Dim], Any], divide: Callable[[Any, Any], Any]) -> Any:
        """Return `build(self)`; `divide` is not used."""
        return build(self)

    def described(self) -> str:
        """Return name and sizes in words, such as "n (8 to 64, a multiple of 8)"."""
        every = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.name} ({self.min} to {self.max}{every})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Dim {self.name!r} cannot be changed")

    def __reduce__(self) -> Any:
        return _dim, (self.name, self.min, self.max, self.multiple_of)

    def __repr__(self) -> str:
        return self.name


class _Quotient(Expression):
    """A quotient numerator // divisor without a simpler form; the divisor is above 0."""

    __slots__ = ("divisor", "numerator")
    numerator: int | Expression
    divisor: int | Expression

    def __init__(self, numerator: int | Expression, divisor: int | Expression) -> None:
        self.numerator, self.divisor = numerator, divisor
        self._key = ("//", *(getattr(each, "_key", each) for each in (numerator, divisor)))
        self._terms = {(self,): Fraction(1)}

    @property
    def dims(self) -> frozenset[Dim]:
        """The dims of numerator and divisor."""
        return dims_of((self.numerator, self.divisor))

    @property
    def bounds(self) -> tuple[int, int]:
        """Bounds computed from the bounds of numerator and divisor."""
        ends = [a // b for a in bounds_of(self.numerator) for b in bounds_of(self.divisor)]
        return min(ends), max(ends)

    def built(self, build: Callable[[Dim], Any], divide: Callable[[Any, Any], Any]) -> Any:
        """Return the quotient of the objects for numerator and divisor."""
        parts = [
            each.built(build, divide) if isinstance(each, Expression) else each
            for each in (self.numerator, self.divisor)
        ]
        return divide(*parts)

    def __reduce__(self) -> Any:
        return _Quotient, (self.numerator, self.divisor)

    def __repr__(self) -> str:
        return f"({_wrapped(self.numerator)} // {_wrapped(self.divisor)})"


def _wrapped(extent: int | Expression) -> str:
    simple = isinstance(extent, (int, Dim, _Quotient))
    return repr(extent) if simple else f"({extent})"


def _dim(name: str, least: int, largest: int, multiple_of: int) -> Dim:
    return Dim(name, min=least, max=largest, multiple_of=multiple_of)


def dims_of(shape: Iterable[Any]) -> frozenset[Dim]:
    """Return the dims that the extents of a shape depend on."""
    return frozenset(dim for n in shape if isinstance(n, Expression) for dim in n.dims)


def bounds_of(extent: int | Expression) -> tuple[int, int]:
    """Return the bounds of an extent; an int is both of its bounds."""
    return extent.bounds if isinstance(extent, Expression) else (extent, extent)


def size_of(extent: int | Expression, sizes: Mapping[Dim, Any]) -> Any:
    """Return the extent for `sizes`, which has a size for each dim."""
    return extent.value(sizes) if isinstance(extent, Expression) else extent


# Terms


def _terms_of(value: Any) -> Terms | None:
    """Return the terms of an int or an expression; None for anything else."""
    if isinstance(value, Expression):
        return value._terms
    if isinstance(value, (int, np.integer)):
        return {(): Fraction(int(value))} if value else {}
    return None


def _expression(terms: Terms) -> Any:
    """Return the int, the dim or the expression with these terms."""
    if not terms.keys() - {()}:
        return int(terms.get((), 0))
    ordered = {factors: terms[factors] for factors in sorted(terms, key=poly.order)}
    (first, coefficient), *others = ordered.items()
    if not others and coefficient == 1 and len(first) == 1:
        return first[0]
    made = object.__new__(Expression)
    made._terms = ordered
    made._key = tuple(
        (*(each._key for each in factors), c.numerator, c.denominator)
        for factors, c in ordered.items()
    )
    return made


def _without_rounding(terms: Terms, upwards: bool) -> Terms:
    """Replace the rounded quotients in `terms` by exact ones. The value of the result is at least
    (`upwards`) or at most the value of `terms`."""
    out: Terms = {}
    for factors, coefficient in terms.items():
        (first, *others) = factors or (None,)
        if others or not isinstance(first, _Quotient) or not isinstance(first.divisor, int):
            out = poly.add(out, {factors: coefficient})
            continue
        down = 0 if (coefficient > 0) == upwards else first.divisor - 1
        exact = _terms_of(first.numerator - down) or {}
        scaled = {each: c * coefficient / first.divisor for each, c in exact.items()}
        out = poly.add(out, _without_rounding(scaled, upwards))
    return out


def _quotient(numerator: Any, divisor: Any) -> Any:
    """Return numerator // divisor."""
    if bounds_of(divisor)[1] < 0:
        return _quotient(-numerator, -divisor)
    if bounds_of(divisor)[0] < 1:
        if isinstance(divisor, Expression):
            raise _refusal(f"whether the divisor {divisor} is above 0", (divisor,))
        raise ValueError("a size is divided by 0")
    terms = _terms_of(numerator) or {}
    if isinstance(divisor, Expression):
        whole, rest = poly.divide(terms, divisor._terms)
        return _expression(whole) + _rounded(_expression(rest), divisor)
    return _by_number(terms, int(divisor))


def _by_number(terms: Terms, divisor: int) -> Any:
    whole, rest = {}, {}
    for factors, coefficient in terms.items():
        each = poly.multiple_of(factors)  # coefficient * each is a whole number
        times, left = divmod(int(coefficient * each), divisor)
        whole[factors], rest[factors] = Fraction(times, each), Fraction(left, each)
    constant = int(rest.pop((), 0))
    rest = {factors: c for factors, c in rest.items() if c}
    common = math.gcd(divisor, *(int(c * poly.multiple_of(factors)) for factors, c in rest.items()))
    rest = {factors: c / common for factors, c in rest.items()}
    inner = _expression(rest) + constant // common
    return _expression(poly.add({}, whole)) + _rounded(inner, divisor // common)


def _rounded(rest: Any, divisor: Any) -> Any:
    """Return rest // divisor, for a `rest` that cannot be divided term by term."""
    low, high = bounds_of(rest)
    least, most = bounds_of(divisor)
    ends = {end // by for end in (low, high) for by in (least, most)}
    if len(ends) == 1:
        return ends.pop()
    if isinstance(rest, Expression) and isinstance(divisor, int):
        constant = int(rest._terms.get((), 0))
        inner = rest - constant
        if isinstance(inner, _Quotient) and isinstance(inner.divisor, int):
            return (inner.numerator + constant * inner.divisor) // (divisor * inner.divisor)
    return _Quotient(rest, divisor)


def _refusal(what: str, involved: Iterable[Any]) -> TraceError:
    """Return the error for a question that symbolic sizes do not answer. It names the line of the
    user's code."""
    dims = sorted(dims_of(involved), key=lambda dim: dim.name)
    here = state.trace.here if state.trace is not None else "the code"
    return TraceError(
        f"tracing: {here} needs to know {what}, which is not known: "
        f"{', '.join(dim.described() for dim in dims)}{user_line()}. Use operations of tensors and "
        "sizes, choose bounds of the Dim that decide it, or compile for one size, without the dim"
    )
