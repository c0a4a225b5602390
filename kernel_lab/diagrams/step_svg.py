"""Draws one step of a run as an SVG, for print and for pages without JavaScript."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import Any

TRAIL = 48  # the least number of earlier steps that are shown fading
_SHADES = 4  # shades of the trail
_TEXT = 13


def step_svg(run: dict[str, Any], now: int, room: int) -> str:
    """Return the <svg> of a run after step `now`, `room` wide. `run` comes from `steps_of`."""
    height = max(grid["y"] + grid["rows"] * grid["cell"] for grid in run["buffers"]) + 2
    parts = [part for grid in run["buffers"] for part in _frame(grid)]
    for grid, elements in _held(run, now):
        parts += _cells(grid, elements, grid["colour"], "held", 0.28)
    shades: dict[tuple[int, bool, float], set[int]] = {}
    for (number, element), (is_store, opacity) in _trail(run, now).items():
        shades.setdefault((number, is_store, opacity), set()).add(element)
    for (number, is_store, opacity), elements in shades.items():
        grid = run["buffers"][number]
        colour = run["store"] if is_store else grid["colour"]
        parts += _cells(grid, elements, colour, "now" if opacity == 1 else "trail", opacity)
    return (
        f'<svg class="still" viewBox="0 0 {room} {height:.0f}" role="img" aria-label="'
        f'{html.escape(run["name"] or "the run")} after step {now + 1}">{"".join(parts)}</svg>'
    )


def lines_held(run: dict[str, Any], now: int) -> set[int]:
    """Return the lines in the cache after a step."""
    held: set[int] = set()
    for step, line, thrown in run["misses"]:
        if step > now:
            break
        held.discard(thrown)
        held.add(line)
    return held


def _frame(grid: dict[str, Any]) -> Iterator[str]:
    x, y, cell = grid["x"], grid["y"], grid["cell"]
    scope = "" if grid["scope"] == "global" else f" ({grid['scope']})"
    yield f'<rect x="{x}" y="{y - 14:.2f}" width="9" height="9" fill="{grid["colour"]}"/>'
    yield f'<text x="{x + 13}" y="{y - 5:.2f}" font-size="{_TEXT}" fill="currentColor">'
    yield f"{html.escape(grid['name'] + scope)}</text>"
    width, height = grid["width"] * cell, grid["rows"] * cell
    yield f'<rect x="{x}" y="{y}" width="{width:.2f}" height="{height:.2f}"'
    yield ' fill="currentColor" opacity="0.12"/>'


def _held(run: dict[str, Any], now: int) -> Iterator[tuple[dict[str, Any], set[int]]]:
    for line in sorted(lines_held(run, now)):
        for grid in run["buffers"]:
            first = (line * run["line"] - grid["base"]) // grid["itemsize"]
            end = first + run["line"] // grid["itemsize"]
            elements = set(range(max(0, first), min(grid["size"], end)))
            if grid["scope"] == "global" and elements:
                yield grid, elements


def _trail(run: dict[str, Any], now: int) -> dict[tuple[int, int], tuple[bool, float]]:
    """Map (buffer, element) to whether it was stored, and to the opacity with which it is drawn."""
    found = {}
    trail = max(TRAIL, round(len(run["steps"]) / 200))
    for step in range(max(0, now - trail), now + 1):
        site, _, *places = run["steps"][step]
        shade = 1 + (_SHADES * (step - now + trail)) // (trail + 1)
        opacity = 1.0 if step == now else 0.6 * shade / _SHADES
        number, is_store = run["sites"][site][:2]
        for first, length in zip(places[::2], places[1::2], strict=True):
            for element in range(first, first + length):
                found[number, element] = (bool(is_store), round(opacity, 2))
    return found


def _cells(
    grid: dict[str, Any], elements: Iterable[int], colour: str, kind: str, opacity: float
) -> Iterator[str]:
    """Yield a rectangle for each stretch of neighbours in a row."""
    cell, width = grid["cell"], grid["width"]
    runs: list[list[int]] = []
    for element in sorted(elements):
        if runs and element == sum(runs[-1]) and element % width:
            runs[-1][1] += 1
        else:
            runs.append([element, 1])
    for first, length in runs:
        x, y = grid["x"] + first % width * cell, grid["y"] + first // width * cell
        yield f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{length * cell:.2f}"'
        yield f' height="{cell:.2f}" fill="{colour}" opacity="{opacity:g}"/>'
