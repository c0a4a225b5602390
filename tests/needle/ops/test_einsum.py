"""einsum against NumPy's."""

import string

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ShapeError
from needle.ops import _contraction, _subscripts
from tests.needle.directional import check_gradients

CASES = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "kj,ji": [(3, 4), (4, 5)],  # the result is (i, k)
    "ij , jk -> ki": [(3, 4), (4, 5)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bij,bjk->kbi": [(2, 3, 4), (2, 4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "ij,jk,kl->il": [(2, 9), (9, 3), (3, 4)],
    "ij,bjk->bik": [(3, 4), (2, 4, 5)],
    "bij,jk->ibk": [(2, 3, 4), (4, 5)],
    "abc,bcd->da": [(2, 3, 4), (3, 4, 5)],
    "abcd,cdab->ab": [(2, 3, 4, 5), (4, 5, 2, 3)],
    "bn,anm,bm->ba": [(2, 3), (5, 3, 4), (2, 4)],
    "ii": [(4, 4)],
    "ii->i": [(4, 4)],
    "iij->ji": [(4, 4, 2)],
    "iii->i": [(3, 3, 3)],
    "ij->": [(3, 4)],
    "ji": [(3, 4)],
    "i->i": [(3,)],
    "ij,j": [(3, 4), (4,)],
    "j,ij->i": [(4,), (3, 4)],
    "bij,bj->bi": [(2, 3, 4), (2, 4)],
    "i,ij,j->": [(3,), (3, 4), (4,)],
    "i,i": [(3,), (3,)],
    "bi,bi->b": [(2, 3), (2, 3)],
    "i,j": [(3,), (4,)],
    "a,b,c,d->abcd": [(2,), (3,), (4,), (5,)],
    "ij,ij->ij": [(3, 4), (3, 4)],
    "ij,ji->ij": [(3, 4), (4, 3)],
    "ij,kl->il": [(3, 4), (2, 5)],
    ",i->i": [(), (3,)],
    "...ij,...jk->...ik": [(2, 3, 4), (3, 1, 4, 5)],
    "...,...->...": [(3, 1), (4,)],
    "b...i,ij->b...j": [(2, 3, 4, 5), (5, 6)],
    "i...": [(2, 3)],
    "i...->...": [(2, 3)],
    "...ii->...i": [(2, 3, 3)],
    "ij,jk->ik ": [(3, 1), (4, 5)],  # an extent of 1 broadcasts
    "ij,jk->ik  ": [(3, 0), (0, 5)],
    "ea,fb,abcd,gc,hd->efgh": [(3, 2), (4, 2), (2, 2, 2, 2), (5, 2), (6, 2)],
    "ab,bc,cd,de,ef,fg->ag": [(2, 3), (3, 4), (4, 2), (2, 5), (5, 3), (3, 2)],
}


@pytest.mark.parametrize("subscripts", CASES)
def test_is_numpys(subscripts, device):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in CASES[subscripts]]
    integers = [rng.integers(-(2**20), 2**20, shape).astype("int32") for shape in CASES[subscripts]]
    bools = [rng.random(shape) < 0.5 for shape in CASES[subscripts]]
    for given in (arrays, integers, bools):
        want = np.einsum(subscripts, *given)
        got = ops.einsum(subscripts, *[ndl.Tensor(a, device=device) for a in given])
        assert got.dtype == want.dtype.name and got.shape == want.shape
        exact = {} if given is arrays else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(got.numpy(), want, **{"rtol": 1e-12, "atol": 1e-12} | exact)


@pytest.mark.parametrize("subscripts", [s for s in CASES if "(3, 0)" not in str(CASES[s])])
def test_gradients(subscripts):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in CASES[subscripts]]
    check_gradients(lambda *xs: ops.einsum(subscripts, *xs), *arrays)


