"""Nested arguments and results survive being flattened and put together again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from needle_tvm import trees
from needle_tvm.errors import InputError

nested = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=12,
)


def describe(value):
    if isinstance(value, dict):
        return {"dict": {name: describe(part) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [describe(part) for part in value]}
    return trees.LEAF


@given(nested)
def test_round_trip(value):
    tree = describe(value)
    arguments = [positional("x", tree), {"name": "again", "kind": "keyword", "tree": tree}]
    flat = trees.flatten_arguments(arguments, (value,), {"again": value})
    assert len(flat) == 2 * trees.leaves(tree)
    half = len(flat) // 2
    assert flat[:half] == flat[half:]
    assert trees.unflatten(tree, flat[:half]) == value


def positional(name, tree):
    return {"name": name, "kind": "positional", "tree": tree}


def test_arguments_bind_as_python_binds_them():
    arguments = [
        positional("a", "*"),
        {"name": "rest", "kind": "var_positional", "tree": {"tuple": ["*", "*"]}},
        {"name": "b", "kind": "keyword", "tree": "*"},
        {"name": "more", "kind": "var_keyword", "tree": {"dict": {"c": "*"}}},
    ]
    assert trees.flatten_arguments(arguments, (1, 2, 3), {"b": 4, "c": 5}) == [1, 2, 3, 4, 5]
    pair = [positional("a", "*"), positional("b", "*")]
    assert trees.flatten_arguments(pair, (), {"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "args", "kwargs", "message"),
    [
        ([positional("x", "*")], (), {}, "argument 'x' is missing"),
        ([positional("x", "*")], (1, 2), {}, "takes 1 positional .* given 2"),
        ([positional("x", "*")], (1,), {"y": 1}, "argument 'y' is not one"),
        ([positional("n", {"static": 3})], (4,), {}, "'n' is 4.*compiled for 3"),
        ([positional("p", {"tuple": ["*", "*"]})], ((1,),), {}, "'p' must be a tuple of 2"),
        ([positional("d", {"dict": {"a": "*"}})], ({"b": 1},), {}, r"'d' .* keys \['a'\]"),
        ([positional("l", {"list": [{"list": ["*"]}]})], ([[]],), {}, r"'l'\[0\] must be a list"),
    ],
)
def test_another_structure_is_refused_by_name(arguments, args, kwargs, message):
    with pytest.raises(InputError, match=message):
        trees.flatten_arguments(arguments, args, kwargs)
