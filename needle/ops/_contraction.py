"""Plan a sum of products as a list of ops, and choose the order of the contractions.

A contraction of two operands is one matmul. Shared labels that the result keeps are its batch axes;
shared labels that are summed are its inner axis. Both operands are permuted and reshaped to that
form. The list depends only on shapes, so a caller may keep it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from ..autograd.shapes import Shape, is_one
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..sizes.dims import bounds_of
from ._subscripts import Labels
from .arithmetic import MULTIPLY
from .matmul import MATMUL
from .reduce import Summation
from .reorder import diagonal
from .shape import Permute, Reshape

# Functions of one or two tensors, each with the indices of its tensors in a list: the operands,
# then the results of earlier functions. The last result is the program's result.
Program = list[tuple[Callable[..., Tensor], tuple[int, ...]]]

_GUESS = 256  # stands for an unknown size, unless the largest possible size is smaller


def program(
    name: str, inputs: tuple[Labels, ...], output: Labels, shapes: tuple[Shape, ...], half: bool
) -> Program:
    """Return the ops that sum the products over all labels that `output` lacks. `half` says whether
    the operands have half precision. Raises ShapeError for extents that do not fit."""
    run = _Builder(name, inputs, output, shapes, half)
    live = [run.simplified(at, _others(inputs, at)) for at in range(len(inputs))]
    for chosen in _path([run.labels[at] for at in live], output, run.extents):
        group = [live[i] for i in sorted(chosen)]
        live = [at for at in live if at not in group]
        while len(group) > 1:
            first, second, *rest = group
            kept = {label for at in (*live, *rest) for label in run.labels[at]}
            group = [run.contracted(first, second, kept), *rest]
        live += group
    run.finish(live[0])
    return run.steps


def _others(inputs: Sequence[Labels], at: int) -> set[Any]:
    """Return the labels of all operands but one."""
    return {label for i, labels in enumerate(inputs) if i != at for label in labels}


def _path(
    inputs: Sequence[Labels], output: Labels, extents: dict[Any, Any]
) -> Iterable[tuple[int, ...]]:
    """Return the operands to contract in each step, as NumPy's einsum_path does: a step removes
    them from the list of operands and appends their result."""
    if len(inputs) < 3:
        return [tuple(range(len(inputs)))]
    if len(extents) > len(ascii_letters):
        raise ValueError(f"einsum: {len(extents)} labels are more than {len(ascii_letters)}")
    letters = dict(zip(extents, ascii_letters, strict=False))
    terms = ["".join(letters[label] for label in labels) for labels in (*inputs, output)]
    sizes = {
        label: n if isinstance(n, int) else min(bounds_of(n)[1], _GUESS)
        for label, n in extents.items()
    }
    # Arrays of these shapes that take no memory. An extent of 0 would make all orders cost 0.
    like = [np.broadcast_to(0.0, [sizes[label] or 1 for label in labels]) for labels in inputs]
    kind = "optimal" if len(inputs) <= 5 else "greedy"
    subscripts = f"{','.join(terms[:-1])}->{terms[-1]}"
    path: Any = np.einsum_path(subscripts, *like, optimize=(kind, 2**62))[0]
    return path[1:]


class _Builder:
    """A program under construction. A value has an index: the operands come first, then the results
    of the steps. `labels` and `shapes` describe the values by index. If a value's axes are merged
    for a matmul, they describe the axes before merging."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[Labels],
        output: Labels,
        shapes: Sequence[Shape],
        half: bool,
    ) -> None:
        self.name, self.output, self.half = name, output, half
        self.steps: Program = []
        self.labels, self.shapes = list(inputs), list(shapes)
        self.extents: dict[Any, Any] = {}
        for number, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
            for axis, (label, n) in enumerate(zip(labels, shape, strict=True)):
                known = self.extents.setdefault(label, n)
                if is_one(known):
                    self.extents[label] = n
                elif not is_one(n) and n != known:
                    what = "'...'" if isinstance(label, int) else f"{label!r}"
                    raise ShapeError(
                        f"{name}: axis {axis} of operand {number} of shape {shape} has extent {n}, "
                        f"an earlier axis of {what} has {known}; they must be equal, or 1"
                    )

    def add(self, function: Any, places: tuple[int, ...], labels: Iterable[Any]) -> int:
        """Add a function of the values with indices `places`, and return the index of its result,
        whose axes are `labels`."""
        self.steps.append((function, places))
        self.labels.append(tuple(labels))
        self.shapes.append(self.shape(self.labels[-1]))
        return len(self.labels) - 1

    def shape(self, labels: Iterable[Any]) -> Shape:
        return tuple(self.extents[label] for label in labels)

    def simplified(self, at: int, others: Collection[Any]) -> int:
        """Return the index of an operand with each label once and without axes that broadcast. It
        is summed over labels that neither another operand nor the result has."""
        labels, shape = self.labels[at], self.shapes[at]
        for label in dict.fromkeys(labels):
            if labels.count(label) > 1:
                at = self.diagonal(at, label)
                labels, shape = self.labels[at], self.shapes[at]
        pairs = list(zip(labels, shape, strict=True))
        rest = [label for label, n in pairs if is_one(self.extents[label]) or not is_one(n)]
        if len(rest) < len(labels):
            at = self.add(Reshape(self.shape(rest)), (at,), rest)
        return self.summed(at, others)

    def diagonal(self, at: int, label: Any) -> int:
        """Return the index of a value's diagonal along all axes with the label `label`. The
        diagonal is the last axis of the result."""
        labels, shape = list(self.labels[at]), list(self.shapes[at])
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            n, m = shape[first], shape[second]
            if n != m:
                raise ShapeError(
                    f"{self.name}: axes {first} and {second} of shape {tuple(shape)} are both "
                    f"{label!r} and have extents {n} and {m}"
                )
            take = functools.partial(diagonal, axis1=first, axis2=second)
            for axis in (second, first):
                del labels[axis], shape[axis]
            labels.append(label)
            shape.append(n)
            at = self.add(take, (at,), labels)
            self.shapes[at] = tuple(shape)
        return at

    def summed(self, at: int, kept: Collection[Any]) -> int:
        """Return the index of a value summed over the labels that neither `kept` nor the result
        has."""
        labels = self.labels[at]
        gone = [i for i, x in enumerate(labels) if x not in kept and x not in self.output]
        if not gone:
            return at
        rest = [label for i, label in enumerate(labels) if i not in gone]
        return self.add(Summation(tuple(gone)), (at,), rest)

    def arranged(self, at: int, groups: Sequence[Sequence[Any]]) -> int:
        """Return the index of a value with its axes in the order of `groups`. Each group of labels
        becomes one axis."""
        order = [label for group in groups for label in group]
        labels = self.labels[at]
        if list(labels) != order:
            at = self.add(Permute(tuple(labels.index(x) for x in order)), (at,), order)
        if any(len(group) != 1 for group in groups):
            merged = tuple(prod(self.shape(group)) for group in groups)
            at = self.add(Reshape(merged), (at,), order)
        return at

    def contracted(self, a: int, b: int, kept: Collection[Any]) -> int:
        """Return the index of the product of two values, summed over labels that neither `kept` nor
        the result has."""
        a, b = (self.summed(at, {*kept, *self.labels[other]}) for at, other in ((a, b), (b, a)))
        first, second = self.labels[a], self.labels[b]
        shared = [label for label in first if label in second]
        batch = self.ordered([x for x in shared if x in kept or x in self.output])
        inner = [x for x in shared if x not in batch]
        left = self.ordered([x for x in first if x not in shared])
        right = self.ordered([x for x in second if x not in shared])
        if not inner:
            return self.multiplied(a, b, self.ordered([*batch, *left, *right]))
        if not left and not right:
            return self.dot(a, b, batch, inner)
        if batch:
            if self.comes_before(right, left):
                a, b, left, right = b, a, right, left
            return self.batched(a, b, batch, left, inner, right)
        return self.product(a, b, left, inner, right)

    def ordered(self, labels: Iterable[Any]) -> list[Any]:
        """Return the labels in the order of the result, then the labels that the result lacks."""
        place = {label: i for i, label in enumerate(self.output)}
        return sorted(labels, key=lambda label: place.get(label, len(place)))

    def comes_before(self, first: Iterable[Any], second: Iterable[Any]) -> bool:
        """Return whether the result has one of the first labels before all of the second. Return
        False if it lacks all labels of one group: a later contraction then decides the order."""
        places = [[i for i, x in enumerate(self.output) if x in group] for group in (first, second)]
        return all(places) and min(places[0]) < min(places[1])

    def multiplied(self, a: int, b: int, order: Sequence[Any]) -> int:
        """Return the index of the elementwise product. A value that lacks a label gets an axis of
        extent 1 for it."""
        sides = []
        for at in (a, b):
            own = self.labels[at]
            at = self.arranged(at, [[x] for x in order if x in own])
            if len(own) < len(order) and own != tuple(order[len(order) - len(own) :]):
                spread = tuple(self.extents[x] if x in own else 1 for x in order)
                at = self.add(Reshape(spread), (at,), self.labels[at])
            sides.append(at)
        return self.add(MULTIPLY, tuple(sides), order)

    def dot(self, a: int, b: int, batch: Sequence[Any], inner: Sequence[Any]) -> int:
        """Return the index of the sums of products of two values with the same labels."""
        if self.half:  # a matmul rounds only its sums, not each product
            return self.batched(a, b, batch, (), inner, ())
        sides = [self.arranged(at, [[x] for x in (*batch, *inner)]) for at in (a, b)]
        return self.summed(self.add(MULTIPLY, tuple(sides), (*batch, *inner)), batch)

    def batched(
        self,
        a: int,
        b: int,
        batch: Sequence[Any],
        left: Sequence[Any],
        inner: Sequence[Any],
        right: Sequence[Any],
    ) -> int:
        """Return the index of a batched product, computed by one matmul over the batch axes."""
        alone = [[x] for x in batch]
        a = self.arranged(a, [*alone, left, inner])
        b = self.arranged(b, [*alone, inner, right])
        at = self.add(MATMUL, (a, b), (*batch, *left, *right))
        return self.apart(at) if len(left) != 1 or len(right) != 1 else at

    def product(
        self, a: int, b: int, left: Sequence[Any], inner: Sequence[Any], right: Sequence[Any]
    ) -> int:
        """Return the index of a product without batch axes, computed by one matmul. An operand with
        several axes keeps them as leading axes."""
        if self.comes_before(right, left):
            a, b, left, right = b, a, right, left
        order = [x for x in self.output if x in left or x in right]
        between = order.index(right[0]) if right and right[0] in order else 0
        if 0 < between < len(left) and order == [*left[:between], *right, *left[between:]]:
            # The result has b's labels between labels of a, so b is multiplied from the left.
            outer, last = left[:between], left[between:]
            b = self.arranged(b, [right, inner])
            a = self.arranged(a, [*([x] for x in outer), inner, last])
            at = self.add(MATMUL, (b, a), order)
            return self.apart(at) if len(right) != 1 or len(last) != 1 else at
        a = self.arranged(a, [*([x] for x in left), inner])
        b = self.arranged(b, [inner, *([right] if right else [])])
        at = self.add(MATMUL, (a, b), (*left, *right))
        return self.apart(at) if len(right) > 1 else at

    def apart(self, at: int) -> int:
        """Return the index of a matmul's result with its merged axes split again."""
        return self.add(Reshape(self.shape(self.labels[at])), (at,), self.labels[at])

    def finish(self, at: int) -> None:
        """Add the steps that put the result's axes in order. The program gets at least one step, so
        that the last value is the result."""
        at = self.summed(at, ())
        if not self.steps or self.labels[at] != self.output:
            order = tuple(self.labels[at].index(label) for label in self.output)
            self.add(Permute(order), (at,), self.output)
