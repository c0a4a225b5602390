"""The forms in which dims of PyTorch inputs are given, and the errors for others."""

import pytest

from needle.errors import DimError
from needle.sizes.dims import Dim
from needle.torch.dims import asked

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer
N, M = Dim("n", max=64), Dim("m", min=2, max=9)
X, Y = torch.zeros(5, 8), torch.zeros(3)


def shapes(dims, *values, names="xyz"):
    return asked(list(names)[: len(values)], values, dims).shapes


def torchs():
    n = torch.export.Dim("n", max=64)
    return n, torch.export.Dim("m", min=2, max=9)


@pytest.mark.parametrize(
    "dims",
    [
        {"x": {0: N}, "y": {0: M}},
        {0: {0: N}, 1: {-1: M}},
        {"x": {0: torchs()[0]}, 1: (torchs()[1],)},
        ({0: N}, {0: M}),
        [(N, None), [M]],
        [{0: N, 1: None}, {0: M}],
        [{0: N, 1: torch.export.Dim.STATIC}, {0: M}],
        [{0: N, 1: 8}, {0: M}],
    ],
)
def test_forms_of_one_meaning(dims):
    assert shapes(dims, X, Y) == [(N, 8), (M,)]


def test_derived_dims_of_torch():
    n = torch.export.Dim("n", max=64)
    assert shapes({"x": {0: n}, "y": {0: 2 * n + 1}}, X, Y) == [(N, 8), (2 * N + 1,)]


def test_containers():
    value = {"a": X, "b": [Y, Y]}
    wanted = [(N, 8), (M,), (3,)]
    assert shapes({"x": {"a": {0: N}, "b": [(M,), None]}}, value) == wanted
    assert shapes([{"a": {0: N}, "b": [(M,), None]}], value) == wanted
    assert shapes({"x_a": {0: N}, "x_b_0": {0: M}}, value) == wanted


def test_a_dim_of_one_size_is_that_size():
    assert shapes({"x": {0: Dim("n", min=5, max=5)}}, X) == [(5, 8)]


def test_marks():
    x = torch.zeros(5, 8)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
    own = Dim("x_0", min=2, max=16)
    found = asked(["x"], [x], None)
    assert found.shapes == [(own, 8)]
    assert found.inferred == {own} and not found.optional
    assert shapes({"x": {0: N}}, x) == [(N, 8)]  # what is given counts before a mark


@pytest.mark.parametrize("kind", ["AUTO", "DYNAMIC"])
def test_hints(kind):
    found = asked(["x"], [X], {"x": {0: getattr(torch.export.Dim, kind)(max=7)}})
    (own,) = found.dims
    assert (own.name, own.bounds) == ("x_0", (1, 7))
    assert found.inferred == {own} and (own in found.optional) == (kind == "AUTO")


def test_the_sizes_at_which_a_model_is_traced():
    """Never 1, which torch.export takes for a constant, and different for different dims."""
    found = asked(["x", "y"], [torch.zeros(1, 1), torch.zeros(1)], {"x": {0: N, 1: M}, "y": {0: N}})
    sizes = found.sizes()
    assert sizes.keys() == {"n", "m"} and sizes["n"] != sizes["m"]
    assert all(2 <= sizes[dim.name] <= dim.max for dim in (N, M))
    x, y = found.resized(sizes)
    assert tuple(x.shape) == (sizes["n"], sizes["m"]) and tuple(y.shape) == (sizes["n"],)
    tiles = Dim("t", min=16, max=64, multiple_of=16)
    assert asked(["x"], [X], {"x": {0: tiles}}).sizes()["t"] % 16 == 0
    both = Dim("b", max=2)
    assert asked(["x"], [X], {"x": {0: both}}).sizes() == {"b": 2}


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        (3, "must be a dict like"),
        ({"q": {0: N}}, "'q' is not an input; they are x, y"),
        ({7: {0: N}}, "7 is not an input"),
        ({"x": {0: N}, 0: {0: N}}, "input 'x' is given twice"),
        ({"x": {2: N}}, "which has no axis 2"),
        ({"x": {0: "n"}}, r"dims\['x'\]\[0\]='n': must be a Dim or an expression of dims"),
        ({"x": {0: 6}}, r"dims\['x'\]\[0\]=6: the example has 5 there"),
        ({"x": (N,)}, r"dims\['x'\] has 1 entries, but the input has 2 axes"),
        ({"x": N}, "must be a dict from axes to dims"),
        ({"x": {0: torch.export.Dim("n")}}, r"torch's Dim 'n' has no max: .*Dim\('n', max=64\)"),
        ({"x": {0: torch.export.Dim.AUTO}}, r"axis 0 of input 'x' has no largest size.*AUTO\(max"),
        ({"x": {0: N}, "y": {0: Dim("n", max=3)}}, "two dims have one name"),
    ],
)
def test_dims_that_are_none(dims, match):
    with pytest.raises(DimError, match=match):
        asked(["x", "y"], [X, Y], dims)


def test_a_mark_without_a_largest_size():
    x = torch.zeros(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(DimError, match=r"mark_dynamic\(x, 0, max=\.\.\.\)"):
        asked(["x"], [x], None)


def test_other_nesting():
    with pytest.raises(DimError, match=r"dims\['x'\].*: must be nested like the argument"):
        shapes({"x": [{0: N}]}, [X, Y])
