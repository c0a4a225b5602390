"""Numbers in sentences. Standard library only."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, the plural made with an s: "1 thread", "1,024 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
