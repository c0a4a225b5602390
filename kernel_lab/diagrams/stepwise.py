"""A stepwise view for a page: the buffers as grids, in which a slider moves through time."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lab.diagrams.style import STORE, buffer_colours
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace
from kernel_lab.trace.statistics import LINE

STEPS = 500_000  # at most
RUNS = 1_000_000  # of neighbouring elements, at most, in all these steps together
_WIDTH = 64  # cells in a row of a buffer that has no rows of its own
_SCRIPT = Path(__file__).with_name("stepwise.js")


def stepper(trace: Trace, title: str, note: str = "") -> str:
    """Return an HTML <figure> that steps through the run; a page needs `script()` once after it.

    It shows the whole run; of one longer than STEPS or with more than RUNS, the beginning, and says
    so. Local memory is left out if there is other memory. Raises LabUsageError for an empty trace.
    """
    return side_by_side({"": trace}, title, note)


def side_by_side(
    traces: Mapping[str, Trace], title: str, note: str = "", cache: int | None = None
) -> str:
    """Return an HTML <figure> that steps through several runs at once, at the same number of steps.

    `traces` are the runs by name. With `cache` (bytes) each run has an LRU cache of that size for
    its global memory: the lines in it are outlined, and its misses counted. A cache is one
    worker's, so the traces must have been made with one core; LabUsageError says so otherwise, and
    for an empty trace.
    """
    runs, most = [], 0
    for name, trace in traces.items():
        if cache is not None and (trace.device != "cpu" or trace.worker.any()):
            raise LabUsageError(f"side_by_side: {name} has several workers, and a cache has one")
        data, taken, total = steps_of(trace)
        most = max(most, taken)
        runs.append(data | {"name": name, "cache": cache // LINE if cache else 0, "line": LINE})
        if taken < total:
            note += f"; {name} the first {taken:,} of {total:,} steps".replace(";  the", "; the")
    text = json.dumps(runs, separators=(",", ":")).encode()
    packed = base64.b64encode(zlib.compress(text)).decode()
    views = "".join(
        f"<div><b>{html.escape(name)}</b> <output></output><canvas></canvas></div>"
        for name in traces
    )
    return (
        f'<figure class="stepper" tabindex="0"><figcaption><b>{html.escape(title)}</b><br>'
        f'<span class="muted">{html.escape(note)}</span></figcaption>'
        '<div class="controls"><button type="button">play</button>'
        f'<input type="range" min="0" max="{most - 1}" value="0" aria-label="time step">'
        '<span class="muted">arrows: a step; with shift: many; space: play</span></div>'
        f'<div class="views">{views}</div>'
        f'<script type="application/octet-stream">{packed}</script></figure>'
    )


def unpacked(figure: str) -> Any:
    """The data in a stepper's <figure>: those of `steps_of` for each run in it."""
    text = figure.rpartition('octet-stream">')[2].partition("<")[0]
    return json.loads(zlib.decompress(base64.b64decode(text)))


def steps_of(trace: Trace) -> tuple[dict[str, Any], int, int]:
    """What the script draws, the number of steps in it, and that of the whole run.

    A step is [site, accesses, then the first element and the length of each run of neighbouring
    elements]. All workers' accesses at one time are one step for each site.
    """
    scopes = np.array([buffer.scope for buffer in trace.buffers])[trace.buffer]
    shown = trace.select(scopes != "local") if (scopes != "local").any() else trace
    if not len(shown):
        raise LabUsageError(f"stepper: {trace.name} has no access to show")
    # An access's step, then its element: the order of the runs.
    order = np.lexsort((shown.index, shown.site, shown.time))
    time, site, index = shown.time[order], shown.site[order], shown.index[order]
    new_step = np.ones(len(order), bool)
    new_step[1:] = (np.diff(time) != 0) | (np.diff(site) != 0)
    new_run = new_step.copy()
    new_run[1:] |= np.diff(index) > 1
    step, run = np.cumsum(new_step) - 1, np.cumsum(new_run) - 1
    first_run = run[new_step]
    total = len(first_run)
    taken = min(total, STEPS, int(np.searchsorted(first_run, RUNS)))
    ends = np.append(np.flatnonzero(new_run)[1:], len(order))
    low, length = index[new_run], index[ends - 1] - index[new_run] + 1
    accesses, sites = np.bincount(step), site[new_step]
    bounds = np.append(first_run, run[-1] + 1)
    used = np.unique(shown.buffer)
    place = {int(number): position for position, number in enumerate(used.tolist())}
    data = {
        "buffers": [_grid(trace, number) for number in used.tolist()],
        "sites": [
            [place.get(site.buffer, 0), int(site.is_store), site.text] for site in trace.sites
        ],
        "steps": [
            [
                int(sites[n]),
                int(accesses[n]),
                *np.stack([low, length], 1)[bounds[n] : bounds[n + 1]].ravel().tolist(),
            ]
            for n in range(taken)
        ],
        "loops": [trace.counters.get(int(when), "") for when in time[new_step][:taken]],
        "store": STORE,
    }
    return data, taken, total


def _grid(trace: Trace, number: int) -> dict[str, object]:
    buffer = trace.buffers[number]
    width = buffer.shape[-1] if len(buffer.shape) > 1 else min(buffer.size, _WIDTH)
    colour = buffer_colours(trace)[buffer.name]
    return {
        "name": buffer.name,
        "scope": buffer.scope,
        "size": buffer.size,
        "width": width,
        "colour": colour,
        "base": buffer.base,
        "itemsize": buffer.itemsize,
    }


def script() -> str:
    """The <script> element that activates all steppers of a page."""
    return f"<script>\n{_SCRIPT.read_text(encoding='utf-8')}</script>"
