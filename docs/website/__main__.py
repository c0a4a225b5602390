"""The course, the atlas, the documents, the reference and the lab's reports as one static site.

`python -m docs.website OUT [--no-lab]` writes the site into the folder OUT; open its index.html in
a browser. The command needs the extras `guide` and `site`. If links lead nowhere, or pages would
fetch something from another machine, it exits with an error, one line for each fault.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from docs import reference
from docs.course import notebooks
from docs.website import atlas, check, compiler, figures, home, lab
from docs.website.normal import normal
from docs.website.pages import ROOT, Pages
from kernel_lab import registry

COURSE = "docs/course"
# The tabs at the top and their pages, in order; pages that they link to are on the site as well.
_TABS: dict[str, list[str]] = {
    "Home": [home.HOME],
    "Learn": [
        f"{COURSE}/README.md",
        *(f"{COURSE}/{path.name}" for path in notebooks.pages()),
        f"{COURSE}/glossary.md",
        f"{COURSE}/faq.md",
    ],
    "Use": [
        "README.md",
        "docs/coming-from-pytorch.md",
        "docs/coming-from-the-course.md",
        "docs/layers.md",
        "docs/dtypes.md",
        "docs/jit.md",
        "docs/sizes.md",
        "docs/loops.md",
        "docs/several-processes.md",
        "docs/pytorch.md",
        "docs/onnx.md",
        "docs/deployment.md",
        "docs/ship-an-existing-model.md",
        "docs/c-and-cpp.md",
        "docs/cross-compiling.md",
        "docs/tuning.md",
        "docs/gpu.md",
        "gallery/README.md",
    ],
    "Reference": [
        "docs/commands.md",
        "docs/primitives.md",
        "docs/published-figures.md",
        "docs/compatibility.md",
        "CHANGELOG.md",
    ],
    "Results": ["docs/performance.md"],
    "Contribute": ["CONTRIBUTING.md", "docs/architecture.md", "docs/campaign.md", "SECURITY.md"],
}
_ATLAS = [f"{atlas.ATLAS}/README.md", *map(atlas.page_of, registry.LADDERS.values())]
_MARK = "search/search_index.json"  # a file that only a built site has


def main(arguments: list[str] | None = None) -> None:
    """Build the site (see the module docstring)."""
    parser = argparse.ArgumentParser(prog="python -m docs.website", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--no-lab", action="store_true", help="leave out the lab's reports")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    build(options.out, with_lab=not options.no_lab)
    count = len(list(options.out.rglob("*.html")))
    took = time.monotonic() - began
    sys.stdout.write(f"{options.out / 'index.html'}: {count} pages in {took:.0f} s\n")


def build(out: Path, *, with_lab: bool = True) -> None:
    """Build the site in the folder `out`, replacing an older site there; `with_lab` adds the lab's
    reports. Exits with the list of faults if the built site has any. Exits without a change if
    the folder contains anything other than a site."""
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        sys.exit(f"{out}: contains other files and was not touched; give an empty folder")
    with tempfile.TemporaryDirectory(prefix="needle-site-") as folder:
        source = Path(folder)
        nav = _write_pages(source, with_lab)
        shutil.rmtree(out, ignore_errors=True)
        _run_mkdocs(source, out, nav)
    if with_lab:
        lab.write(out / "lab")
    faults = check.faults(out)
    if faults:
        sys.exit("\n".join(faults))


def _write_pages(source: Path, with_lab: bool) -> list[Any]:
    """Write the Markdown of all pages; return the list of tabs and their pages for MkDocs."""
    made = _notebooks(source / "course" / "notebooks")
    drawn = {page: figures.drawn(page, notebook) for page, notebook in made.items()}
    pages = Pages(source, {**drawn, **atlas.texts(), ROOT / home.HOME: home.text()})
    tabs: dict[str, list[Any]] = {
        title: [pages.add(name) for name in names] for title, names in _TABS.items()
    }
    ladders = [pages.add(name) for name in _ATLAS]
    results = pages.add("docs/results")
    pages.hide_navigation(tabs["Home"][0])
    for page in made:
        link = f"[This page as a notebook](notebooks/{page.stem}.ipynb){{ download }}"
        pages.append(pages.add(f"{COURSE}/{page.name}"), link)
    written = pages.write()
    reference.write(source / "reference")
    for file in (source / "reference").iterdir():
        file.write_text(normal(file.read_text(encoding="utf-8")), encoding="utf-8")
    compiler.write(source / "compiler")
    for name in ("site.css", "iframe-worker.js", "logo.svg", "icon.svg"):
        shutil.copyfile(Path(__file__).with_name(name), source / name)
    if with_lab:
        (source / "lab").mkdir()
        (source / "lab" / "index.md").write_text(lab.index(), encoding="utf-8")

    # A title is "gemm on a CPU: a question"; the question is too long for a list of pages.
    listed = [ladders[0], *({pages.title(at).partition(":")[0]: at} for at in ladders[1:])]
    if with_lab:
        listed.append("lab/index.md")
    tabs["Learn"].append({"The atlas": listed})
    names = [
        "reference/index.md",
        *(f"reference/{reference.page_name(page)}" for page in sorted(reference.PAGES)),
    ]
    tabs["Reference"].append({"The public names": names})
    tabs["Contribute"].append(
        {"How the compiler works": ["compiler/index.md", "compiler/passes.md"]}
    )
    newest = sorted((p for p in written if p.startswith("results/") and p != results), reverse=True)
    tabs["Results"] += [results, *newest]
    known = {
        place for places in (*tabs.values(), ladders) for place in places if isinstance(place, str)
    }
    rest = [place for place in written if place not in known]
    recipes = [place for place in rest if place.startswith("contributing/")]
    tabs["Contribute"].insert(1, {"Recipes": recipes})
    tabs["Contribute"].append({"Source": [place for place in rest if place not in recipes]})
    return [{"Home": tabs.pop("Home")[0]}, *({title: tabs[title]} for title in tabs)]


def _notebooks(folder: Path) -> dict[Path, Any]:
    """Write the executed pages into a folder. Exits if one fails or Jupyter is missing."""
    try:
        return notebooks.write(folder)
    except ImportError as error:
        sys.exit(f"the site needs Jupyter ({error}): run make site, or pip install '.[guide,site]'")
    except notebooks.NotExecuted as error:
        sys.exit(str(error))


def _run_mkdocs(source: Path, site: Path, nav: list[Any]) -> None:
    """Convert the pages to HTML. Exits if MkDocs is missing or finds a link that leads nowhere."""
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    try:
        from mkdocs.commands.build import build as mkdocs_build
        from mkdocs.config import load_config
        from mkdocs.exceptions import Abort
    except ImportError as error:
        sys.exit(f"the site needs MkDocs ({error}): run make site, or pip install '.[site]'")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    config = load_config(
        str(Path(__file__).with_name("mkdocs.yml")),
        docs_dir=str(source.resolve()),
        site_dir=str(site.resolve()),
        nav=nav,
        strict=True,
    )
    try:
        mkdocs_build(config)
    except Abort as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
