"""needle.linalg against NumPy's and PyTorch's, with gradients of first and second order."""

import math

import numpy as np
import pytest

import needle as ndl
from needle import linalg, ops
from needle.errors import LinAlgError, ShapeError
from needle.trace import trace
from tests.needle.directional import check_gradients

LEAD = [(), (2,), (2, 3)]
SHAPES = [(3, 3), (4, 3), (3, 4)]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positive(x):
    """A symmetric positive definite matrix of any one, of needle or PyTorch."""
    turned = x.swapaxes(-1, -2)
    return x @ turned + eye(x)


def eye(x):
    if isinstance(x, ndl.Tensor):
        return ndl.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    import torch

    return torch.eye(x.shape[-1], dtype=x.dtype)


def same(got, want, tolerance=1e-10):
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lead", LEAD)
def test_square_matrices_are_numpys(lead, device):
    x = drawn(*lead, 3, 3)
    a = ndl.Tensor(x, device=device)
    same(linalg.inv(a), np.linalg.inv(x))
    same(a.inverse(), np.linalg.inv(x))
    same(a.det(), np.linalg.det(x))
    for got, want in zip(a.slogdet(), np.linalg.slogdet(x), strict=True):
        same(got, want)
    for n in (0, 1, 2, 5, -1, -3):
        same(a.matrix_power(n), np.linalg.matrix_power(x, n), 1e-8)
    spd = x @ x.swapaxes(-1, -2) + np.eye(3)
    p = ndl.Tensor(spd, device=device)
    lower = linalg.cholesky(p)
    same(lower, np.linalg.cholesky(spd))
    same(p.cholesky(upper=True), np.linalg.cholesky(spd).swapaxes(-1, -2))
    values, vectors = linalg.eigh(p)
    same(values, np.linalg.eigvalsh(spd))
    same(linalg.eigvalsh(p), np.linalg.eigvalsh(spd))
    same(vectors * values.reshape(*lead, 1, 3) @ vectors.swapaxes(-1, -2), spd)
    assert lower.device is device and values.dtype == "float64"


