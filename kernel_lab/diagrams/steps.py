"""Converts a run to the data of the HTML stepper, which shows it step by step: elements, loops and
cache misses."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lab.diagrams.style import STORE, buffer_colours
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import LoopValues, Trace
from kernel_lab.trace.statistics import LINE, cache_misses

STEPS = 500_000  # the maximum number of steps
RUNS = 1_000_000  # the maximum number of stretches of neighbouring elements, over all steps
_WIDTH = 64  # cells in a row of a buffer that has no rows of its own
_CELL = 12.0  # the maximum edge length of an element's cell
GAP, TITLE = 12, 20  # space between buffers, and above each buffer for its name


def steps_of(trace: Trace, room: int, height: int, cache: int | None) -> tuple[dict[str, Any], int]:
    """Return a run's steps, and the number of steps that are left out for want of space.

    A step is one site's accesses at one time, by all workers together. It touches stretches of
    neighbouring elements, which are listed in the order of their addresses. `steps` has a list for
    each step: [site, accesses, first element, length, first element, length ...]. `values` has, for
    each step, the values of the loop variables around it. `misses` has an entry [step, line,
    evicted line or -1] for each miss of a cache of `cache` bytes. Raises LabUsageError for an empty
    trace.
    """
    scopes = np.array([buffer.scope for buffer in trace.buffers])[trace.buffer]
    shown = trace.select(scopes != "local") if (scopes != "local").any() else trace
    if not len(shown):
        raise LabUsageError(f"stepper: {trace.name} has no accesses to show")
    # Sort the accesses by step and then by element, so that stretches are contiguous.
    shown = shown.select(np.lexsort((shown.index, shown.site, shown.time)))
    new_step = np.ones(len(shown), bool)
    new_step[1:] = (np.diff(shown.time) != 0) | (np.diff(shown.site) != 0)
    new_run = new_step.copy()
    new_run[1:] |= np.diff(shown.index) > 1
    starts = np.flatnonzero(new_run)
    first = shown.index[starts]
    length = shown.index[np.append(starts[1:], len(shown)) - 1] - first + 1
    runs = np.stack([first, length], 1)
    bounds = np.append((np.cumsum(new_run) - 1)[new_step], len(starts))
    total = len(bounds) - 1
    shown_steps = min(total, STEPS, int(np.searchsorted(bounds[:-1], RUNS)))
    accesses = np.bincount(np.cumsum(new_step) - 1).tolist()
    sites = shown.site[new_step].tolist()
    used = np.unique(shown.buffer).tolist()
    around = _loops_around(shown)
    values = np.stack([loop.value[new_step] for loop in shown.loops] or [new_step[new_step]], 1)
    data = {
        "buffers": _placed([_grid(trace, number) for number in used], room, height),
        "sites": [
            [used.index(s.buffer) if s.buffer in used else 0, int(s.is_store), s.text, around[n]]
            for n, s in enumerate(trace.sites)
        ],
        "loops": [[loop.name, loop.extent] for loop in trace.loops],
        "steps": [
            [sites[n], accesses[n], *runs[bounds[n] : bounds[n + 1]].ravel().tolist()]
            for n in range(shown_steps)
        ],
        "values": [values[n, around[sites[n]]].tolist() for n in range(shown_steps)],
        "misses": [],
        "cache": 0,
        "line": LINE,
        "store": STORE,
    }
    if cache is not None:
        misses = cache_misses(trace, cache)
        step = np.searchsorted(shown.time[new_step], misses.time)
        rows = np.stack([step, misses.line, misses.thrown], 1)
        data |= {"cache": cache // LINE, "misses": rows[step < shown_steps].tolist()}
    return data, total - shown_steps


def _loops_around(trace: Trace) -> list[list[int]]:
    """Return, for each site, the loops around its accesses."""
    around: list[list[int]] = [[] for _ in trace.sites]
    for number, loop in enumerate(trace.loops):
        for site in np.unique(trace.site[loop.value != LoopValues.OUTSIDE]).tolist():
            around[site].append(number)
    return around


def _grid(trace: Trace, number: int) -> dict[str, Any]:
    buffer = trace.buffers[number]
    width = buffer.shape[-1] if len(buffer.shape) > 1 else min(buffer.size, _WIDTH)
    return {
        "name": buffer.name,
        "scope": buffer.scope,
        "size": buffer.size,
        "width": width,
        "rows": -(-buffer.size // width),
        "colour": buffer_colours(trace)[buffer.name],
        "base": buffer.base,
        "itemsize": buffer.itemsize,
    }


def _placed(grids: list[dict[str, Any]], room: int, height: int) -> list[dict[str, Any]]:
    """Return the buffers, each with its position (x, y) and the edge length of its cells, in a
    picture of width `room`.

    The operands and the result of a matmul are arranged as on paper: A to the left of C, B above
    it. Other buffers are laid out one after another in rows, with cells that are small enough for
    the picture to fit `height`.
    """
    if len(grids) == 3:
        a, b, c = grids
        if (a["rows"], b["width"], a["width"]) == (c["rows"], c["width"], b["rows"]):
            cell = min(
                _CELL,
                (room - GAP) / (a["width"] + b["width"]),
                1.5 * height / (b["rows"] + c["rows"]),
            )
            right, below = a["width"] * cell + GAP, b["rows"] * cell + GAP + TITLE
            places = [(0.0, below), (right, 0.0), (right, below)]
            return [
                grid | {"x": round(x, 2), "y": round(y + TITLE, 2), "cell": round(cell, 3)}
                for grid, (x, y) in zip(grids, places, strict=True)
            ]
    cell = _CELL
    while True:
        placed = _in_rows(grids, room, cell)
        if cell <= 0.5 or max(one["y"] + one["rows"] * one["cell"] for one in placed) <= height:
            return placed
        cell *= 0.95


def _in_rows(grids: Sequence[dict[str, Any]], room: int, cell: float) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    x, y, low = 0.0, 0.0, 0.0
    for grid in grids:
        edge = min(cell, room / grid["width"])
        width = grid["width"] * edge
        if x > 0 and x + width > room:
            x, y, low = 0.0, low + GAP, 0.0
        placed.append(grid | {"x": round(x, 2), "y": round(y + TITLE, 2), "cell": round(edge, 3)})
        x += max(width, 70.0) + GAP
        low = max(low, y + TITLE + grid["rows"] * edge)
    return placed


def packed(runs: list[dict[str, Any]]) -> str:
    """Return the runs as text for a page.

    Elements and loop values are written as differences from the same site's previous step, and
    cache misses as differences from the previous miss. In a loop the differences repeat, so they
    compress well.
    """
    text = json.dumps([_flat(run) for run in runs], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> list[dict[str, Any]]:
    """Return the runs in `text`, which `packed` wrote."""
    return [_deep(run) for run in json.loads(zlib.decompress(base64.b64decode(text)))]


def _flat(run: dict[str, Any]) -> dict[str, Any]:
    last: dict[int, list[int]] = {}
    flat: list[list[int]] = []
    for (site, accesses, *places), values in zip(run["steps"], run["values"], strict=True):
        now = [accesses, len(places), *values, *places]
        before = last.get(site, [])
        before += [0] * (len(now) - len(before))
        flat.append([site, *(new - old for new, old in zip(now, before, strict=False))])
        last[site] = now
    misses = np.diff(np.array(run["misses"], np.int64).reshape(-1, 3), axis=0, prepend=0)
    return run | {
        "steps": [entry for one in flat for entry in one],
        "values": [],
        "misses": misses.ravel().tolist(),
    }


def _deep(run: dict[str, Any]) -> dict[str, Any]:
    last: dict[int, list[int]] = {}
    entries = iter(run["steps"])
    steps, values = [], []
    for site in entries:
        before = last.get(site, []) + [0] * 2
        loops = len(run["sites"][site][3])
        accesses, places = (before[n] + next(entries) for n in range(2))
        before += [0] * (2 + loops + places - len(before))
        rest = [before[2 + n] + next(entries) for n in range(loops + places)]
        last[site] = [accesses, places, *rest]
        steps.append([site, accesses, *rest[loops:]])
        values.append(rest[:loops])
    misses = np.array(run["misses"], np.int64).reshape(-1, 3).cumsum(axis=0).tolist()
    return run | {"steps": steps, "values": values, "misses": misses}
