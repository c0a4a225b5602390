"""Find habits of prose that readers stumble over, in docstrings, comments and pages: `make lint`.

    python -m docs.prose            # every file that git knows, except tests and measured results
    python -m docs.prose README.md  # these files

Each rule is a pattern with advice and an example; a rule is worth having only if it raises almost
no false alarms. Ruff checks the mood of docstrings (D401, D402). docs/contributing/prose.md shows
habits that no pattern finds.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """A pattern, what to write instead, and a sentence that breaks the rule."""

    pattern: str
    advice: str
    example: str


RULES = (
    Rule(
        r"\b(expected were|(?-i:by nobody)|let go by|to be had|such a one|than is|than are)\b",
        "put the subject first",
        "Expected were 1 to 1.5 times, and 0.95 came of it.",
    ),
    Rule(r"\bin whose\b", "start a sentence of its own", "the value in whose memory it lies"),
    Rule(r"\bthe others?'s?\b(?!\s*\()", "name the thing again", "The other's results differ."),
    Rule(r"\bwhatever its\b", "say which cases there are", "an op, whatever its dtype"),
    Rule(r"\b(and|or) its like\b", "name the things", "`session.run` and its like"),
    Rule(r"\bfor lack of\b", "write `without`", "The test fails for lack of a compiler."),
    Rule(
        r"\b(all|any|each|most|much|none|part|some) of what\b",
        "use a noun for `what`",
        "This is most of what the next rungs do.",
    ),
    Rule(
        r"(?:^|(?<=[.:] ))(Not|Nor) (of|for|in|with|by|on|from) [^.,;]*\.(?= |$)",
        "write a sentence with a verb",
        "Return the sum. Not of bools.",
    ),
    Rule(
        r"\b(hence|hitherto|whence|thereof|therein|thereby|whereby|wherein|hereby|viz|upon)\b",
        "use everyday words",
        "The signature covers the manifest, hence everything.",
    ),
    Rule(
        r"\b(i\.e\.|e\.g\.|resp\.|wrt\b|w\.r\.t\.)",
        "write it out",
        "Names of axes, e.g. `rows`.",
    ),
    Rule(
        r"\b(formerly|heretofore|in the past|used to (be|have|do|return|raise))\b",
        "describe the present",
        "This function used to return a list.",
    ),
)

_SKIPPED = ("tests/", "docs/results/", "docs/contributing/prose.md")  # the last shows bad ones
_HERE = Path(__file__).resolve()


def of_text(text: str) -> Iterator[tuple[Rule, str]]:
    """Yield the rules that a text breaks, each with the words and their surroundings."""
    flat = re.sub(r"\s+", " ", text)
    for rule in RULES:
        for match in re.finditer(rule.pattern, flat, re.IGNORECASE):
            yield rule, flat[max(0, match.start() - 40) : match.end() + 40]


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts: the docstrings and comments of a Python file, the comments of a
    C++ file, or the paragraphs of a page without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield node.body[0].lineno, docstring
        comments = (
            (token.start[0], token.string.lstrip("# "))
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        )
        yield from _joined(comments)
    elif path.suffix == ".md":
        without_code = re.sub(
            r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL
        )
        line = 1
        for paragraph in without_code.split("\n\n"):
            yield line, re.sub(r"`[^`]*`", "``", paragraph)
            line += paragraph.count("\n") + 2
    else:
        lines = enumerate(text.splitlines(), 1)
        found = ((number, re.search(r"(?:^|\s)//+ ?(.*)", line)) for number, line in lines)
        yield from _joined((number, match[1]) for number, match in found if match)


def _joined(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield comments; those on consecutive lines are joined into one text."""
    start, last, words = 0, -1, ""
    for number, text in lines:
        if number == last + 1:
            words += f" {text}"
        else:
            if words:
                yield start, words
            start, words = number, text
        last = number
    if words:
        yield start, words


def main(arguments: list[str]) -> int:
    """Print the findings in the named files, or in all files; return 1 if there are any."""
    if arguments:
        paths = [Path(name) for name in arguments]
    else:
        listed = subprocess.run(
            ["git", "ls-files", "*.py", "*.md", "*.cc", "*.h", "*.hpp", "*.cu"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        paths = [Path(name) for name in listed if not name.startswith(_SKIPPED)]
    found = [
        f"{path}:{line}: ...{words}...: {rule.advice}\n"
        for path in paths
        if path.is_file() and path.resolve() != _HERE
        for line, text in passages(path)
        for rule, words in of_text(text)
    ]
    sys.stdout.writelines(found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
