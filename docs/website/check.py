"""Check that a built site's links lead to pages and anchors, and that it fetches nothing from other
machines.

`python -m docs.website.check FOLDER` prints the faults, one on each line.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# A browser fetches these on its own when it shows a page; a link (<a href>) waits for a click.
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "manifest"}
_CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""")


@dataclass
class Page:
    """A page's anchors, its links, and the addresses that a browser fetches to show it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.page.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        if tag in _FETCHED and given.get(_FETCHED[tag]):
            self.page.fetched.append(given[_FETCHED[tag]])
        if tag == "link" and _FETCHED_LINKS & set(given.get("rel", "").split()):
            self.page.fetched.append(given["href"])
        self.page.fetched += _CSS_URL.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.page.fetched += _CSS_URL.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def read(path: Path) -> Page:
    """Return the anchors, links and fetched addresses of the page in a file."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def faults(site: Path) -> list[str]:
    """Return the faults of the pages and style sheets in a folder, one line each, or []."""
    site = site.resolve()
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.fetched:
            found += [f"{name}: {fault}" for fault in _fetched(address, path, site)]
        # The links of the 404 page are relative to the server's root.
        for address in page.links if path.name != "404.html" else ():
            found += [f"{name}: {fault}" for fault in _linked(address, path, site, pages)]
    for path in sorted(site.rglob("*.css")):
        for address in _CSS_URL.findall(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(site)}: {f}" for f in _fetched(address, path, site)]
    return found


def _fetched(address: str, path: Path, site: Path) -> list[str]:
    parts = urlsplit(address)
    if parts.scheme == "data" or not parts.path:
        return []
    if parts.scheme or parts.netloc:
        return [f"fetches {address} from another machine"]
    if path.name == "404.html":
        return []
    target = (path.parent / unquote(parts.path)).resolve()
    return [] if target.is_file() else [f"fetches {address}, which does not exist"]


def _linked(address: str, path: Path, site: Path, pages: dict[Path, Page]) -> list[str]:
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto", "javascript"):
        return []
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        return [f"{address} leads nowhere"]
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return [f"{address} leads to an anchor that the page does not have"]
    return []


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = faults(Path(sys.argv[1]))
    sys.exit("\n".join(problems) if problems else 0)
