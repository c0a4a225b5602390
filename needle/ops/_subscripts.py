"""The subscripts of einsum as labels: one label for each axis of each operand and of the result.

A label is a letter or an int. The axes of an ellipsis have negative ints, counted from the last of
these axes, so that they broadcast by NumPy's rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from ..errors import ShapeError

Labels = tuple[Any, ...]


def parsed(subscripts: str, ranks: tuple[int, ...]) -> tuple[tuple[Labels, ...], Labels]:
    """Return the labels of the operands, which have `ranks` axes, and of the result. Raises
    ValueError for subscripts that are not valid, ShapeError for an operand whose number of axes
    does not fit them."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = [_term(subscripts, part) for part in left.split(",")]
    return _labelled(repr(subscripts), terms, _term(subscripts, right) if arrow else None, ranks)


def from_lists(
    lists: Sequence[Any], wanted: Any, ranks: tuple[int, ...]
) -> tuple[tuple[Labels, ...], Labels]:
    """Return the labels as `parsed` does, for lists of ints (and Ellipsis) instead of letters."""
    terms = [_listed(part) for part in lists]
    described = ", ".join(map(str, lists))
    return _labelled(described, terms, None if wanted is None else _listed(wanted), ranks)


def _term(subscripts: str, text: str) -> list[Any]:
    """Return the letters of one operand, with Ellipsis for '...'."""
    before, dots, after = text.partition("...")
    for letter in before + after:
        if letter not in ascii_letters:
            raise ValueError(
                f"einsum: {letter!r} in {subscripts!r} is not allowed: subscripts are letters, "
                "at most one '...' for each operand, commas between operands and one '->'"
            )
    return [*before, *([Ellipsis] if dots else []), *after]


def _listed(labels: Any) -> list[Any]:
    if not isinstance(labels, (list, tuple)):
        raise TypeError(
            f"einsum: {labels!r} is not a list of labels: einsum takes a string and operands, or "
            "operands that are each followed by a list"
        )
    for label in labels:
        if label is not Ellipsis and not (type(label) is int and 0 <= label < 52):
            raise ValueError(f"einsum: label {label!r} is not Ellipsis or an int within 0..51")
    if list(labels).count(Ellipsis) > 1:
        raise ValueError(f"einsum: the labels {labels} have more than one Ellipsis")
    return [Ellipsis if label is Ellipsis else ascii_letters[label] for label in labels]


def _labelled(
    described: str, terms: list[list[Any]], wanted: list[Any] | None, ranks: tuple[int, ...]
) -> tuple[tuple[Labels, ...], Labels]:
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: {described} describes {len(terms)} operands, {len(ranks)} given")
    inputs = []
    for number, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        rest = rank - len(term) + (Ellipsis in term)
        if rest < 0 or (rest and Ellipsis not in term):
            named = "at least " if Ellipsis in term else ""
            raise ShapeError(
                f"einsum: operand {number} has {rank} axes, {described} names {named}"
                f"{len(term) - (Ellipsis in term)} for it"
            )
        inputs.append(_spread(term, rest))
    unnamed = max(
        (-label for term in inputs for label in term if isinstance(label, int)), default=0
    )
    if wanted is None:
        times = Counter(label for term in terms for label in term)
        once = sorted(label for label in times if label is not Ellipsis and times[label] == 1)
        return tuple(inputs), (*range(-unnamed, 0), *once)
    for label in wanted:
        if wanted.count(label) > 1:
            raise ValueError(f"einsum: the result of {described} has the label {label!r} twice")
        if label is not Ellipsis and not any(label in term for term in inputs):
            raise ValueError(
                f"einsum: the label {label!r} of the result is in no operand of {described}"
            )
    return tuple(inputs), _spread(wanted, unnamed)


def _spread(term: Sequence[Any], count: int) -> Labels:
    """Return a term with `count` labels in place of its Ellipsis."""
    if Ellipsis not in term:
        return tuple(term)
    at = list(term).index(Ellipsis)
    return (*term[:at], *range(-count, 0), *term[at + 1 :])
