"""Draw a graph of boxes as an SVG picture, or as an HTML page that scrolls."""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Sequence

from needle_runtime.cli.drawing.boxes import KINDS, OTHER, Box, Drawn, Weight
from needle_runtime.cli.drawing.layout import place
from needle_runtime.text import counted, printable

# People with colour blindness can also tell these colours apart.
COLOURS = {
    **dict(zip(KINDS, ("#8b4fd0", "#d1495b", "#3b82c4", "#d9822b", "#2f9e6e"), strict=True)),
    **{OTHER: "#7f8a99", "input": "#1f2328", "output": "#1f2328"},
}
_LETTER = 6.02  # the width of a letter, since all text is monospaced at 10 pixels
_LINE, _PAD, _COLUMNS = 13.0, 8.0, 38
_MOST_WEIGHTS = 3  # the most weights that are listed in a box
_MARGIN, _HEAD = 16.0, 62.0


def svg(drawn: Drawn) -> str:
    """Return the picture. A kernel's box has the colour of its kind, and shows the shape of its
    result and its weights; a bar at the bottom shows its share of the bytes of all weights."""
    texts = [_lines(box) for box in drawn.boxes]
    sizes = [_size(box, lines) for box, lines in zip(drawn.boxes, texts, strict=True)]
    placed = place([box.reads for box in drawn.boxes], sizes)
    head = _head(drawn)
    width = max(placed.width, 90 * _LETTER, _LETTER * len(drawn.title)) + 2 * _MARGIN
    height = placed.height + _HEAD + 2 * _MARGIN
    left = (width - placed.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
        'monospace" font-size="10">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        head,
        f'<g transform="translate({left:.1f},{_HEAD + _MARGIN:.1f})">',
        *(_edge(points) for points in placed.edges),
    ]
    whole = drawn.weight
    for box, lines, size, corner in zip(drawn.boxes, texts, sizes, placed.corners, strict=True):
        parts.append(_box(box, lines, size, corner, whole))
    return "\n".join([*parts, "</g>", "</svg>", ""])


def page(drawn: Drawn) -> str:
    """Return an HTML page with the picture; it scrolls, and the browser can search its text."""
    title = _escaped(drawn.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{margin:0}main{overflow:auto;height:100vh}</style></head>\n"
        f"<body><main>\n{svg(drawn)}</main></body></html>\n"
    )


