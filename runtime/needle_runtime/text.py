"""Format numbers as text, and make text from other sources safe to print. This module uses only the
standard library."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def digits(value: float) -> str:
    """Return a value with two decimals below 10, one below 100, and none from 100 on; a value below
    0.1 has two significant digits instead."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def quartiles(median: float, lower: float, upper: float) -> str:
    """Return a median and, in brackets, its quartiles."""
    return f"{digits(median)} ({digits(lower)}-{digits(upper)})"


def compared(median: float, lower: float, upper: float) -> str:
    """Return our speed in words, from a ratio of times (a peer's over ours): "1.4 times faster".

    The text is "as fast" if the quartiles straddle 1 or the rounded factor is 1. Otherwise the
    factor has at most three significant digits, with separators between thousands:
    "1,240 times slower".
    """
    factor = float(f"{median if median > 1 else 1 / median:.3g}")
    if lower <= 1 <= upper or factor == 1:
        return "as fast"
    return f"{factor:,.15g} times {'faster' if median > 1 else 'slower'}"


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])


def duration(seconds: float) -> str:
    """Return a duration, given in seconds, with a suitable unit: "12.3 ms"."""
    scale, unit = _unit(seconds)
    return f"{digits(seconds / scale)} {unit}"


def interval(lower: float, upper: float) -> str:
    """Return two durations, given in seconds, as a range in one unit: "1.20-1.34 ms"."""
    scale, unit = _unit(upper)
    return f"{digits(lower / scale)}-{digits(upper / scale)} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun; the plural adds an s: "1 thread", "1,024 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return `text` with an escape such as \\x1b in place of each character that is not printable.

    Text from files and other machines may hold characters that a terminal would act on: control
    sequences, changes of direction, line breaks and bytes that are not text.
    """
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


def one_line(text: str) -> str:
    """Return `text` on one line, with escapes for characters that are not printable."""
    return printable(" ".join(text.split()))


def error_line(error: BaseException) -> str:
    """Return an error's text as `one_line` does; the name of its class if it has no text."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return one_line(str(text)) or type(error).__name__
