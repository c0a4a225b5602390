"""Run every lesson of the gallery, each in its own process, and print a table of the results.

Writes gallery.json and the contact sheet gallery.png beside the lessons' files. The exit code is
1 if a lesson fails or is no better than its baseline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
LESSONS = (
    ("mlp",), ("cnn",), ("resnet",), ("text", "--cell", "lstm"), ("text", "--cell", "gru"),
    ("state_space",), ("transformer_sort",), ("vit",), ("unet",), ("vae",), ("gan",),
    ("diffusion",), ("gnn",), ("reinforce",), ("shipped_step",),
)  # fmt: skip


def name_of(lesson: tuple[str, ...]) -> str:
    """Return the name of a lesson's files: the name of its script, and of its cell if any."""
    return "_".join([lesson[0], *lesson[2:]])


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table("model", "parameters", "trained", "compiled", "metric", "score", "baseline")
    shown.add_column("library")
    shown.add_column("differs by")
    for column in shown.columns[1:]:
        column.justify = "right"
    for result in results:
        shown.add_row(
            result["model"],
            f"{result['parameters']:,}",
            f"{result['train_seconds']:.1f} s",
            f"{result['compile_seconds']:.1f} s",
            result["metric"],
            f"{result['score']:.4g}",
            f"{result['baseline']:.4g}",
            f"{result['library_bytes'] / 1000:.0f} kB",
            f"{result['max_difference']:.1e}",
        )
    return shown


def contact_sheet(out: Path, names: list[str]) -> Figure:
    """Return all pictures on one sheet, five in a row."""
    rows = -(-len(names) // 5)
    figure = Figure(figsize=(18, 2.8 * rows), dpi=80, layout="constrained")
    for axes in figure.subplots(rows, 5, squeeze=False).flat:
        axes.set_axis_off()
    for axes, name in zip(figure.axes, names, strict=False):
        axes.imshow(imread(out / f"{name}.png"))
        axes.set_title(name)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/gallery"), help="folder of results")
    parser.add_argument("--steps", help="training steps of each lesson (the lesson's own)")
    options = parser.parse_args()
    shared = ["--out", str(options.out)] + (["--steps", options.steps] if options.steps else [])
    results, failed = [], []
    for lesson in LESSONS:
        command = [sys.executable, str(HERE / f"{lesson[0]}.py"), *lesson[1:], *shared]
        if subprocess.run(command).returncode:
            failed.append(name_of(lesson))
        else:
            text = (options.out / f"{name_of(lesson)}.json").read_text()
            results.append(json.loads(text))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gallery.json").write_text(json.dumps(results, indent=1) + "\n")
    if results:
        sheet = contact_sheet(options.out, [found["model"] for found in results])
        sheet.savefig(options.out / "gallery.png")
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table(results))
    worse = [found["model"] for found in results if not found["beats_baseline"]]
    for text, names in (("failed", failed), ("no better than the baseline", worse)):
        if names:
            Console(stderr=True).print(f"{text}: {', '.join(names)}", style="red")
    return 1 if failed or worse else 0


if __name__ == "__main__":
    sys.exit(main())
