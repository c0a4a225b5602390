"""The course's pages as executed Jupyter notebooks: `python -m docs.course.notebooks OUT`.

A page is Markdown. A fenced block marked `python` or `sh` is code; words after the mark name what
it needs (`nvcc`, `torch`). In a python block a comment `# -> text` stands for one line of output;
the tests run every block and compare. The text between <details> and </details>, the answer to an
exercise, is folded.

The notebooks need the extra `guide`. They are executed in a kernel named `needle`, which runs the
Python of this environment and is installed there, so that JupyterLab finds it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat import NotebookNode

COURSE = Path(__file__).parent
KERNEL = "needle"
_SECONDS = 600  # time limit of a cell
_FENCE = re.compile(r"^```(python|sh)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"# -> ?(.*)$", re.MULTILINE)
_PICTURE = re.compile(r"!\[([^]]*)\]\((pictures/[^)]+\.svg)\)")
_FILE_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!https?:|attachment:|#)[^)]+\)")
_SHELL = "%%bash -e\n"


class NotExecuted(Exception):
    """The code of a page raised an error; the message names the page, cell, line and error."""


@dataclass(frozen=True)
class Cell:
    """A piece of a page: `kind` is "markdown", "python" or "sh", `line` its first line."""

    kind: str
    text: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def output(self) -> list[str]:
        """The lines that the cell says it prints."""
        return _OUTPUT.findall(self.text)


def pages() -> list[Path]:
    """Return the files of the lessons and of the two pages after them, in the order of reading."""
    after = ("from-kernel-to-model", "search")
    return [*sorted(COURSE.glob("[0-9][0-9]-*.md")), *(COURSE / f"{name}.md" for name in after)]


def cells(path: Path) -> list[Cell]:
    """Return a page's text and code, in order; together they are the whole file."""
    source = path.read_text()
    found, end = [], 0
    for match in _FENCE.finditer(source):
        _add_text(found, source, end, match.start())
        language, needs, code = match.groups()
        line = source.count("\n", 0, match.start(3)) + 1
        found.append(Cell(language, code.rstrip("\n"), line, tuple(needs.split())))
        end = match.end()
    _add_text(found, source, end, len(source))
    return found


def _add_text(found: list[Cell], source: str, start: int, end: int) -> None:
    text = source[start:end].strip("\n")
    if text:
        found.append(Cell("markdown", text, source.count("\n", 0, start) + 1))


def notebook(path: Path) -> NotebookNode:
    """Return the page in Jupyter's format, without outputs."""
    from nbformat import v4

    made, folded = v4.new_notebook(), False
    made.metadata.kernelspec = {"display_name": _title(), "language": "python", "name": KERNEL}
    made.metadata.language_info = {"name": "python"}
    for number, cell in enumerate(cells(path)):
        identity = hashlib.sha256(f"{path.name}/{number}".encode()).hexdigest()[:8]
        if cell.kind == "markdown":
            text, folded = _unfolded(cell.text, folded)
            if text:
                text, attachments = _standalone(text, path.parent)
                made.cells.append(v4.new_markdown_cell(text, id=identity, **attachments))
            continue
        metadata: dict[str, Any] = {"line": cell.line}
        if cell.needs:
            metadata["needs"] = list(cell.needs)
        if folded:
            metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
        text = f"{_SHELL}{cell.text}" if cell.kind == "sh" else cell.text
        made.cells.append(v4.new_code_cell(text, id=identity, metadata=metadata))
    return made


