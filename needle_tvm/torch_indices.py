"""Which inputs of an exported PyTorch program are indices, and what is valid for them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

# Their results hold every element of their first argument and nothing else.
_KEEP_ALL = {
    *(
        "alias",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "movedim",
    ),
    *(
        "permute",
        "ravel",
        "repeat",
        "reshape",
        "roll",
        "squeeze",
        "t",
        "to",
        "_to_copy",
        "transpose",
    ),
    *("unflatten", "unsqueeze", "view", "view_as", "_unsafe_view", "swapaxes", "long", "int"),
}
# Take an axis, and along it an index that does not count from the end.
_ALONG = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add")


def index_ranges(exported: Any) -> dict[str, tuple[int, int]]:
    """Of an exported program's inputs, by their placeholder's name, that operators take as indices,
    as they are or in another arrangement: the least and the largest that all of these take."""
    found: dict[str, tuple[int, int]] = {}
    for node in exported.graph.nodes:
        for source, low, high in _indices(node):
            while source.op == "call_function" and _name(source) in _KEEP_ALL and _integer(source):
                source = source.args[0]
            if source.op == "placeholder" and _integer(source):
                before = found.get(source.name, (low, high))
                found[source.name] = max(low, before[0]), min(high, before[1])
    return found


def _indices(node: Any) -> Iterator[tuple[Any, int, int]]:
    """The nodes that an operator takes as indices, and what is valid for each."""
    name, args = _name(node), node.args
    if node.op != "call_function":
        return
    if name == "embedding":
        yield args[1], 0, _shape(args[0])[0] - 1
    elif name in _ALONG and len(_shape(args[0])) > 0:
        yield args[2], 0, _shape(args[0])[args[1]] - 1
    elif name == "take":
        count = prod(_shape(args[0]))
        yield args[1], -count, count - 1
    elif name == "one_hot" and len(args) > 1 and args[1] >= 0:
        yield args[0], 0, args[1] - 1
    elif name in ("index", "index_put", "index_put_") and not any(map(_is_mask, args[1])):
        for index, extent in zip(args[1], _shape(args[0]), strict=False):
            if index is not None:
                yield index, -extent, extent - 1


def _name(node: Any) -> str:
    """Of "aten.index_select.default": "index_select"."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "")


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _integer(node: Any) -> bool:
    return str(getattr(node.meta.get("val"), "dtype", "")) in ("torch.int64", "torch.int32")


def _is_mask(index: Any) -> bool:
    return index is not None and not _integer(index)
