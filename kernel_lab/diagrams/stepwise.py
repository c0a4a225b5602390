"""A stepwise view for a page: the buffers as grids, in which a slider moves through time."""

from __future__ import annotations

import html
import json
from pathlib import Path

import numpy as np

from kernel_lab.diagrams.style import PALETTE, STORE
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import Trace

STEPS = 3000  # at most
ACCESSES = 20_000  # at most, in all these steps together
_WIDTH = 64  # cells in a row of a buffer that has no rows of its own
_SCRIPT = Path(__file__).with_name("stepwise.js")


def stepper(trace: Trace, title: str, note: str = "") -> str:
    """Return an HTML <figure> that steps through the run; a page needs `script()` once after it.

    It shows the run from its beginning, up to 3,000 steps and 20,000 accesses, and says so. Local
    memory is left out if there is other memory. Raises LabUsageError for an empty trace.
    """
    scopes = np.array([buffer.scope for buffer in trace.buffers])[trace.buffer]
    shown = trace.select(scopes != "local") if (scopes != "local").any() else trace
    if not len(shown):
        raise LabUsageError(f"stepper: {trace.name} has no access to show")
    steps, first = np.unique(shown.time, return_index=True)
    last = min(len(steps), STEPS, int(np.searchsorted(first, ACCESSES, side="right")))
    end = int(first[last]) if last < len(steps) else len(shown)
    part = shown.select(np.arange(end))
    used = np.unique(part.buffer)
    place = {int(number): position for position, number in enumerate(used.tolist())}
    data = {
        "buffers": [_grid(trace, number) for number in used.tolist()],
        "sites": [
            [place.get(site.buffer, 0), int(site.is_store), site.text] for site in trace.sites
        ],
        # Each step: the site, then the elements its threads and lanes touch.
        "steps": [
            [int(part.site[start]), *part.index[start:stop].tolist()]
            for start, stop in zip(first[:last], [*first[1:last], end], strict=True)
        ],
        "load": PALETTE[0],
        "store": STORE,
    }
    whole = "" if last == len(steps) else f"; the first {last:,} of {len(steps):,} steps"
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<figure class="stepper"><figcaption><b>{html.escape(title)}</b><br>'
        f'<span class="muted">{html.escape(note + whole)}</span></figcaption>'
        '<div class="controls"><button type="button">play</button>'
        f'<input type="range" min="0" max="{last - 1}" value="0" aria-label="time step">'
        "<output></output></div><canvas></canvas>"
        f'<script type="application/json">{text}</script></figure>'
    )


def _grid(trace: Trace, number: int) -> dict[str, object]:
    buffer = trace.buffers[number]
    width = buffer.shape[-1] if len(buffer.shape) > 1 else min(buffer.size, _WIDTH)
    return {"name": buffer.name, "scope": buffer.scope, "size": buffer.size, "width": width}


def script() -> str:
    """The <script> element that activates all steppers of a page."""
    return f"<script>\n{_SCRIPT.read_text(encoding='utf-8')}</script>"
