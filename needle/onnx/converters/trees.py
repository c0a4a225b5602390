"""Converters of ensembles of decision trees (domain ai.onnx.ml).

All rows walk down all trees at once. A step looks up each row's current node in each tree and
follows its "yes" or "no" link. Leaves link to themselves, so every row is at its leaf after d
steps, where d is the depth of the deepest leaf.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ... import init, ops
from ...autograd.tensor import Tensor, make_const
from ...conversion.budget import bounded
from ...conversion.values import Value, tensor
from ..graph import Node
from ..registry import converter
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
_DEEPEST = 1000  # the largest number of steps, which are all unrolled
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclasses.dataclass(frozen=True)
class Trees:
    """The nodes of all trees, including leaves. A leaf links to itself.

    `weights` (nodes, targets) are the amounts that leaves add, NaN for targets that they do not
    touch. `members` (nodes, largest number of members) are the values of MEMBER nodes, padded with
    NaN.
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
        """Return the largest number of decisions above a leaf. Raises ModelError, which names the
        `node`, if there is a cycle."""
        at, steps = np.unique(self.roots), 0
        while True:
            inner = at[(self.yes[at] != at) | (self.no[at] != at)]
            if not len(inner):
                return steps
            if steps > len(self.yes):
                raise node.invalid("the trees have a cycle")
            at = np.unique(np.concatenate([self.yes[inner], self.no[inner]]))
            steps += 1

    @property
    def _inner(self) -> np.ndarray:
        """Whether each node is a decision and not a leaf."""
        own = np.arange(len(self.yes))
        inner: np.ndarray = (self.yes != own) | (self.no != own)
        return inner

    def leaves(self, node: Node, x: Tensor) -> Tensor:
        """Return the leaf (rows, trees) that each row of `x` reaches in each tree. Raises
        UnsupportedError for trees that are too deep, and ModelError for a feature that `x` does not
        have; both errors name the `node`."""
        depth = self.depth(node)
        if depth > _DEEPEST:
            raise node.unsupported(
                f"trees with {depth} decisions on one path; at most {_DEEPEST} are supported"
            )
        asked = self.features[self._inner]
        for feature in asked[(asked < 0) | (asked >= x.shape[1])][:1]:
            raise node.invalid(f"a tree asks for feature {feature}, but its input has {x.shape[1]}")
        rows, trees = x.shape[0], len(self.roots)
        at = ops.broadcast_to(make_const(self.roots.reshape(1, -1)), (rows, trees))
        links = [make_const(way.astype("int64")) for way in (self.no, self.yes)]
        for _ in range(depth):
            no, yes = (ops.take(way, at, 0) for way in links)
            at = ops.where(self._true(x, at), yes, no)
        return at

    def _true(self, x: Tensor, at: Tensor) -> Tensor:
        """Return whether each row answers yes at the nodes `at` (rows, trees)."""

        def own(table: np.ndarray) -> Tensor:
            return ops.take(make_const(table), at, 0)

        value = ops.take_along_axis(x, own(self.features.astype("int64")), 1)
        split = own(self.splits.astype(x.dtype))
        found: Any = None
        for mode in sorted(set(self.modes[self._inner]) & set(_MODES)) or ["LEQ"]:
            if mode == "MEMBER":
                assert self.members is not None  # always set if a node has this mode
                members = own(self.members.astype(x.dtype))
                true = ops.any(ops.equal(ops.unsqueeze(value, 2), members), 2)
            else:
                true = _COMPARE[mode](value, split)
            found = true if found is None else ops.where(own(self.modes == mode), true, found)
        if not self.missing.any():
            return found
        return ops.logical_or(found, ops.logical_and(ops.isnan(value), own(self.missing)))


