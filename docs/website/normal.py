"""Rewrite the repository's Markdown, which GitHub shows, in the form that Python-Markdown reads.

GitHub follows CommonMark, and Python-Markdown differs from it. Python-Markdown needs lists to be
indented by four spaces per level, with a blank line before and after each list. It accepts only one
word after a fence, and ignores Markdown in an HTML element without a `markdown` attribute.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

_MARKER = re.compile(r" *(?:[-*+]|\d+[.)])(?: +|$)")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_UNITS = "kB|MB|GB|KiB|MiB|GiB|ns|µs|ms|s|min|%"
_FENCE = re.compile(r"^(\s*)```(\w+) [^\n`{]+$", re.MULTILINE)


def normal(text: str) -> str:
    """Return the text of a page in the form that Python-Markdown reads."""
    text = _FENCE.sub(r"\1```\2", text)
    text = re.sub(r"^<details>", '<details markdown="1" class="answer">', text, flags=re.MULTILINE)
    text = _ROW.sub(lambda row: _whole(row[0]), text)
    return "\n".join(_indented(text.split("\n"))) + "\n"


def _whole(row: str) -> str:
    """Return a table row in which no line breaks within a range or before a unit."""
    row = re.sub(r"\((\d[\d.]*)-(\d[\d.]*)\)", "(\\1\N{NON-BREAKING HYPHEN}\\2)", row)
    return re.sub(rf"(\d) ({_UNITS})(?=[ |)])", "\\1\N{NO-BREAK SPACE}\\2", row)


def _indented(lines: list[str]) -> list[str]:
    """Return the lines with lists indented by four spaces per level, after a blank line."""
    depth, cut, first, starts = _lists(lines)
    made: list[str] = []
    for number, line in enumerate(lines):
        if not depth[number] or not line.strip():
            made.append(line)
            continue
        after_nested = number in first and number and depth[number] < depth[number - 1]
        if (number in starts or after_nested) and made and made[-1].strip():
            made.append("")
        text = line[cut[number] :] if not line[: cut[number]].strip() else line.lstrip()
        if number in first:
            marker = first[number]
            text = f"{marker.strip():<3} {line[len(marker) :]}"
            made.append("    " * (depth[number] - 1) + text)
        else:
            made.append("    " * depth[number] + text)
    return made


def _lists(lines: list[str]) -> tuple[list[int], list[int], dict[int, str], set[int]]:
    """Find the lists in `lines`.

    Returns, for each line, the number of list items that it is in and the width of the innermost
    marker; the markers of the lines that begin an item; and the lines on which a list begins.
    """
    depth, cut = [0] * len(lines), [0] * len(lines)
    first: dict[int, str] = {}
    starts: set[int] = set()
    for token in MarkdownIt().enable("table").parse("\n".join(lines)):
        if token.map is None:
            continue
        start, end = token.map
        if token.type in ("bullet_list_open", "ordered_list_open"):
            starts.add(start)
        if token.type == "list_item_open":
            found = _MARKER.match(lines[start])
            width = len(found[0]) if found else 0
            first[start] = lines[start][:width]
            for number in range(start, end):
                depth[number] += 1
                cut[number] = width
    return depth, cut, first, starts
