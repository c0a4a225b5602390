"""The pictures that the guide's code draws, each after the block that draws it.

The chapters that draw are executed like in the tests, in a folder of their own; every picture that
a block writes there becomes a picture of the page, and every stepper, a page of its own there,
becomes a part of it.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from docs.guide import notebooks
from kernel_lab.diagrams import stepwise
from kernel_lab.diagrams.style import embedded
from needle_tvm.process.threads import available_cores

FOLDER = "drawn"  # beside the chapters
_STEPPER = re.compile(r'<figure class="stepper".*?</figure>', re.DOTALL)


def drawn(chapters: list[Path], out: Path) -> dict[Path, str]:
    """The texts of the chapters whose code draws, with links to pictures in OUT/CHAPTER/."""
    drawing = [chapter for chapter in chapters if "kernel_lab.diagrams" in chapter.read_text()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(available_cores(), mp_context=context) as pool:
        texts = list(pool.map(_drawn, drawing, [out / chapter.stem for chapter in drawing]))
    return dict(zip(drawing, texts, strict=True))


def _drawn(chapter: Path, out: Path) -> str:
    """A chapter's text with its pictures, which are written into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    lines = chapter.read_text(encoding="utf-8").split("\n")
    after: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        namespace = {"__name__": "__main__"}
        for cell in notebooks.cells(chapter):
            if cell.kind != "python" or cell.needs:
                continue
            there = set(Path(folder).iterdir())
            code = compile("\n" * (cell.line - 1) + cell.text, str(chapter), "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)
            end = cell.line + len(cell.text.split("\n"))  # the line of the closing fence
            after[end] = []
            for file in sorted(set(Path(folder).iterdir()) - there):
                if file.suffix == ".html":
                    steppers = _STEPPER.findall(file.read_text(encoding="utf-8"))
                    after[end] += [
                        stepper.replace("<figure", "\n<figure data-search-exclude", 1)
                        for stepper in steppers
                    ]
                elif file.suffix == ".svg":
                    # Part of the page, so that its text has the page's size and colour.
                    svg = embedded(file.read_text(encoding="utf-8"))
                    label = f'role="img" aria-label="{file.stem}: accesses" data-search-exclude'
                    whole = " ".join(svg.replace("<svg", f"<svg {label}", 1).split())
                    after[end].append(f'\n<figure class="drawn">{whole}</figure>')
                elif file.suffix == ".png":
                    shutil.copyfile(file, out / file.name)
                    link = f"![{file.stem}: accesses]({FOLDER}/{chapter.stem}/{file.name})"
                    after[end].append(f"\n{link}{{ loading=lazy }}")
        os.chdir("/")
    made = []
    for number, line in enumerate(lines, 1):
        made += [line, *after.get(number, ())]
    if any("stepper" in part for parts in after.values() for part in parts):
        made += ["", stepwise.script()]
    return "\n".join(made)