def _scores(node: Node, trees: Trees, x: Tensor, aggregate: str) -> tuple[Tensor, Tensor | None]:
    """Return the aggregated weights (rows, targets) of the leaves that the rows reach, and a mask
    of the same shape: whether any of a row's leaves touches the target. The mask is None if all
    leaves touch all targets."""
    leaves = trees.leaves(node, x)
    touched = ~np.isnan(trees.weights)
    added = ops.take(make_const(np.where(touched, trees.weights, 0).astype(x.dtype)), leaves, 0)
    is_leaf = (trees.yes == np.arange(len(touched))) & (trees.no == np.arange(len(touched)))
    each = None if touched[is_leaf].all() else ops.take(make_const(touched), leaves, 0)
    any_ = None if each is None else ops.any(each, 1)
    if aggregate in ("SUM", "AVERAGE"):
        total = ops.sum(added, 1)
        by = float(len(trees.roots))
        return (ops.divide(total, by) if aggregate == "AVERAGE" else total), any_
    most = aggregate == "MAX"
    if each is not None:
        added = ops.where(each, added, -np.inf if most else np.inf)
    made = ops.max(added, 1) if most else ops.min(added, 1)
    return (made if any_ is None else ops.where(any_, made, 0.0)), any_


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
        raise node.invalid("a node leads to neither a node nor a leaf")
    codes = node.array("nodes_modes")
    if codes.min(initial=0) < 0 or codes.max(initial=0) >= len(_MODES):
        raise node.invalid(f"nodes_modes {codes.tolist()} are not 0 to {len(_MODES) - 1}")
    modes = np.array([_MODES[code] for code in codes] + ["LEQ"] * leaves)
    missing = node.integers("nodes_missing_value_tracks_true", (0,) * count)
    width = node.integer("n_targets")
    weights = np.full(bounded((count + leaves, width)), np.nan)
    weights[count + np.arange(leaves), list(targets)] = node.array("leaf_weights")
    members = node.array("membership_values") if node.has("membership_values") else None
    trees = Trees(
        modes,
        np.array([*node.integers("nodes_featureids"), *(0,) * leaves]),
        np.concatenate([splits.astype("float64"), np.zeros(leaves)]),
        np.array([*missing, *(0,) * leaves]) != 0,
        links[0],
        links[1],
        np.array(node.integers("tree_roots")),
        weights,
        _members(node, modes, members),
    )
    aggregate = node.integer("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        raise node.invalid(f"aggregate_function {aggregate} is not 0 to {len(_AGGREGATES) - 1}")
    return transformed(node, _scores(node, trees, x, _AGGREGATES[aggregate])[0])


def _members(node: Node, modes: np.ndarray, values: np.ndarray | None) -> np.ndarray | None:
    """Return the values of each MEMBER node, from a list in which NaN ends each node's values."""
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


def _numbers(node: Node, name: str) -> np.ndarray:
    """Return numbers of a node as float64, from a list of float32 or a tensor of another dtype."""
    if node.has(f"{name}_as_tensor"):
        return node.array(f"{name}_as_tensor").astype("float64").reshape(-1)
    return np.array(node.numbers(name, ()), "float64")


def _operand(data: Value) -> Tensor:
    """Return the input as float64 if it is float64, else as float32."""
    x = tensor(data)
    return x if x.dtype == "float64" else ops.cast(x, "float32")


def _listed(node: Node, what: str, width: int) -> Trees:
    """Return the trees from the node lists of the older operators. Leaves add `{what}_weights` to
    the targets `{what}_ids`, which are below `width`."""
    keys = list(zip(node.integers("nodes_treeids"), node.integers("nodes_nodeids"), strict=True))
    place = {key: i for i, key in enumerate(keys)}
    modes = node.texts("nodes_modes")
    names = np.array([mode.removeprefix("BRANCH_") for mode in modes])
    is_leaf = names == "LEAF"
    if not set(names[~is_leaf]) <= _COMPARE.keys():
        raise node.invalid(f"nodes_modes {sorted(set(modes))} are not all known")

    def at(tree: int, number: int) -> int:
        if (tree, number) not in place:
            raise node.invalid(f"tree {tree} has no node {number}")
        return place[tree, number]

    links = []
    for way in ("true", "false"):
        to = node.integers(f"nodes_{way}nodeids")
        rows = enumerate(zip(keys, to, is_leaf, strict=True))
        links.append(np.array([i if leaf else at(tree, n) for i, ((tree, _), n, leaf) in rows]))
    bounded((len(keys), width))
    weights = np.where(is_leaf[:, None], np.nan, 0.0) * np.ones(width)
    touched = zip(
        *(node.integers(f"{what}_{each}") for each in ("treeids", "nodeids", "ids")),
        _numbers(node, f"{what}_weights"),
        strict=True,
    )
    for tree, number, target, weight in touched:
        if not 0 <= target < width:
            raise node.invalid(f"{what}_ids has {target}, which is not below {width}")
        row = weights[at(tree, number)]
        row[target] = weight if np.isnan(row[target]) else row[target] + weight
    children = {int(n) for link in links for i, n in enumerate(link) if n != i}
    missing = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * len(keys)
    return Trees(
        names,
        np.array(node.integers("nodes_featureids")),
        _numbers(node, "nodes_values"),
        np.array(missing) != 0,
        links[0],
        links[1],
        np.array([i for i in range(len(keys)) if i not in children]),
        weights,
    )


@converter("TreeEnsembleRegressor", domain=_ML)
def tree_ensemble_regressor(node: Node, data: Value) -> Tensor:
    x = _operand(data)
    trees = _listed(node, "target", node.integer("n_targets", 1))
    aggregate = node.text("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        raise node.invalid(f"aggregate_function {aggregate!r} is unknown")
    made, _ = _scores(node, trees, x, aggregate)
    base = _numbers(node, "base_values")
    made = ops.add(made, make_const(base.astype(x.dtype))) if len(base) else made
    return transformed(node, ops.cast(made, "float32"))


@converter("TreeEnsembleClassifier", domain=_ML)
def tree_ensemble_classifier(node: Node, data: Value) -> tuple[Tensor, Tensor]:
    """Return the label of each row, and the scores (rows, classes). If there are two classes and
    leaves name only one, the leaves give the score of the second class, as in ONNX Runtime."""
    if not node.has("classlabels_int64s"):
        raise node.unsupported("labels that are strings; needle has integers only")
    labels = np.array(node.integers("classlabels_int64s"), "int64")
    x = _operand(data)
    trees = _listed(node, "class", len(labels))
    scores, touched = _scores(node, trees, x, "SUM")
    base = tuple(_numbers(node, "base_values").tolist())
    named = set(node.integers("class_ids"))
    if len(labels) == 2 and len(named) == 1:
        return _of_two(node, labels, scores, named.pop(), base)
    if base:
        if len(base) != len(labels):
            raise node.unsupported(f"there are {len(base)} base_values, but {len(labels)} classes")
        scores, touched = ops.add(scores, make_const(np.array(base, x.dtype))), None
    best = scores if touched is None else ops.where(touched, scores, -np.inf)
    label = ops.take(make_const(labels), ops.argmax(best, 1), 0)
    return label, transformed(node, ops.cast(scores, "float32"))


def _of_two(
    node: Node, labels: np.ndarray, scores: Tensor, named: int, base: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Return labels and scores of two classes from the score of the only class that leaves name.
    That score is a probability if no weight is negative; otherwise its sign decides."""
    if len(base) > 1 or (base and named):
        raise node.unsupported(f"{len(base)} base_values where leaves name only class {named}")
    score = scores[:, named : named + 1]
    score = ops.add_scalar(score, base[0]) if base else score
    probable = _numbers(node, "class_weights").min(initial=0.0) >= 0
    is_second = ops.greater(score, 0.5 if probable else 0.0)[:, 0]
    score = ops.cast(score, "float32")
    label = ops.where(is_second, make_const(labels[1:]), make_const(labels[:1]))
    if named:
        return label, transformed(node, ops.concat([init.zeros_like(score), score], 1))
    kind = node.text("post_transform", "NONE")
    if kind == "PROBIT":
        raise node.unsupported("PROBIT where leaves name one of two classes")
    if kind == "LOGISTIC":
        return label, ops.sigmoid(ops.concat([ops.negate(score), score], 1))
    other = ops.subtract(1.0, score) if probable else ops.negate(score)
    return label, ops.concat([other, score], 1)
