"""Gather the site's pages: the repository's Markdown in one folder, with working links.

If a page of the site links to another page of the repository, that page is on the site, too. A
linked file that is not a page (a program, the licence) becomes a page that shows its text. A linked
folder becomes a list of its pages.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from docs.website.normal import normal

ROOT = Path(__file__).resolve().parents[2]
# Pages whose place on the site differs from their place under docs/.
_PLACES = {
    "docs/website/home.md": "index.md",
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "gallery/README.md": "gallery.md",
}
_LANGUAGES = {
    ".py": "python",
    ".sh": "sh",
    ".toml": "toml",
    ".cc": "cpp",
    ".h": "cpp",
    ".hpp": "cpp",
}
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.M | re.S)
_LINK = re.compile(r"(!?\[(?:[^][]|\[[^]]*\])*\])\(([^)\s]+)\)")


class Pages:
    """The site's pages in the folder `out`. `places` maps their paths in the repository to their
    places on the site; `texts` replaces the text of some files."""

    def __init__(self, out: Path, texts: Mapping[Path, str]) -> None:
        self.out, self._given = out, texts
        self.places: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def add(self, source: str) -> str:
        """Add a file or folder of the repository as a page; return its place on the site."""
        if source in self.places:
            return self.places[source]
        path = ROOT / source
        if path.is_dir():
            return self._add_folder(source)
        if path.suffix == ".md":
            place = _PLACES.get(source) or source.removeprefix("docs/")
            place = re.sub(r"\bREADME\.md$", "index.md", place)
            self.places[source] = place
            text = self._given.get(path) or path.read_text(encoding="utf-8")
            self._texts[place] = self._linked(text, source)
        elif path.suffix in (".png", ".svg", ".gif", ".jpg", ".webp"):
            place = self.places[source] = source.removeprefix("docs/")
            (self.out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.out / place)
        else:
            place = self.places[source] = f"source/{source}.md"
            language = _LANGUAGES.get(path.suffix, "text")
            code = path.read_text(encoding="utf-8").rstrip()
            self._texts[place] = f"# {source}\n\n````{language}\n{code}\n````\n"
        return place

    def write(self) -> list[str]:
        """Write all pages; return their places."""
        for place, text in self._texts.items():
            file = self.out / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(normal(text), encoding="utf-8")
        return list(self._texts)

    def append(self, place: str, text: str) -> None:
        """Add a paragraph to the end of a page."""
        self._texts[place] = f"{self._texts[place].rstrip()}\n\n{text}\n"

    def hide_navigation(self, place: str) -> None:
        """Hide the list of pages on a page that is alone in its tab."""
        self._texts[place] = f"---\nhide: [navigation]\n---\n\n{self._texts[place]}"

    def title(self, place: str) -> str:
        """Return a page's first heading, or its place if it has none."""
        found = re.search(r"^# (.*)$", self._texts[place], re.M)
        return found[1].replace("`", "") if found else place

    def _add_folder(self, source: str) -> str:
        if (ROOT / source / "README.md").exists():
            return self.places.setdefault(source, self.add(f"{source}/README.md"))
        place = self.places[source] = f"{source.removeprefix('docs/')}/index.md"
        files = sorted(
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / source).iterdir()
            if path.suffix in (".md", ".py")
        )
        titled = {file: self.add(file) for file in files}
        rows = [f"- [{self.title(found)}]({_relative(found, place)})" for found in titled.values()]
        self._texts[place] = "\n".join([f"# {PurePosixPath(source).name.capitalize()}", "", *rows])
        return place

    def _linked(self, text: str, source: str) -> str:
        """Return a page's text with its links changed to places on the site, except in code."""
        parts = _CODE.split(text)
        parts[::2] = [_LINK.sub(lambda m: self._link(m, source), part) for part in parts[::2]]
        return "".join(parts)

    def _link(self, match: re.Match[str], source: str) -> str:
        words, address = match.groups()
        target, hash_, anchor = address.partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / found).exists():
            return match[0]  # MkDocs reports it
        place = self.add(found)
        return f"{words}({_relative(place, self.places[source])}{hash_}{anchor})"


def _relative(place: str, page: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(page) or ".")
