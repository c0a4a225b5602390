"""Write the lab's reports of all ladders, untimed: schedules, code, and pictures of traces."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kernel_lab import registry
from needle_runtime.process.threads import available_cores

PICTURED = 3  # rungs of a report that get pictures; drawing takes most of the time
_BACK = '<p><a href="../index.html">All ladders</a> · <a href="../../index.html">needle</a></p>'


def index() -> str:
    """Return the page that lists the reports, in Markdown."""
    lines = [
        "# The lab's reports",
        "",
        "Each page shows one ladder: its rungs with their reasons, the code of each schedule and"
        " its changes, the compiler's output, and pictures of the memory accesses of up to three"
        " rungs. The [atlas](../atlas/index.md) explains the pictures, and the table of a GPU"
        " ladder's registers, occupancy, sectors and banks. The pages have no times, since times"
        " hold only for the machine that measured them. To make such a page with the times of your"
        " machine, run"
        " `python -m kernel_lab gemm -d cpu --peers --report DIR`.",
        "",
        '<ul class="reports">',
    ]
    for (name, device), ladder in registry.LADDERS.items():
        kind = {"cpu": "CPU", "cuda": "GPU"}[device]
        lines.append(
            f'<li><a href="{name}-{device}/index.html"><b>{name}</b>, {kind}</a><br>'
            f"{ladder.workload.title}, {len(ladder.rungs)} rungs</li>"
        )
    return "\n".join([*lines, "</ul>", ""])


def write(out: Path) -> None:
    """Write a report of every ladder into OUT/NAME-DEVICE/, on all cores at once."""
    context = multiprocessing.get_context("spawn")  # each process has its own compiler
    with ProcessPoolExecutor(available_cores(), mp_context=context) as pool:
        waiting = [
            pool.submit(write_report, name, device, out / f"{name}-{device}")
            for name, device in sorted(registry.LADDERS, key=_rungs, reverse=True)
        ]
        for each in waiting:
            each.result()


def _rungs(key: tuple[str, str]) -> int:
    return len(registry.LADDERS[key].rungs)


def write_report(name: str, device: str, folder: Path) -> None:
    """Write one report, with links back to the site, into a folder. Run this in a separate
    process: it sets `report.PICTURED`, the number of rungs with pictures."""
    from kernel_lab import report
    from kernel_lab.run import Request, run

    report.PICTURED = PICTURED
    request = Request(workload=name, device=device, timed=False, static=device == "cuda")
    page = report.write(run(request), folder)
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<main>", f"<main>\n{_BACK}", 1), encoding="utf-8")
    shutil.rmtree(folder / "pictures")  # the page contains the pictures
