"""The site's first page: `home.md`, with code and figures from the pages that own them.

A comment in `home.md` stands for a part of another page:

- `<!-- README code: Ten lines -->` for the first block of code in the section "Ten lines" of
  README.md,
- `<!-- README table: Measured -->` for the first table in the section "Measured" of README.md,
- `<!-- ladder: Matrix product, 512 x 512 x 512 -->` for a bar chart of the first table in that
  section of the lab's results.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs.website.pages import ROOT

HOME = "docs/website/home.md"
_LAB = ROOT / "docs/results/2026-11-21-lab-cpu.md"
_PART = re.compile(r"^<!-- (README code|README table|ladder): (.+) -->$", re.MULTILINE)
_CODE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(?:^\|.*\|$\n?)+", re.MULTILINE)
# The change that each step of the matrix product makes.
_STEPS = {
    "naive": "three loops, as the definition says",
    "tile": "blocks that stay in the first-level cache",
    "vectorise": "vectors of 16 numbers",
    "parallel": "both cores",
    "cache_write": "a block is summed in a small buffer and written once",
    "register_tile": "the block is small enough for the registers",
    "pack": "B is copied into panels, which are read front to back",
    "cache_block": "a block of A stays in the second-level cache",
}
# The libraries to compare with.
_PEERS = ("NumPy", "NumPy, tuned", "PyTorch")


def text() -> str:
    """Return the page's Markdown. Raises ValueError if another page lacks a named part."""
    return _PART.sub(lambda found: _part(*found.groups()), (ROOT / HOME).read_text("utf-8"))


def _part(kind: str, title: str) -> str:
    if kind == "ladder":
        return _ladder(_matched(_TABLE, _LAB, title))
    pattern = _CODE if kind == "README code" else _TABLE
    return _matched(pattern, ROOT / "README.md", title).rstrip()


def _matched(pattern: re.Pattern[str], page: Path, title: str) -> str:
    """Return the first match in the section `title` of a page."""
    heading = rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)"
    section = re.search(heading, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found = pattern.search(section[1]) if section else None
    if found is None:
        raise ValueError(f"{HOME}: {page.name} has no such code or table in a section {title!r}")
    return found[0]


def _ladder(table: str) -> str:
    """Return an HTML table with a bar for each step and each library, from a Markdown table."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    rows = {name: (speed, share) for name, _, _, speed, *_, share in cells}
    steps = [_bar(f"<code>{n}</code>", why, *rows[n], "step") for n, why in _STEPS.items()]
    peers = [_bar(name, "", *rows[name], "peer") for name in _PEERS]
    head = "<thead><tr><th>step</th><th>GFLOP/s</th></tr></thead>"
    return "\n".join(
        ['<table class="ladder">', head, "<tbody>", *steps, *peers, "</tbody></table>"]
    )


def _bar(name: str, why: str, speed: str, share: str, kind: str) -> str:
    label = f"{name} <small>{why}</small>" if why else name
    bar = f'<i style="--share: {float(share) / 100:.3f}"></i> {float(speed):.3g}'
    return f'<tr class="{kind}"><th scope="row">{label}</th><td>{bar}</td></tr>'
