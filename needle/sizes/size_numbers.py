"""Numbers that depend on sizes and need not be whole: n ** -0.5, 1 / n."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Of = Callable[[Any], Any]  # the value of an expression of dims


class SizeNumber:
    """A float that depends on sizes, for arithmetic with numbers, sizes and tensors.

    `evaluate(of)` computes it; `of` returns an expression's value, which is a number or a Tensor.
    `refused(use)` returns the error for a use that needs the number itself.
    """

    __slots__ = ("_refused", "evaluate")
    __array_ufunc__ = None  # NumPy scalars leave operators to this class

    def __init__(self, evaluate: Callable[[Of], Any], refused: Callable[[str], Exception]) -> None:
        self.evaluate, self._refused = evaluate, refused

    def _with(self, other: Any, combine: Callable[[Any, Any], Any], swap: bool = False) -> Any:
        if hasattr(other, "as_number"):
            other = other.as_number()
        mine, refused = self.evaluate, self._refused
        if isinstance(other, SizeNumber):
            its = other.evaluate
        elif isinstance(other, (int, float, np.integer, np.floating)):
            number = other.item() if isinstance(other, np.generic) else other

            def its(of: Of) -> Any:
                return number
        else:
            return NotImplemented
        if swap:
            return SizeNumber(lambda of: combine(its(of), mine(of)), refused)
        return SizeNumber(lambda of: combine(mine(of), its(of)), refused)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, swap=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv, swap=True)

    def __pow__(self, other: Any) -> Any:
        return self._with(other, operator.pow)

    def __neg__(self) -> Any:
        return self * -1.0

    # Uses that need the number

    def __index__(self) -> int:
        raise self._refused("an extent or an index made by / or ** (// gives a size)")

    def __float__(self) -> float:
        raise self._refused("float()")

    def __int__(self) -> int:
        raise self._refused("int() (// gives a size)")

    def __bool__(self) -> bool:
        raise self._refused("a decision")

    def _compared(self, other: Any) -> bool:
        raise self._refused("a comparison")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = object.__hash__
