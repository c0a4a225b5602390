"""Factors between times, and amounts of work, as text."""

from __future__ import annotations

from needle_runtime.process.timing import Spread
from needle_runtime.text import digits, quartiles


def factor(value: float) -> str:
    """Return a factor as text with three significant digits: "5,740x", or "10.6 times slower"."""
    rounded = float(f"{value if value >= 1 else 1 / value:.3g}")
    text = f"{rounded:,.0f}" if rounded >= 100 else digits(rounded)
    return f"{text}x" if value >= 1 or rounded == 1 else f"{text} times slower"


def against(value: float, other: str) -> str:
    """Return a factor in a sentence: "5,740 times as fast as naive", "10.6 times slower than
    naive"."""
    text = factor(value)
    if text.endswith("x"):
        return f"{text.removesuffix('x')} times as fast as {other}"
    return f"{text} than {other}"


def with_quartiles(ratio: Spread) -> str:
    """Return a factor and its quartiles: "2.00 (1.96-2.04)"; if it is far from 1, the factor alone,
    as `factor` writes it."""
    if 0.5 <= ratio.median < 1000:
        return quartiles(ratio.median, ratio.lower, ratio.upper)
    return factor(ratio.median)


def work(flops: float) -> str:
    """Return a number of operations with a unit: "2.15 GFLOP", "509 kFLOP"."""
    for unit, size in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= size:
            return f"{digits(flops / size)} {unit}"
    return f"{flops:.0f} FLOP"
