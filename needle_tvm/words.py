"""Numbers in sentences, and foreign text escaped for printing. Standard library only."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun; the plural adds an s: "1 thread", "1,024 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """`text` with an escape such as \\x1b for every character that is not printable.

    Text from files and other machines may hold control sequences, changes of direction, line
    breaks and bytes that are not text, on which a terminal would act.
    """
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


def one_line(text: str) -> str:
    """`text` on one line, printable."""
    return printable(" ".join(text.split()))


def error_line(error: BaseException) -> str:
    """An error's text on one line, printable."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return one_line(str(text)) or type(error).__name__