def amount(size: int) -> str:
    """Return a number of bytes in a readable form, such as 812 B, 3.1 kB or 45 MB."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.2g} {unit}"


def _head(drawn: Drawn) -> str:
    """Return the head of the picture: title, counts, and the colours of the kinds that occur."""
    kernels = [box for box in drawn.boxes if box.role == "kernel"]
    facts = f"{counted(len(kernels), 'kernel')}, {amount(drawn.weight)} of weights"
    parts = [
        f'<text x="{_MARGIN}" y="22" font-size="13" font-weight="bold">'
        f"{_escaped(drawn.title)}</text>",
        f'<text x="{_MARGIN}" y="40" fill="#57606a">{_escaped(facts)}</text>',
    ]
    x, counts = _MARGIN, Counter(box.kind for box in kernels)
    for kind in (*KINDS, OTHER):
        if counts[kind]:
            label = f"{kind} ({counts[kind]})"
            parts.append(
                f'<rect x="{x:.1f}" y="49" width="10" height="10" rx="2" fill="{COLOURS[kind]}"/>'
                f'<text x="{x + 14:.1f}" y="58">{label}</text>'
            )
            x += 14 + _LETTER * (len(label) + 3)
    return "\n".join(parts)


def _lines(box: Box) -> list[tuple[str, str]]:
    """Return the lines of a box as (kind, text); kinds are "name", "text" and "weight"."""
    lines = [("name", line) for line in _filled(box.lines, box.role == "kernel")]
    if box.result:
        lines.append(("text", _short(box.result, keep_end=False)))
    for weight in box.weights[:_MOST_WEIGHTS]:
        lines += [
            ("weight", _short(weight.name)),
            ("weight", f"  {weight.text}, {amount(weight.size)}"),
        ]
    rest = box.weights[_MOST_WEIGHTS:]
    if rest:
        size = sum(weight.size for weight in rest)
        lines.append(("weight", f"and {counted(len(rest), 'more weight')}, {amount(size)}"))
    return lines


def _filled(steps: Sequence[str], joined: bool) -> list[str]:
    """Return the steps in at most three lines, as few as possible; steps that do not fit are
    counted."""
    if not joined:
        return [_short(steps[0]), *(_short(step, keep_end=False) for step in steps[1:])]
    lines, left = [""], list(steps)
    while left:
        step = _short(left[0], keep_end=False)
        longer = f"{lines[-1]}, {step}" if lines[-1] else step
        if len(longer) > _COLUMNS - 8 and lines[-1]:
            if len(lines) == 3:
                lines[-1] += f", +{len(left)}"
                break
            lines.append(step)
        else:
            lines[-1] = longer
        left.pop(0)
    return lines


def _short(text: str, keep_end: bool = True) -> str:
    if len(text) <= _COLUMNS:
        return text
    return f"…{text[1 - _COLUMNS :]}" if keep_end else f"{text[: _COLUMNS - 1]}…"


def _size(box: Box, lines: Sequence[tuple[str, str]]) -> tuple[float, float]:
    longest = max(len(text) for _, text in lines)
    bar = 6.0 if box.weights else 0.0
    return longest * _LETTER + 2 * _PAD, len(lines) * _LINE + 2 * _PAD - 2 + bar


def _box(
    box: Box,
    lines: Sequence[tuple[str, str]],
    size: tuple[float, float],
    corner: tuple[float, float],
    whole: int,
) -> str:
    (width, height), (left, top) = size, corner
    colour = COLOURS[box.kind]
    ends = box.role != "kernel"
    parts = [
        f'<g transform="translate({left:.1f},{top:.1f})"><title>{_escaped(_tooltip(box))}</title>',
        f'<rect width="{width:.1f}" height="{height:.1f}" rx="{height / 2 if ends else 4:.1f}" '
        f'fill="{"#f3f4f6" if ends else "white"}" stroke="{colour}" stroke-width="1.2"/>',
    ]
    if not ends:
        parts.append(f'<rect width="5" height="{height:.1f}" rx="2" fill="{colour}"/>')
    for i, (kind, text) in enumerate(lines):
        style = {
            "name": ' font-weight="bold"',
            "text": ' fill="#57606a"',
            "weight": ' fill="#7a4b00"',
        }[kind]
        if ends:
            style = ' text-anchor="middle"' + (' font-weight="bold"' if i == 0 else "")
        x = width / 2 if ends else _PAD + 3
        y = _PAD + 8 + i * _LINE
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}"{style} xml:space="preserve">{_escaped(text)}</text>'
        )
    if box.weights and whole:
        share = min(1.0, box.weight / whole)
        room = width - 2 * _PAD
        parts.append(
            f'<rect x="{_PAD}" y="{height - 9:.1f}" width="{room:.1f}" height="4" fill="#eadfc8"/>'
            f'<rect x="{_PAD}" y="{height - 9:.1f}" width="{room * share:.1f}" height="4" '
            'fill="#b7791f"/>'
        )
    return "".join([*parts, "</g>"])


def _tooltip(box: Box) -> str:
    rows = [box.details or " ".join(box.lines), box.result, *map(_described, box.weights)]
    return "\n".join(row for row in rows if row)


def _described(weight: Weight) -> str:
    return f"{weight.name}: {weight.text}, {weight.size:,} bytes"


def _edge(points: Sequence[tuple[float, float]]) -> str:
    """Return an edge as a path: curved between layers, straight where it passes through a layer."""
    path = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for i, ((x, y), (u, v)) in enumerate(itertools.pairwise(points)):
        middle = (y + v) / 2
        curve = f"C{x:.1f},{middle:.1f} {u:.1f},{middle:.1f} {u:.1f},{v:.1f}"
        path.append(f"L{u:.1f},{v:.1f}" if i % 2 else curve)
    return f'<path d="{"".join(path)}" fill="none" stroke="#9aa4b2" stroke-width="1.1"/>'


def _escaped(text: str) -> str:
    return html.escape("\n".join(printable(line) for line in text.split("\n")))
