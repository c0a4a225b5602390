"""Interpolation and grids at the edges of what they take: NaN, infinities, empty images, halves."""

import itertools

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.nn import functional as F

KINDS = list(
    itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    )
)


def drawn(*shape, low=-1.2):
    return np.random.default_rng(0).uniform(low, -low, shape).astype("float32")


def constant(values):
    return ndl.Tensor(values, requires_grad=False)


def image_and_points():
    points = drawn(1, 2, 3, 2)
    points[0, 0, :, 0] = np.nan, np.inf, -np.inf
    points[0, 1, 0, 1] = 1e20
    return drawn(1, 2, 5, 6), points


@pytest.mark.peer
@pytest.mark.parametrize(("mode", "padding", "align"), KINDS)
def test_points_that_are_not_numbers_are_torchs(mode, padding, align):
    torch = pytest.importorskip("torch")
    x, points = image_and_points()
    found = F.grid_sample(constant(x), constant(points), mode, padding, align)
    theirs = (torch.from_numpy(a) for a in (x, points))
    expected = torch.nn.functional.grid_sample(*theirs, mode, padding, align)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_points_that_are_not_numbers_compiled():
    x, points = (constant(a) for a in image_and_points())
    chosen = KINDS[:5:2]  # a compilation of all would take minutes

    def all_kinds(x, points):
        return tuple(F.grid_sample(x, points, *kind) for kind in chosen)

    found = needle_tvm.jit(all_kinds)(x, points)
    for kind, got, want in zip(chosen, found, all_kinds(x, points), strict=True):
        np.testing.assert_allclose(
            got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5, err_msg=str(kind)
        )


@pytest.mark.peer
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float16", 5e-3)])
def test_other_floats_are_torchs(dtype, tolerance):
    torch = pytest.importorskip("torch")
    x, points = drawn(1, 2, 5, 6), drawn(1, 4, 3, 2)
    ours = [constant(a).astype(dtype) for a in (x, points)]
    theirs = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in (x, points)]
    pairs = [
        (F.grid_sample(*ours), torch.nn.functional.grid_sample(*theirs, align_corners=False)),
        *(
            (
                F.interpolate(ours[0], size, mode=mode),
                torch.nn.functional.interpolate(theirs[0], size, mode=mode),
            )
            for mode in ("nearest", "nearest-exact", "area", "bilinear", "bicubic")
            for size in ((10, 12), (3, 4), (7, 11))
        ),
    ]
    for found, expected in pairs:
        assert found.dtype == dtype
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.interpolate(x[:, :, :0], 2), ndl.ShapeError, r"\(1, 2, 0, 4\)"),
        (lambda x: F.interpolate(x.numpy(), 2), TypeError, "x is a ndarray"),
        (lambda x: F.grid_sample(x[:, :, :0], x[..., :2]), ndl.ShapeError, r"\(1, 2, 0, 4\)"),
        (lambda x: F.grid_sample(x, x.numpy()), TypeError, "grid is a ndarray"),
        (lambda x: F.affine_grid(x.numpy(), (1, 1, 2, 2)), TypeError, "theta is a ndarray"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(constant(drawn(1, 2, 3, 4)))


def test_numbers_of_numpy_are_factors():
    x = constant(drawn(1, 2, 3, 4))
    assert F.interpolate(x, scale_factor=np.float32(2.5)).shape == (1, 2, 7, 10)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize(("mode", "padding", "align"), KINDS)
def test_kernels_of_grids_and_their_composition_agree(mode, padding, align, axes):
    """The kernels' gradients beside those of the composition, which create_graph asks for."""
    if mode == "bicubic" and axes == 3:
        return
    rng = np.random.default_rng(1)
    x = ndl.Tensor(rng.normal(size=(2, 3, *(5, 4, 3)[:axes])))
    grid = ndl.Tensor(rng.uniform(-1.6, 1.6, (2, *(4, 3, 2)[:axes], axes)))
    weights = ndl.Tensor(rng.normal(size=(2, 3, *(4, 3, 2)[:axes])), requires_grad=False)
    y = F.grid_sample(x, grid, mode, padding, align)
    plain = ndl.autograd.grad((y * weights).sum(), [x, grid])
    y = F.grid_sample(x, grid, mode, padding, align)
    recorded = ndl.autograd.grad((y * weights).sum(), [x, grid], create_graph=True)
    for found, expected in zip(plain, recorded, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-11)
    if mode == "nearest":
        return
    # The second order, beside differences of the first.
    (second,) = ndl.autograd.grad((recorded[1] * 3).sum(), [x])
    step, d = 1e-6, rng.normal(size=x.shape)

    def slope(change):
        moved = ndl.Tensor(x.numpy() + change * d)
        z = F.grid_sample(moved, grid, mode, padding, align)
        return (ndl.autograd.grad((z * weights).sum(), [grid])[0].numpy() * 3).sum()

    expected = (slope(step) - slope(-step)) / (2 * step)
    np.testing.assert_allclose((second.numpy() * d).sum(), expected, rtol=1e-6, atol=1e-6)
