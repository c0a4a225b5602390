"""The exercises of the course: find them, and judge what the reader has written.

An exercise is a file `exercises/LESSON_NUMBER_name.py`. Its docstring states the task, and `...`
marks the blanks to fill. Its function `check()` yields judgements. A judgement is a `Shown` from
`kernel_lab.show`, or a tuple of a bool, a text that says what was found and, optionally, the reason
for a wrong result, which is printed only if the bool is False. The first judgement that is not
right decides the verdict. A `Shown` that compares the schedule with a rung (`beside`) is timed if
it is right.
"""

from __future__ import annotations

import ast
import re
import runpy
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lab.errors import LabUsageError
from kernel_lab.own_schedule import Shown

EXERCISES = Path(__file__).parents[1] / "exercises"
RIGHT, WRONG, UNWRITTEN = "right", "wrong", "not written yet"
_NAME = re.compile(r"(\d+)_(\d+)_\w+\.py")


@dataclass(frozen=True)
class Verdict:
    """The verdict on an exercise. `number` is a text such as "3.1". `state` is RIGHT, WRONG or
    UNWRITTEN, and `text` says what is right, or what is wrong and where."""

    number: str
    path: Path
    state: str
    text: str

    def __str__(self) -> str:
        head = f"{self.number} ({self.path.name}): {self.state}"
        return "\n    ".join([head, *self.text.splitlines()])


def find(number: str, folder: Path = EXERCISES) -> list[Path]:
    """Return the file of an exercise ("3.1"), or those of a lesson ("3"), in order.

    Raises LabUsageError if there are none, or no such folder.
    """
    if not folder.is_dir():
        raise LabUsageError(f"no folder {folder}: name a folder with files of exercises")
    by_number = {
        (int(match[1]), int(match[2])): path
        for path in folder.glob("*.py")
        if (match := _NAME.fullmatch(path.name))
    }
    found = [
        by_number[each] for each in sorted(by_number) if number in (str(each[0]), _dotted(*each))
    ]
    if not found:
        known = ", ".join(_dotted(*each) for each in sorted(by_number)) or "none"
        raise LabUsageError(f"no exercise {number!r} in {folder}: there are {known}")
    return found


def blanks(source: str) -> list[int]:
    """Return the numbers of the lines in which `...` marks a blank, each once.

    An ellipsis in an index or a type (`x[..., 0]`) is not a blank. Raises SyntaxError.
    """
    tree = ast.parse(source)
    indices = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    inside = {node for index in indices for node in ast.walk(index)}
    return sorted(
        {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value is ... and node not in inside
        }
    )


def check(path: Path) -> Verdict:
    """Judge an exercise. An error in the reader's code makes it wrong; the text names the line."""
    lesson, number = path.name.split("_")[:2]
    name = _dotted(int(lesson), int(number))
    try:
        missing = blanks(path.read_text())
        if missing:
            lines = ", ".join(map(str, missing))
            noun = "line" if len(missing) == 1 else "lines"
            return Verdict(name, path, UNWRITTEN, f"fill in {noun} {lines} of {path}")
        text = _judged(runpy.run_path(str(path))["check"]())
    except _Wrong as wrong:
        return Verdict(name, path, WRONG, str(wrong))
    except Exception as error:  # any error that the reader's code can make
        return Verdict(name, path, WRONG, _told(path, error))
    return Verdict(name, path, RIGHT, text)


class _Wrong(Exception):
    """A judgement that is not right; the message says what was found."""


def _judged(judgements: Any) -> str:
    """Return the texts of the judgements; raise _Wrong for the first that is not right."""
    texts = []
    for judgement in judgements:
        if isinstance(judgement, Shown):
            right, text = judgement.right, judgement.verdict
            if right and judgement.beside:
                text = str(judgement)
        else:
            right, text, *reason = judgement
            if not right:
                text = ": ".join([text, *reason])
        if not right:
            raise _Wrong(text)
        texts.append(text)
    return "\n".join(texts)


def _told(path: Path, error: Exception) -> str:
    """Return an error's type and message, and the line of the file at `path` that led to it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return said
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path
    ]
    return f"line {frames[-1].lineno} ({frames[-1].line}): {said}" if frames else said


def _dotted(lesson: int, number: int) -> str:
    return f"{lesson}.{number}"
