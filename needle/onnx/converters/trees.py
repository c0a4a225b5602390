"""Converters of ensembles of decision trees (domain ai.onnx.ml).

All decisions are made at once; the leaf that a row reaches is the one for which all decisions above
are as its path needs them, which a product with a matrix of paths counts (Nakandala et al. 2020,
"GEMM strategy").
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ... import ops
from ...tensor import Tensor, make_const
from ..graph import Node
from ..registry import converter
from ..values import Value, tensor
from .ml import transformed

_ML = "ai.onnx.ml"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_COMPARE = {
    "LEQ": ops.less_equal,
    "LT": ops.less,
    "GTE": ops.greater_equal,
    "GT": ops.greater,
    "EQ": ops.equal,
    "NEQ": ops.not_equal,
}
_LARGEST = 1 << 26  # elements of all matrices of paths
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclasses.dataclass(frozen=True)
class Trees:
    """Nodes of all trees, leaves among them: a leaf leads to itself.

    `weights` (nodes, targets) are what leaves add, NaN for targets that they do not touch.
    `members` (nodes, at most so many) are the values of MEMBER nodes, filled with NaN.
    """

    modes: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    missing: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    roots: np.ndarray
    weights: np.ndarray
    members: np.ndarray | None = None

    def paths(self, node: Node) -> list[tuple[list[int], list[int], dict[tuple[int, int], int]]]:
        """For each tree its decisions, its leaves, and for (decision, leaf), by their places in
        these lists, whether the path to the leaf takes "yes" (1) or "no" (-1)."""
        found = []
        for root in self.roots:
            decisions: list[int] = []
            leaves: list[int] = []
            ways: dict[tuple[int, int], int] = {}
            open_: list[tuple[int, list[tuple[int, int]]]] = [(int(root), [])]
            while open_:
                at, above = open_.pop()
                if len(above) > len(self.yes):
                    raise node.invalid("the trees have a circle")
                if self.yes[at] == at and self.no[at] == at:
                    ways |= {(decision, len(leaves)): way for decision, way in above}
                    leaves.append(at)
                    continue
                here = len(decisions)
                decisions.append(at)
                open_.append((int(self.no[at]), [*above, (here, -1)]))
                open_.append((int(self.yes[at]), [*above, (here, 1)]))
                if len(decisions) > len(self.yes):
                    raise node.invalid("the trees have a circle")
            found.append((decisions, leaves, ways))
        return found

    def hits(self, node: Node, x: Tensor) -> tuple[Tensor, np.ndarray]:
        """1.0 for the leaf that each row reaches, (trees, rows, leaves), and what the leaves add,
        (trees, leaves, targets)."""
        paths = self.paths(node)
        trees = len(paths)
        decisions, leaves = (max(1, *(len(path[i]) for path in paths)) for i in (0, 1))
        if trees * decisions * leaves > _LARGEST:
            raise node.unsupported(
                f"{trees} trees of up to {leaves} leaves take matrices of more than {_LARGEST} "
                "elements"
            )
        at = np.zeros((trees, decisions), "int64")
        way = np.zeros((trees, decisions, leaves), x.dtype)
        needed = np.full((trees, 1, leaves), -1 - decisions, x.dtype)  # of no leaf: never met
        added = np.full((trees, leaves, self.weights.shape[1]), np.nan)
        for i, (inner, outer, ways) in enumerate(paths):
            at[i, : len(inner)] = inner
            for (decision, leaf), sign in ways.items():
                way[i, decision, leaf] = sign
            needed[i, 0, : len(outer)] = np.maximum(way[i], 0).sum(0)[: len(outer)]
            added[i, : len(outer)] = self.weights[outer]
        true = ops.cast(self._true(x, at.reshape(-1)), x.dtype)
        true = ops.permute(ops.reshape(true, (x.shape[0], trees, decisions)), (1, 0, 2))
        met = ops.equal(ops.matmul(true, make_const(way)), make_const(needed))
        return ops.cast(met, x.dtype), added

    def _true(self, x: Tensor, at: np.ndarray) -> Tensor:
        """Whether each row answers the decisions `at` with yes: (rows, decisions)."""
        value = ops.take(x, make_const(self.features[at]), 1)
        split = make_const(self.splits[at].astype(x.dtype))
        found: Any = None
        for mode in sorted(set(self.modes[at]) & set(_MODES)) or ["LEQ"]:
            if mode == "MEMBER":
                assert self.members is not None  # made wherever a node has this mode
                members = make_const(self.members[at].astype(x.dtype))
                true = ops.any(ops.equal(ops.unsqueeze(value, 2), members), 2)
            else:
                true = _COMPARE[mode](value, split)
            is_mode = make_const(self.modes[at] == mode)
            found = true if found is None else ops.where(is_mode, true, found)
        if not self.missing.any():
            return found
        return ops.logical_or(
            found, ops.logical_and(ops.isnan(value), make_const(self.missing[at]))
        )


def _scores(node: Node, trees: Trees, x: Tensor, aggregate: str) -> Tensor:
    """What the leaves add up to: (rows, targets)."""
    hits, added = trees.hits(node, x)
    touched = ~np.isnan(added)
    found = ops.matmul(hits, make_const(np.where(touched, added, 0).astype(x.dtype)))
    if aggregate in ("SUM", "AVERAGE"):
        total = ops.sum(found, 0)
        return ops.divide(total, float(len(trees.roots))) if aggregate == "AVERAGE" else total
    counts = ops.greater(ops.matmul(hits, make_const(touched.astype(x.dtype))), 0.0)
    most = aggregate == "MAX"
    found = ops.where(counts, found, -np.inf if most else np.inf)
    made = ops.max(found, 0) if most else ops.min(found, 0)
    return ops.where(ops.isfinite(made), made, 0.0)


@converter("TreeEnsemble", domain=_ML, since=5)
def tree_ensemble(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    splits = node.array("nodes_splits")
    count, targets = len(splits), node.integers("leaf_targetids")
    leaves = len(targets)
    links = []
    for way in ("true", "false"):
        to = np.array(node.integers(f"nodes_{way}nodeids"))
        is_leaf = np.array(node.integers(f"nodes_{way}leafs")) != 0
        links.append(np.concatenate([to + count * is_leaf, count + np.arange(leaves)]))
    if any(
        len(link) != count + leaves or link.min() < 0 or link.max() >= count + leaves
        for link in links
    ):
        raise node.invalid("nodes lead to no node and no leaf")
    codes = node.array("nodes_modes")
    if codes.min(initial=0) < 0 or codes.max(initial=0) >= len(_MODES):
        raise node.invalid(f"nodes_modes {codes.tolist()} are not 0 to {len(_MODES) - 1}")
    modes = np.array([_MODES[code] for code in codes] + ["LEQ"] * leaves)
    missing = node.integers("nodes_missing_value_tracks_true", (0,) * count)
    width = node.integer("n_targets")
    weights = np.full((count + leaves, width), np.nan)
    weights[count + np.arange(leaves), list(targets)] = node.array("leaf_weights")
    members = node.array("membership_values") if node.has("membership_values") else None
    trees = Trees(
        modes,
        np.array([*node.integers("nodes_featureids"), *(0,) * leaves]),
        np.concatenate([splits.astype("float64"), np.zeros(leaves)]),
        np.array([*missing, *(0,) * leaves]) != 0,
        *links,
        np.array(node.integers("tree_roots")),
        weights,
        _members(node, modes, members),
    )
    aggregate = node.integer("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        raise node.invalid(f"aggregate_function {aggregate} is not 0 to {len(_AGGREGATES) - 1}")
    return transformed(node, _scores(node, trees, x, _AGGREGATES[aggregate]))


def _members(node: Node, modes: np.ndarray, values: np.ndarray | None) -> np.ndarray | None:
    """The values of each MEMBER node, from a list in which NaN ends those of one."""
    at = np.flatnonzero(modes == "MEMBER")
    if not len(at):
        return None
    ends = np.flatnonzero(np.isnan(values)) if values is not None else np.array([])
    if values is None or len(ends) != len(at):
        raise node.invalid(f"membership_values are {len(ends)} lists for {len(at)} nodes")
    lists = np.split(values, ends + 1)[: len(at)]
    made = np.full((len(modes), max(map(len, lists))), np.nan)
    for i, items in zip(at, lists, strict=True):
        made[i, : len(items) - 1] = items[:-1]
    return made


@converter("TreeEnsembleRegressor", domain=_ML)
def tree_ensemble_regressor(node: Node, data: Value) -> Tensor:
    x = ops.cast(tensor(data), "float32")
    keys = list(zip(node.integers("nodes_treeids"), node.integers("nodes_nodeids"), strict=True))
    place = {key: i for i, key in enumerate(keys)}
    modes = node.texts("nodes_modes")
    names = np.array([mode.removeprefix("BRANCH_") for mode in modes])
    is_leaf = names == "LEAF"
    if not set(names[~is_leaf]) <= _COMPARE.keys():
        raise node.invalid(f"nodes_modes {sorted(set(modes))} are not all known")
    links = []
    for way in ("true", "false"):
        to = node.integers(f"nodes_{way}nodeids")
        links.append(
            np.array(
                [
                    i if leaf else place[tree, n]
                    for i, ((tree, _), n, leaf) in enumerate(zip(keys, to, is_leaf, strict=True))
                ]
            )
        )
    width = node.integer("n_targets", 1)
    weights = np.where(is_leaf[:, None], 0.0, np.nan) * np.ones(width)
    touched = zip(
        *(node.integers(f"target_{what}") for what in ("treeids", "nodeids", "ids")),
        node.numbers("target_weights"),
        strict=True,
    )
    for tree, number, target, weight in touched:
        weights[place[tree, number], target] += weight
    children = {int(n) for link in links for i, n in enumerate(link) if n != i}
    missing = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * len(keys)
    trees = Trees(
        names,
        np.array(node.integers("nodes_featureids")),
        np.array(node.numbers("nodes_values"), "float64"),
        np.array(missing) != 0,
        *links,
        np.array([i for i in range(len(keys)) if i not in children]),
        weights,
    )
    aggregate = node.text("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        raise node.invalid(f"aggregate_function {aggregate!r} is unknown")
    made = _scores(node, trees, x, aggregate)
    base = node.numbers("base_values", ())
    made = ops.add(made, make_const(np.array(base, "float32"))) if base else made
    return transformed(node, made)
