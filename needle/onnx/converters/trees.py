"""Converters of ensembles of decision trees (domain ai.onnx.ml): all trees go down at once."""

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

    def depth(self, node: Node) -> int:
        """The steps from the roots to the last leaf. ModelError for trees with a circle."""
        steps, level = 0, np.unique(self.roots)
        while True:
            level = level[(self.yes[level] != level) | (self.no[level] != level)]
            if not len(level):
                return steps
            level = np.unique(np.concatenate([self.yes[level], self.no[level]]))
            steps += 1
            if steps > len(self.yes):
                raise node.invalid("the trees have a circle")

    def leaves(self, node: Node, x: Tensor) -> Tensor:
        """The leaf of each tree for each row: (rows, trees)."""
        at = ops.broadcast_to(make_const(self.roots[None]), (x.shape[0], len(self.roots)))
        for _ in range(self.depth(node)):
            feature = ops.take(make_const(self.features), at, 0)
            value = ops.take_along_axis(x, feature, 1)
            true = self._holds(value, at)
            if self.missing.any():
                tracks = ops.take(make_const(self.missing), at, 0)
                true = ops.logical_or(true, ops.logical_and(ops.isnan(value), tracks))
            yes, no = (ops.take(make_const(t), at, 0) for t in (self.yes, self.no))
            at = ops.where(true, yes, no)
        return at

    def _holds(self, value: Tensor, at: Tensor) -> Tensor:
        split = ops.take(make_const(self.splits.astype(value.dtype)), at, 0)
        used = [mode for mode in _MODES if np.any(self.modes[self.yes != self.no] == mode)]
        found: Any = None
        for mode in used or ["LEQ"]:
            if mode == "MEMBER":
                assert self.members is not None  # made wherever a node has this mode
                members = ops.take(make_const(self.members.astype(value.dtype)), at, 0)
                true = ops.any(ops.equal(ops.unsqueeze(value, 2), members), 2)
            else:
                true = _COMPARE[mode](value, split)
            is_mode = ops.take(make_const(self.modes == mode), at, 0)
            found = true if found is None else ops.where(is_mode, true, found)
        return found


def _scores(node: Node, trees: Trees, x: Tensor, aggregate: str) -> Tensor:
    """What the leaves add up to: (rows, targets)."""
    at = trees.leaves(node, x)
    touched = ~np.isnan(trees.weights)
    rest = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    table = np.where(touched, trees.weights, rest).astype(x.dtype)
    found = ops.take(make_const(table), at, 0)  # (rows, trees, targets)
    if aggregate in ("SUM", "AVERAGE"):
        total = ops.sum(found, 1)
        return ops.divide(total, float(len(trees.roots))) if aggregate == "AVERAGE" else total
    made = ops.min(found, 1) if aggregate == "MIN" else ops.max(found, 1)
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
