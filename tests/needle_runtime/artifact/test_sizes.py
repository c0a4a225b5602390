"""Extents in manifests, and the sizes of a call's inputs."""

import numpy as np
import pytest
from hypothesis import given

from needle.sizes.dims import Expression
from needle_runtime.artifact.sizes import Dim, Extent, Sizes, parse_dims, parse_shape
from needle_runtime.errors import InputError
from tests.needle.test_dims import FORMS, SIZES, expressed

N, M = Dim("n", 1, 20, 1), Dim("m", 8, 64, 8)
NAMES = ["n", "m", "k"]


@given(FORMS, SIZES)
def test_text_has_the_expressions_value(form, sizes):
    made = expressed(form)
    if isinstance(made, Expression):
        by_name = {dim.name: size for dim, size in sizes.items()}
        assert Extent(repr(made), NAMES).at(by_name) == made.value(sizes)


@given(FORMS, SIZES)
def test_linear_extents_are_lines(form, sizes):
    made = expressed(form)
    if not isinstance(made, Expression):
        return
    dims = [Dim(name, 1, 1000, 1) for name in NAMES]
    found = Extent(repr(made), NAMES).linear(dims)
    if found is not None:
        by_name = {dim.name: size for dim, size in sizes.items()}
        number, factor, added = found
        assert factor > 0 and factor * by_name[NAMES[number]] + added == made.value(sizes)


@pytest.mark.parametrize(
    ("text", "linear"),
    [
        ("n", (0, 1, 0)),
        ("2 * n + 1", (0, 2, 1)),
        ("m - 3", (1, 1, -3)),
        ("n // 2", None),
        ("n * n", None),
        ("n * n - n * n + n", (0, 1, 0)),
        ("n + m", None),
        ("-n + 9", None),
    ],
)
def test_which_extents_are_linear(text, linear):
    assert Extent(text, NAMES).linear([N, M]) == linear


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "4",
            "q",
            "n.real",
            "n[0]",
            "n()",
            "__import__('os')",
            "n if n else m",
            "n ** 2",
            "n / 2",
        ),
        *("lambda: n", "n; m", "n = 3", "1.5", "'n'", "True and n", "n < m", "(n, m)", "n\0", "~n"),
        *("(" * 500 + "n" + ")" * 500, "n + " * 400 + "n", "-" * 900 + "n" * 200),
    ],
)
def test_other_text_is_no_extent(text):
    with pytest.raises(ValueError, match="extent"):
        Extent(text, NAMES)


@pytest.mark.parametrize(
    "entries",
    [
        [{"name": "n", "min": 1, "max": 2}],
        [{"name": "2", "min": 1, "max": 2, "multiple_of": 1}],
        [{"name": "n", "min": 3, "max": 2, "multiple_of": 1}],
        [{"name": "n", "min": 0, "max": 2, "multiple_of": 1}],
        [{"name": "n", "min": 1, "max": 2.5, "multiple_of": 1}],
        [{"name": "n", "min": 1, "max": 2, "multiple_of": 1}] * 2,
    ],
)
def test_entries_that_are_no_dims(entries):
    with pytest.raises((ValueError, KeyError)):
        parse_dims(entries)


@pytest.mark.parametrize("shape", [[-1], ["q"], [1.5], [None], [True], [["n"]]])
def test_entries_that_are_no_shapes(shape):
    with pytest.raises(ValueError, match=r"shape|extent"):
        parse_shape(shape, [N])


def sizes_of(*shapes):
    found = [parse_shape(shape, [N, M]) for shape in (["2 * n", 3], ["n", "m"], ["n + m"])]
    return Sizes([N, M], list(zip(["x", "y", "z"], found, strict=True))).of(shapes)


def test_sizes_are_found_wherever_a_dim_stands_alone():
    assert sizes_of((10, 3), (5, 16), (21,)) == {"n": 5, "m": 16}
    assert all(
        type(size) is int for size in sizes_of(np.zeros((2, 3)).shape, (1, 8), (9,)).values()
    )


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((42, 3), (21, 8), (29,)), "input 'y' has 21 along axis 0, where n is from 1 to 20"),
        (((10, 3), (5, 12), (17,)), "'y' has 12 along axis 1, where m is a multiple of 8 from 8"),
        (((9, 3), (5, 8), (13,)), r"'x' has 9 along axis 0, where 2 \* n = 10 is expected \(n = 5"),
        (
            ((10, 3), (5, 8), (14,)),
            r"'z' has 14 .* n \+ m = 13 .*n = 5 from input 'y', axis 0, m = 8",
        ),
    ],
)
def test_sizes_that_do_not_fit(shapes, match):
    with pytest.raises(InputError, match=match):
        sizes_of(*shapes)


def test_a_dim_that_no_axis_is_the_whole_of():
    sizes = Sizes([N, M], [("x", parse_shape(["2 * n + 1", "m - 3"], [N, M]))])
    assert sizes.of([(15, 13)]) == {"n": 7, "m": 16}
    for shape, words in (
        ((14, 13), r"'x' has 14 along axis 0, where 2 \* n \+ 1 is expected and n is from 1 to 20"),
        ((43, 13), "'x' has 43 along axis 0, .* and n is from 1 to 20"),
        ((15, 14), "'x' has 14 along axis 1, where m - 3 is expected and m is a multiple of 8"),
    ):
        with pytest.raises(InputError, match=words):
            sizes.of([shape])


def test_a_dim_must_be_told_by_an_axis():
    with pytest.raises(ValueError, match="dims"):
        Sizes([N], [("x", parse_shape(["n * n"], [N]))])
