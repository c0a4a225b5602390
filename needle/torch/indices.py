"""Find the inputs of a program that PyTorch uses as indices, and their valid ranges.

Some PyTorch operators refuse negative indices, which count from the end; needle's ops accept them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from .program import Node, Program, Ref

_INTEGERS = ("int32", "int64")

# Operators whose results hold every element of their first argument and nothing else.
_KEEP_ALL = frozenset(
    "alias clone contiguous detach expand expand_as flatten flip movedim permute ravel repeat "
    "reshape roll squeeze t to _to_copy transpose type_as unflatten unsqueeze view view_as "
    "_unsafe_view swapaxes long int lift_fresh_copy".split()
)
# The position of the argument with indices along an axis. The argument before it is the axis.
_ALONG = dict.fromkeys(
    "gather index_select scatter scatter_add scatter_reduce index_add index_copy "
    "index_reduce".split(),
    2,
)
# The position of the argument with indices of the first argument's rows.
_TABLES = {"embedding": 1, "embedding_bag": 1, "_embedding_bag": 1}
# Losses of scores and classes: the positions of the classes and of the ignored class.
_CLASSES = {
    **{"nll_loss": (1, 4), "nll_loss_nd": (1, 4), "nll_loss2d": (1, 4)},
    **{"nll_loss_forward": (1, 4), "nll_loss2d_forward": (1, 4), "cross_entropy_loss": (1, 4)},
}


def index_ranges(
    program: Program, shapes: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, Any]]:
    """Return (least, largest) valid index by name, for each input of `program` that operators use
    as indices, directly or after a change of layout. The range is valid for all these operators; it
    may depend on dims. `shapes` are the shapes of the weights, by their names in `state_dict`."""
    dtypes = {name: result.dtype for name, result in program.inputs}
    known = {name: result.shape for name, result in program.inputs}
    known |= {name: shapes[target] for name, target in program.weights.items()}
    known |= {name: array.shape for name, array in program.constants.items()}
    made = {node.name: node for node in program.nodes}
    found: dict[str, tuple[Any, Any]] = {}
    for node in program.nodes:
        if node.results and node.results[0] is not None:
            known[node.name] = node.results[0].shape
            dtypes[node.name] = node.results[0].dtype
        for index, low, high in _indices(node, known):
            name, ignored = _source(index, made, dtypes)
            if name is not None and name in dict(program.inputs):
                # The ignored number is also valid, and the numbers in between are accepted too.
                low, high = min([low, *ignored]), max([high, *ignored])
                before = found.get(name, (low, high))
                found[name] = max(low, before[0]), min(high, before[1])
    return found


def _source(
    index: Any, made: Mapping[str, Node], dtypes: Mapping[str, str]
) -> tuple[str | None, list[int]]:
    """Return the name of the value whose elements an index holds, and the ignored numbers that the
    program replaces in it first. The name is None if the index is not an integer tensor."""
    ignored: list[int] = []
    while isinstance(index, Ref) and dtypes.get(index.name) in _INTEGERS:
        node = made.get(index.name)
        if node is not None and node.operator == "aten.where.ScalarOther":
            asked = made.get(getattr(node.args[0], "name", ""))
            if asked is None or _base(asked) != "ne" or asked.args[0] != node.args[1]:
                return None, ignored
            ignored.append(asked.args[1])
            index = node.args[1]
        elif node is None or _base(node) not in _KEEP_ALL:
            return index.name, ignored
        else:
            index = node.args[0]
    return None, ignored


def _indices(node: Node, shapes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each argument that a node uses as indices, with the least and the largest valid
    index."""

    def shape_of(argument: Any) -> tuple[Any, ...]:
        return shapes[argument.name] if isinstance(argument, Ref) else ()

    name, args = _base(node), node.args
    if name in _TABLES:
        yield args[_TABLES[name]], 0, shape_of(args[0])[0] - 1
    elif name in _ALONG and shape_of(args[0]) and isinstance(args[1], int):
        yield args[_ALONG[name]], 0, shape_of(args[0])[args[1]] - 1
    elif name == "index_fill" and shape_of(args[0]) and isinstance(args[1], int):
        extent = shape_of(args[0])[args[1]]
        yield args[2], -extent, extent - 1
    elif name in ("take", "put"):
        count = prod(shape_of(args[0]))
        yield args[1], -count, count - 1
    elif name in _CLASSES:
        at, ignoring = _CLASSES[name]
        shape, ignored = shape_of(args[0]), args[ignoring]
        # The ignored class is also valid, and the numbers in between are accepted too.
        classes = shape[min(1, len(shape) - 1)]
        yield args[at], min(0, ignored), max(classes - 1, ignored)
    elif name == "one_hot" and isinstance(args[1], int) and args[1] >= 0:
        yield args[0], 0, args[1] - 1


def _base(node: Node) -> str:
    """Return an operator's name: "index_select" for "aten.index_select.default"."""
    return node.operator.partition(".")[2].partition(".")[0]
