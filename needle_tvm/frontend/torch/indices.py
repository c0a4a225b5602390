"""The inputs of an exported PyTorch program that are used as indices, and their valid ranges."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from needle_tvm.frontend.torch.symbols import Symbols

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
# Take an axis, and along it an index that may not count from the end.
_ALONG = {
    *("gather", "index_select", "scatter", "scatter_add", "scatter_reduce"),
    *("index_add", "index_copy", "index_reduce"),
}
# Take an index among all elements, or along an axis, that may count from the end.
_AMONG_ALL, _FROM_EITHER_END = {"take", "put"}, {"index_fill"}
# Take a table and indices of its rows; or scores, and the class of each row of these.
_TABLES = {"embedding", "embedding_bag"}
_CLASSES = {"nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "cross_entropy_loss"}


def index_ranges(exported: Any, symbols: Symbols) -> dict[str, tuple[Any, Any]]:
    """The least and the largest valid index for each input, by placeholder name, that operators
    take as indices, directly or after a change of layout. The range is valid for all of them; it
    may depend on dims."""
    found: dict[str, tuple[Any, Any]] = {}
    for node in exported.graph.nodes:
        for source, low, high in _indices(node, symbols):
            while source.op == "call_function" and _name(source) in _KEEP_ALL and _integer(source):
                source = source.args[0]
            if source.op == "placeholder" and _integer(source):
                before = found.get(source.name, (low, high))
                found[source.name] = max(low, before[0]), min(high, before[1])
    return found


def _indices(node: Any, symbols: Symbols) -> Iterator[tuple[Any, Any, Any]]:
    """The nodes that an operator takes as indices, with the least and the largest valid index."""

    def shape_of(node: Any) -> tuple[Any, ...]:
        return tuple(map(symbols.size, node.meta["val"].shape))

    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return
    name, given = _name(node).removesuffix("_"), _given(node)
    index: Any = given.get("index", given.get("indices"))
    x = given.get("self")
    if name in _TABLES:
        yield index, 0, shape_of(given["weight"])[0] - 1
    elif name in _ALONG | _FROM_EITHER_END and len(shape_of(x)) > 0:
        extent = shape_of(x)[given["dim"]]
        yield index, -extent if name in _FROM_EITHER_END else 0, extent - 1
    elif name in _AMONG_ALL:
        count = prod(shape_of(x))
        yield index, -count, count - 1
    elif name in _CLASSES and _integer(given["target"]):
        # The ignored class is one more valid number, and numbers between are accepted too.
        classes, ignored = shape_of(x)[min(1, len(shape_of(x)) - 1)], given["ignore_index"]
        yield given["target"], min(0, ignored), max(classes - 1, ignored)
    elif name == "one_hot" and given["num_classes"] >= 0:
        yield x, 0, given["num_classes"] - 1
    elif name in ("index", "index_put") and not any(map(_is_mask, index)):
        for each, extent in zip(index, shape_of(x), strict=False):
            if each is not None:
                yield each, -extent, extent - 1


def _given(node: Any) -> dict[str, Any]:
    """An operator's arguments by name."""
    arguments = node.target._schema.arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value()}
    names = [each.name for each in arguments]
    return given | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _name(node: Any) -> str:
    """An operator's name: "index_select" for "aten.index_select.default"."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "")


def _integer(node: Any) -> bool:
    return str(getattr(node.meta.get("val"), "dtype", "")) in ("torch.int64", "torch.int32")


def _is_mask(index: Any) -> bool:
    return index is not None and not _integer(index)