def _standalone(text: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a cell's text and attachments for a notebook that stands alone: pictures become
    attachments, and links to files become plain text."""
    files = {Path(file).name: folder / file for _, file in _PICTURE.findall(text)}
    text = _PICTURE.sub(lambda match: f"![{match[1]}](attachment:{Path(match[2]).name})", text)
    text = _FILE_LINK.sub(r"\1", text)
    if not files:
        return text, {}
    encoded = {
        name: {"image/svg+xml": base64.b64encode(file.read_bytes()).decode()}
        for name, file in files.items()
    }
    return text, {"attachments": encoded}


def _unfolded(text: str, folded: bool) -> tuple[str, bool]:
    """Return a cell's text, with each answer folded by itself, and whether the cell ends inside an
    answer, which may continue in other cells. `folded` says whether the cell begins inside one."""
    parts = []
    for piece in re.split(r"(</?details>)", text):
        if piece in ("<details>", "</details>"):
            folded = piece == "<details>"
            continue
        body = re.sub(r"<summary>.*?</summary>", "", piece).strip("\n")
        if folded and body != piece.strip("\n"):
            parts.append("*The answer is folded below.*")
        if body and folded:
            body = f"<details><summary>Answer</summary>\n\n{body}\n\n</details>"
        if body:
            parts.append(body)
    return "\n\n".join(parts), folded


def lacking(needs: list[str] | tuple[str, ...]) -> list[str]:
    """Return the requirements among `needs` that are missing here."""
    here = {"nvcc": shutil.which("nvcc"), "torch": importlib.util.find_spec("torch")}
    return [need for need in needs if not here[need]]


def install_kernel(prefix: Path | str = sys.prefix) -> None:
    """Install the kernel into an environment, by default into this one.

    It runs this environment's Python, and its shell cells find this environment's programs.
    """
    from ipykernel.kernelspec import install

    path = f"{Path(sys.executable).parent}{os.pathsep}${{PATH}}"
    install(prefix=str(prefix), kernel_name=KERNEL, display_name=_title(), env={"PATH": path})


def _title() -> str:
    return f"needle ({Path(sys.prefix).name})"


def executed(path: Path) -> NotebookNode:
    """Return the page with the outputs of its code, run in the kernel and an empty folder.

    A cell whose requirements are missing here says so in place of an output. Raises NotExecuted.
    """
    import nbclient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    made = notebook(path)
    with tempfile.TemporaryDirectory(prefix="needle-course-") as folder:
        environment = {**os.environ, "NO_COLOR": "1", "NEEDLE_CACHE_DIR": f"{folder}/cache"}
        client = nbclient.NotebookClient(
            made,
            timeout=_SECONDS,
            kernel_name=KERNEL,
            coalesce_streams=True,
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],
        )
        with client.setup_kernel(cwd=folder, env=environment):
            for number, cell in enumerate(made.cells):
                missing = lacking(cell.metadata.get("needs", ()))
                if cell.cell_type == "markdown" or missing:
                    cell.update(_left_out(missing) if missing else {})
                    continue
                try:
                    client.execute_cell(cell, number)
                except CellExecutionError as error:
                    why = f"{error.ename}: {error.evalue}"
                except (CellTimeoutError, DeadKernelError) as error:
                    why = str(error).strip().splitlines()[0]
                else:
                    continue
                where = f"{path.name}, cell {number + 1} (line {cell.metadata.line})"
                raise NotExecuted(f"{where}: {why}")
    return made


def _left_out(missing: list[str]) -> dict[str, Any]:
    from nbformat import v4

    text = f"Not executed: there was no {' and no '.join(missing)}.\n"
    return {"outputs": [v4.new_output("stream", name="stderr", text=text)]}


def write(folder: Path) -> dict[Path, NotebookNode]:
    """Execute every page, several at once, and write the notebooks into `folder`, each named after
    its page; return the notebooks by page. Raises NotExecuted."""
    import nbformat

    from needle_runtime.process.threads import available_cores

    install_kernel()
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(available_cores()) as pool:
        made = dict(zip(pages(), pool.map(executed, pages()), strict=True))
    for page, each in made.items():
        nbformat.write(each, folder / f"{page.stem}.ipynb")
    return made


def main(arguments: list[str] | None = None) -> None:
    """Write the notebooks into the folder of the command line, and say where each is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write to")
    folder = parser.parse_args(arguments).out
    try:
        made = write(folder)
    except ImportError as error:
        sys.exit(f"notebooks need Jupyter ({error}): make guide installs it, or .[guide]")
    except NotExecuted as error:
        sys.exit(str(error))
    for page in made:
        sys.stdout.write(f"{folder / page.stem}.ipynb\n")


if __name__ == "__main__":
    main()