@pytest.mark.parametrize("lead", LEAD)
def test_systems_are_numpys(lead, device):
    x = drawn(*lead, 3, 3)
    a = ndl.Tensor(x, device=device)
    for shape in [(3,), (3, 2), (*lead, 3, 2), (5, *lead, 3, 2)]:
        b = drawn(*shape, seed=1)
        same(linalg.solve(a, ndl.Tensor(b, device=device)), np.linalg.solve(x, b))
    b = drawn(*lead, 3)  # PyTorch's rule: right sides as rows
    same(linalg.solve(a, ndl.Tensor(b, device=device)), np.linalg.solve(x, b[..., None])[..., 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lead", LEAD)
def test_any_matrices_are_numpys(lead, shape, device):
    x = drawn(*lead, *shape)
    a = ndl.Tensor(x, device=device)
    same(linalg.pinv(a), np.linalg.pinv(x))
    same(a.pinverse(), np.linalg.pinv(x))
    for mode in ("reduced", "complete"):
        for got, want in zip(linalg.qr(a.detach(), mode), np.linalg.qr(x, mode), strict=True):
            same(got, want)
    for full in (False, True):
        for got, want in zip(linalg.svd(a, full), np.linalg.svd(x, full), strict=True):
            same(got, want)
    for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        for keepdims in (False, True):
            want = np.linalg.norm(x, ord, (-2, -1), keepdims)
            same(linalg.norm(a, ord, (-2, -1), keepdims), want)
            want = np.linalg.norm(x, ord, (-1, -2), keepdims)
            same(linalg.norm(a, ord, (-1, -2), keepdims), want)
    same(linalg.norm(a), np.linalg.norm(x))
    same(linalg.norm(a, axes=(-1, -2)), np.linalg.norm(x, axis=(-1, -2)))
    same(linalg.norm(a, 3, -1), np.linalg.norm(x, 3, -1))
    same(linalg.norm(a, axes=-1), np.linalg.norm(x, axis=-1))


@pytest.mark.parametrize("shape", SHAPES)
def test_least_squares_are_numpys(shape, device):
    x = drawn(*shape)
    for b in (drawn(shape[0], seed=1), drawn(shape[0], 2, seed=1)):
        got = linalg.lstsq(ndl.Tensor(x, device=device), ndl.Tensor(b, device=device))
        solution, _, rank, values = np.linalg.lstsq(x, b, rcond=None)
        same(got.solution, solution)
        same(got.residuals, ((x @ solution - b) ** 2).sum(0))
        same(got.singular_values, values)
        assert got.rank.item() == rank and got.rank.dtype == "int64"
    low = np.outer(x[:, 0], x[0])
    assert linalg.lstsq(ndl.Tensor(low), ndl.Tensor(drawn(shape[0]))).rank.item() == 1


def test_no_elements(device):
    a = ndl.zeros(0, 3, 3, device=device)
    assert linalg.inv(a).shape == (0, 3, 3) and linalg.det(a).shape == (0,)
    assert linalg.svd(a).S.shape == (0, 3)
    same(linalg.det(ndl.zeros(2, 0, 0, dtype="float64")), np.ones(2))


@pytest.mark.parametrize(
    ("given", "result"),
    [("int32", "float64"), ("bool", "float64"), ("float16", "float16"), ("bfloat16", "bfloat16")],
)
def test_dtypes(given, result):
    """Integers are computed in float64, halves in float32 and rounded once."""
    x = np.array([[2, 0, 1], [0, 1, 0], [1, 0, 0]])
    a = ndl.Tensor(x.astype("f")).astype(given)
    wide = a.astype("float64" if result == "float64" else "float32")
    for function in (linalg.inv, linalg.pinv, lambda a: linalg.svd(a).S, lambda a: linalg.qr(a).R):
        got = function(a)
        assert got.dtype == result
        np.testing.assert_array_equal(got.numpy(), function(wide).astype(result).numpy())
    assert linalg.det(ndl.Tensor(x.astype("f"))).dtype == "float32"
    assert linalg.solve(ndl.Tensor(x.astype("f")), ndl.Tensor(x)).dtype == "float64"
    a = ndl.Tensor(x, dtype="float32").astype("float16")
    leaf = ndl.Tensor(a.numpy())
    linalg.inv(leaf).sum().backward()
    assert leaf.grad.dtype == "float16"


# name, a function of tensors of needle (or with `f` of PyTorch's linalg), shapes
FUNCTIONS = {
    "inv": (lambda f, a: f.inv(a), (3, 3)),
    "solve": (lambda f, a, b: f.solve(a, b), (3, 3), (3, 2)),
    "solve vectors": (lambda f, a, b: f.solve(a, b), (3, 3), (3,)),
    "cholesky": (lambda f, a: f.cholesky(positive(a)), (3, 3)),
    "det": (lambda f, a: f.det(a), (3, 3)),
    "slogdet": (lambda f, a: f.slogdet(a)[1], (3, 3)),
    "eigenvalues": (lambda f, a: f.eigh(positive(a))[0], (3, 3)),
    "eigenvectors": (lambda f, a: f.eigh(positive(a))[1] ** 2, (3, 3)),  # signs are free
    "power": (lambda f, a: f.matrix_power(a, 5), (3, 3)),
    "negative power": (lambda f, a: f.matrix_power(a, -2), (3, 3)),
}
for rows, columns in SHAPES:
    for part in range(3):
        if part < 2:
            FUNCTIONS[f"qr {rows} {columns} {part}"] = (
                lambda f, a, part=part: f.qr(a)[part],
                (rows, columns),
            )
        FUNCTIONS[f"svd {rows} {columns} {part}"] = (
            lambda f, a, part=part: f.svd(a, full_matrices=False)[part] ** 2,
            (rows, columns),
        )
    FUNCTIONS[f"full svd {rows} {columns}"] = (lambda f, a: f.svd(a)[1], (rows, columns))
    FUNCTIONS[f"pinv {rows} {columns}"] = (lambda f, a: f.pinv(a), (rows, columns))
    FUNCTIONS[f"norms {rows} {columns}"] = (
        lambda f, a: f.norm(a, "nuc") + f.norm(a, 2) * f.norm(a, -2) + f.norm(a, 1) ** 2,
        (rows, columns),
    )


def arrays_of(shapes, lead):
    return [drawn(*lead, *shape, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    function, *shapes = FUNCTIONS[name]
    for lead in ((), (2,)) if "norms" not in name else ((),):
        check_gradients(lambda *xs: function(linalg, *xs), *arrays_of(shapes, lead), tolerance=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_least_squares(shape):
    for part in (0, 1):
        check_gradients(
            lambda a, b, part=part: linalg.lstsq(a, b)[part] + 0.0,
            *(drawn(*shape), drawn(shape[0], 2, seed=1)),
        )


def test_gradient_of_broadcast_systems():
    check_gradients(linalg.solve, drawn(2, 1, 3, 3), drawn(4, 3, 2, seed=1))
    check_gradients(linalg.solve, drawn(2, 3, 3), drawn(3, seed=1))


@pytest.mark.peer
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name):
    torch = pytest.importorskip("torch")
    function, *shapes = FUNCTIONS[name]
    arrays = arrays_of(shapes, () if "norms" in name else (2,))
    mine = [ndl.Tensor(a) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    got, want = function(linalg, *mine), function(torch.linalg, *others)
    same(got, want.detach().numpy(), 1e-9)
    g = drawn(*want.shape, seed=9)
    got.backward(ndl.Tensor(g, requires_grad=False), create_graph=True)
    first = torch.autograd.grad(want, others, torch.tensor(g), create_graph=True)
    totals = [], []
    for number, (x, grad) in enumerate(zip(mine, first, strict=True)):
        same(x.grad, grad.detach().numpy(), 1e-8)
        d = drawn(*x.shape, seed=10 + number)
        totals[0].append((x.grad * ndl.Tensor(d, requires_grad=False)).sum())
        totals[1].append((grad * torch.tensor(d)).sum())
    second = torch.autograd.grad(sum(totals[1]), others, allow_unused=True)
    for x in mine:
        x.grad = None
    sum(totals[0][1:], totals[0][0]).backward()
    for x, grad in zip(mine, second, strict=True):
        wanted = np.zeros(x.shape) if grad is None else grad.numpy()
        found = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(
            found, wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max())
        )


def test_determinant_of_singular_matrices():
    """The gradient is that of the cofactors: also where there is no inverse, in a batch of both."""
    low = drawn(3, 3)
    low[2] = low[0] + 2 * low[1]
    low[:, 2] = 0
    for x in (low, np.stack([low, drawn(3, 3, seed=1)]), np.zeros((1, 1)), np.eye(2)):
        leaf = ndl.Tensor(x)
        linalg.det(leaf).sum().backward()
        wanted = np.zeros(x.shape)
        for index in np.ndindex(x.shape):
            m = x[index[:-2]]
            minor = np.delete(np.delete(m, index[-2], 0), index[-1], 1)
            wanted[index] = (-1) ** (index[-2] + index[-1]) * np.linalg.det(minor)
        np.testing.assert_allclose(leaf.grad.numpy(), wanted, rtol=1e-10, atol=1e-10)
    check_gradients(linalg.det, low)


def test_equal_values_have_the_gradient_of_what_does_not_depend_on_vectors():
    leaf = ndl.Tensor(np.eye(3))
    linalg.svd(leaf).S.sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), np.eye(3), atol=1e-12)
    leaf = ndl.Tensor(np.eye(3) * 2)
    linalg.eigh(leaf).eigenvalues.sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), np.eye(3), atol=1e-12)


