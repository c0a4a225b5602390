"""Nested arguments and results survive flattening and unflattening."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle_runtime.artifact import trees
from needle_runtime.errors import InputError

nested = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers(), inner, min_size=1, max_size=3),
    ),
    max_leaves=12,
)


def describe(value):
    if isinstance(value, dict) and any(isinstance(key, int) for key in value):
        return {"numbered": [[key, describe(part)] for key, part in value.items()]}
    if isinstance(value, dict):
        return {"dict": {name: describe(part) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [describe(part) for part in value]}
    return trees.LEAF


@given(nested)
def test_round_trip(value):
    tree = describe(value)
    arguments = [argument("x", tree), argument("again", tree)]
    flat = trees.flatten_arguments(arguments, (value,), {"again": value})
    assert len(flat) == 2 * trees.leaves(tree)
    half = len(flat) // 2
    assert flat[:half] == flat[half:]
    assert trees.unflatten(tree, flat[:half]) == value


def argument(name, tree):
    return {"name": name, "tree": tree}


def test_arguments_by_position_or_by_name():
    pair = [argument("a", "*"), argument("b", "*")]
    assert trees.flatten_arguments(pair, (1, 2), {}) == [1, 2]
    assert trees.flatten_arguments(pair, (1,), {"b": 2}) == [1, 2]
    assert trees.flatten_arguments(pair, (), {"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "args", "kwargs", "message"),
    [
        ([argument("x", "*")], (), {}, "argument 'x' is missing"),
        ([argument("x", "*")], (1, 2), {}, "takes 1 arguments .* given 2"),
        ([argument("x", "*")], (1,), {"y": 1}, "argument 'y' is not one"),
        ([argument("n", {"static": 3})], (4,), {}, "'n' is 4.*compiled for 3"),
        ([argument("n", {"static": 3})], (3.0,), {}, "'n' is 3.0.*compiled for 3"),
        ([argument("n", {"static": True})], (1,), {}, "'n' is 1.*compiled for True"),
        ([argument("n", {"static": None})], (0,), {}, "'n' is 0.*compiled for None"),
        ([argument("p", {"tuple": ["*", "*"]})], ((1,),), {}, "'p' must be a tuple of 2"),
        ([argument("d", {"dict": {"a": "*"}})], ({"b": 1},), {}, r"'d' .* keys \['a'\]"),
        ([argument("l", {"list": [{"list": ["*"]}]})], ([[]],), {}, r"'l'\[0\] must be a list"),
    ],
)
def test_another_structure_is_refused_by_name(arguments, args, kwargs, message):
    with pytest.raises(InputError, match=message):
        trees.flatten_arguments(arguments, args, kwargs)


@pytest.mark.parametrize("value", [float("nan"), np.float64(2.5), True, None, "mean"])
def test_a_static_value_stands_for_itself(value):
    kept = value.item() if isinstance(value, np.generic) else value
    assert trees.flatten_arguments([argument("n", {"static": kept})], (value,), {}) == []