def test_random_equations():
    """Any labels, in any order, also twice in an operand, and any of them in the result."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        size = dict(zip("abcde", rng.integers(1, 4, 5).tolist(), strict=True))
        terms = [
            "".join(rng.choice(list(size), rng.integers(0, 4))) for _ in range(rng.integers(1, 5))
        ]
        used = sorted(set("".join(terms)))
        kept = "".join(rng.permutation([x for x in used if rng.random() < 0.5]))
        subscripts = f"{','.join(terms)}->{kept}"
        arrays = [rng.standard_normal([size[x] for x in term]) for term in terms]
        got = ops.einsum(subscripts, *map(ndl.Tensor, arrays))
        want = np.einsum(subscripts, *arrays)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-11, atol=1e-11, err_msg=subscripts)


def test_lists_of_labels():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 5))
    x, y = ndl.Tensor(a), ndl.Tensor(b)
    for labels in (([0, 1, 2], [2, 3], [3, 0, 1]), ([Ellipsis, 7], [7, 8], [Ellipsis, 8])):
        first, second, wanted = labels
        got = ops.einsum(x, first, y, second, wanted)
        np.testing.assert_allclose(got.numpy(), np.einsum(a, first, b, second, wanted), rtol=1e-12)
        got = ops.einsum(x, first, y, second)
        np.testing.assert_allclose(got.numpy(), np.einsum(a, first, b, second), rtol=1e-12)
    np.testing.assert_allclose(
        ndl.einsum("abc,cd", [x, y]).numpy(), np.einsum("abc,cd", a, b), rtol=1e-12
    )


def test_an_ellipsis_that_the_result_lacks_is_summed():
    """As in PyTorch; NumPy refuses it."""
    x = np.arange(24.0).reshape(2, 3, 4)
    got = ops.einsum("...i->i", ndl.Tensor(x))
    np.testing.assert_allclose(got.numpy(), x.sum((0, 1)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype):
    x = ndl.ones(3, 4, dtype=dtype)
    assert ops.einsum("ij,kj->ik", x, x).dtype == dtype
    assert ops.einsum("ij->i", x).dtype == dtype
    assert ops.einsum("ij,kj->ik", x, ndl.ones(2, 4, dtype="float64")).dtype == "float64"


def test_halves_are_summed_in_float32(device):
    """Products of float16 that are beyond its range, and cancel."""
    x = ndl.Tensor(np.array([300.0, 300.0, 1.0], "float16"), device=device)
    y = ndl.Tensor(np.array([300.0, -300.0, 1.0], "float16"), device=device)
    assert ops.einsum("i,i->", x, y).item() == 1 and ops.dot(x, y).item() == 1
    rows = [ops.stack([each, each]) for each in (x, y)]
    assert ops.einsum("bi,bi->b", *rows).numpy().tolist() == [1, 1]
    assert ops.einsum("bi,bi->", *rows).item() == 2


def test_the_order_is_chosen():
    """A chain whose last operand is a vector is a chain of matrices times vectors."""

    def largest(subscripts, *shapes):
        inputs, output = _subscripts.parsed(subscripts, tuple(map(len, shapes)))
        steps = _contraction.program("einsum", inputs, output, shapes, False)
        xs = [ndl.zeros(*shape) for shape in shapes]
        for function, places in steps:
            xs.append(function(*[xs[at] for at in places]))
        return max(x.size for x in xs[len(shapes) :])

    assert largest("ij,jk,kl,l->i", (50, 50), (50, 50), (50, 50), (50,)) == 50
    assert largest("ij,jk,kl->il", (2, 50), (50, 50), (50, 50)) == 100
    assert largest("ij,jk,kl->il", (50, 50), (50, 50), (50, 2)) == 100


def test_a_plain_matmul_is_one_op():
    for subscripts, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("bij,jk->bik", ((2, 3, 4), (4, 5))),
        ("ij,bjk->bik", ((3, 4), (2, 4, 5))),
        ("ij,j->i", ((3, 4), (4,))),
    ):
        inputs, output = _subscripts.parsed(subscripts, tuple(map(len, shapes)))
        steps = _contraction.program("einsum", inputs, output, shapes, False)
        assert [function for function, _ in steps] == [ops.MATMUL], subscripts


@pytest.mark.parametrize(
    ("subscripts", "shapes", "error", "match"),
    [
        ("ij,jk", [(3, 4), (5, 6)], ShapeError, r"axis 0 of operand 1 .* 5, .* 'j' has 4"),
        ("...i,...i", [(2, 4), (3, 4)], ShapeError, r"extent 3, .* '\.\.\.' has 2"),
        ("ii", [(3, 4)], ShapeError, "extent 4"),
        ("ii", [(3, 1)], ShapeError, "extents 3 and 1"),
        ("ij", [(3,)], ShapeError, "operand 0 has 1 axes, 'ij' names 2"),
        ("ij...", [(3,)], ShapeError, "names at least 2"),
        ("i", [(3, 2)], ShapeError, "has 2 axes"),
        ("i->j", [(3,)], ValueError, "'j' of the result is in no operand"),
        ("i->ii", [(3,)], ValueError, "label 'i' twice"),
        ("i1", [(3, 2)], ValueError, "'1' in 'i1' is not allowed"),
        ("i->i->i", [(3,)], ValueError, "'-' in .* is not allowed"),
        ("......", [(3,)], ValueError, "is not allowed"),
        ("i,j", [(3,)], ValueError, "describes 2 operands, 1 given"),
        ("", [], ValueError, "no operands"),
    ],
)
def test_refused(subscripts, shapes, error, match):
    with pytest.raises(error, match=match):
        ops.einsum(subscripts, *[ndl.ones(*shape) for shape in shapes])


def test_refused_lists():
    x = ndl.ones(2, 3)
    for arguments, error, match in (
        (("ij", np.ones((2, 3))), TypeError, "operand 0 is a ndarray"),
        ((x, "ij"), TypeError, "'ij' is not a list of labels"),
        ((x, [0, 52]), ValueError, "label 52"),
        ((x, [..., ...]), ValueError, "more than one Ellipsis"),
        ((x, [0]), ShapeError, "has 2 axes"),
    ):
        with pytest.raises(error, match=match):
            ops.einsum(*arguments)
    terms = [string.ascii_letters[i : i + 13] for i in range(0, 52, 13)]
    with pytest.raises(ValueError, match="53 labels are more than 52"):
        ops.einsum(",".join(f"...{term}" for term in terms) + "->", *[ndl.ones(*[2] * 14)] * 4)
