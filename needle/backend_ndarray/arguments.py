"""Checks of numeric arguments. Each error names the callee, the argument and its value."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

LARGEST = 2**63 - 1  # the largest extent, and the largest integer that C libraries accept


def count(owner: str, what: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int. Raises TypeError unless it is an integer, and ValueError unless it
    is in `least`..2**63 - 1. Errors name the callee `owner` and the argument `what`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{owner}: {what} {value!r} is a {type(value).__name__}, not an integer")
    number = int(value)
    if not least <= number <= LARGEST:
        raise ValueError(f"{owner}: {what} {value} is not in {least}..2**63 - 1")
    return number


def counts(owner: str, **values: Any) -> None:
    """Check that each of `values` is an integer of at least 1. Raises errors as `count` does; they
    name the callee `owner`."""
    for what, value in values.items():
        count(owner, what, value)


def flag(owner: str, what: str, value: Any) -> bool:
    """Return `value` as a bool. Raises TypeError unless it is a bool; the error names `owner` and
    `what`."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{owner}: {what} {value!r} is a {type(value).__name__}, not a bool")
    return bool(value)


def finite(owner: str, what: str, value: Any) -> float:
    """Return `value` as a Python number. Raises TypeError if it is not a number, and ValueError if
    it is not finite. Errors name `owner` and `what`."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{owner}: {what} {value!r} is a {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{owner}: {what} {value} is not finite")
    return value if isinstance(value, int) else number


def not_negative(owner: str, what: str, value: Any) -> float:
    """Return `value` as `finite` does, but also raise ValueError if it is negative. Errors name
    `owner` and `what`."""
    number = finite(owner, what, value)
    if number < 0:
        raise ValueError(f"{owner}: {what} {value} is not >= 0")
    return number


def fraction(owner: str, what: str, value: Any) -> float:
    """Return `value` as `finite` does, but also raise ValueError unless it is in [0, 1). Errors
    name `owner` and `what`."""
    number = finite(owner, what, value)
    if not 0 <= number < 1:
        raise ValueError(f"{owner}: {what} {value} is not in [0, 1)")
    return number


def share(owner: str, what: str, value: Any) -> float:
    """Return `value` as `finite` does, but also raise ValueError unless it is in [0, 1]. Errors
    name `owner` and `what`."""
    number = finite(owner, what, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{owner}: {what} {value} is not in [0, 1]")
    return number
