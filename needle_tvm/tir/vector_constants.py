"""Reads the constants in vector_constants.h, which needle's own kernels and compiled code share."""

from __future__ import annotations

import re
from pathlib import Path

_ROW = re.compile(r"constexpr [\w ]+ k(\w+)(?:\[\])? = ([^;]+);")


def _read(text: str) -> dict[str, tuple[float, ...]]:
    return {name: tuple(map(_number, values.split(","))) for name, values in _ROW.findall(text)}


def _number(text: str) -> float:
    """Return the value of a C++ literal, or of a quotient of two literals."""
    digits = text.strip(" {}\n")
    if digits.startswith("0x"):
        return int(digits.rstrip("u"), 16)
    dividend, _, divisor = digits.rstrip("f").partition("/")
    return float(dividend) / float(divisor or 1)


_TABLE = _read(Path(__file__).with_suffix(".h").read_text())


def table(name: str) -> tuple[float, ...]:
    """Return the values of the constant `k` + name, such as the coefficients "Exp"."""
    return _TABLE[name]


def constant(name: str) -> float:
    """Return the value of a constant that has only one."""
    (value,) = _TABLE[name]
    return value