def test_gradients_of_symmetric_functions_are_symmetric():
    x = drawn(3, 3)
    x = x @ x.T + np.eye(3)
    for function in (linalg.cholesky, linalg.eigvalsh):
        leaf = ndl.Tensor(x)
        (function(leaf) ** 3).sum().backward()
        np.testing.assert_allclose(leaf.grad.numpy(), leaf.grad.numpy().T, rtol=1e-12)


ONE = [[1.0, 2.0], [2.0, 4.0]]
LEAF = ndl.Tensor(drawn(3, 2))
BATCH = [[[2.0, 0.0], [0.0, 1.0]], ONE]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: linalg.inv(ndl.Tensor(ONE)),
            LinAlgError,
            r"linalg.inv: the matrix .* is singular",
        ),
        (
            lambda: linalg.inv(ndl.Tensor(BATCH)),
            LinAlgError,
            r"matrix \(1,\) .*\(2, 2, 2\) is sing",
        ),
        (
            lambda: linalg.solve(ndl.Tensor(BATCH), ndl.ones(2)),
            LinAlgError,
            r"solve: matrix \(1,\)",
        ),
        (lambda: linalg.matrix_power(ndl.Tensor(ONE), -1), LinAlgError, "singular"),
        (lambda: linalg.cholesky(-ndl.eye(2)), LinAlgError, "not positive definite"),
        (lambda: linalg.svd(ndl.full((2, 2), math.nan)), LinAlgError, "NaN"),
        (lambda: linalg.inv(ndl.ones(2, 3)), ShapeError, r"\(2, 3\) are not square.* 2 and 3"),
        (lambda: linalg.det(ndl.ones(3)), ShapeError, r"linalg.det: shape \(3,\) has no matrices"),
        (lambda: linalg.cholesky(ndl.ones(2, 3)), ShapeError, "linalg.cholesky.* not square"),
        (lambda: linalg.eigh(ndl.ones(2, 3)), ShapeError, "linalg.eigh.* not square"),
        (lambda: linalg.slogdet(ndl.ones(2, 3)), ShapeError, "linalg.slogdet.* not square"),
        (lambda: linalg.matrix_power(ndl.ones(2, 3), 2), ShapeError, "matrix_power.* not square"),
        (lambda: linalg.qr(ndl.ones(3)), ShapeError, "linalg.qr.* fewer than two axes"),
        (lambda: linalg.svd(ndl.ones(3)), ShapeError, "linalg.svd.* fewer than two axes"),
        (lambda: linalg.pinv(ndl.ones(3)), ShapeError, "linalg.pinv.* fewer than two axes"),
        (lambda: linalg.solve(ndl.eye(3), ndl.ones(2)), ShapeError, "a has 3 rows"),
        (lambda: linalg.solve(ndl.ones(2, 3, 3), ndl.ones(4, 3, 1)), ShapeError, "broadcast"),
        (lambda: linalg.lstsq(ndl.ones(4, 3), ndl.ones(3)), ShapeError, "a has 4 rows"),
        (lambda: linalg.qr(ndl.ones(3, 3), "raw"), ValueError, "mode 'raw'"),
        (lambda: linalg.qr(LEAF, "complete"), RuntimeError, "no gradient"),
        (lambda: linalg.pinv(ndl.ones(3, 2), -1.0), ValueError, "rtol -1.0 is not >= 0"),
        (lambda: linalg.norm(ndl.ones(3, 2), 3), ValueError, "ord 3 is not 'fro'"),
        (lambda: linalg.norm(ndl.ones(3), "fro"), ValueError, "is for matrices"),
        (lambda: linalg.norm(ndl.ones(3, 2, 2), 2), ShapeError, "not 3 of shape"),
        (lambda: linalg.inv(np.eye(3)), TypeError, "input 0 is a ndarray"),
        (lambda: linalg.solve(ndl.eye(3), 1.0), TypeError, "input 1 is a float"),
        (lambda: linalg.matrix_power(np.eye(3), 2), TypeError, "is a ndarray"),
        (lambda: linalg.norm(np.eye(3)), TypeError, "is a ndarray"),
        (lambda: linalg.svd(LEAF).U.sum().backward(), RuntimeError, "beyond the first 2"),
    ],
)
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize(
    "name",
    ["inv", "solve", "lstsq", "cholesky", "qr", "svd", "eigh", "det", "slogdet", "pinv", "norm"],
)
def test_tracing_refuses_them_by_name(name):
    more = {"solve": (ndl.ones(3),), "lstsq": (ndl.ones(3),), "norm": ("nuc",)}.get(name, ())
    with pytest.raises(ndl.TraceError, match=rf"linalg.{name}: tracing: .* only in eager code"):
        trace(lambda x: getattr(linalg, name)(x, *more), ndl.eye(3))


def test_what_is_made_of_ops_is_traced():
    graph = trace(lambda x: (linalg.matrix_power(x, 3), linalg.norm(x, 1), ops.norm(x)), ndl.eye(3))
    assert len(graph.outputs) == 3
