"""Images of another size and at the points of a grid, beside PyTorch."""

import itertools

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.nn import functional as F

SIZES = {1: ((7,), (1,)), 2: ((7, 10), (3, 5)), 3: ((3, 4, 5),)}
TARGETS = {
    1: [{"size": 3}, {"size": 20}, *[{"scale_factor": s} for s in (2, 0.5, 1.3, 3.0, 1.0)]],
    2: [
        *[{"size": size} for size in ((1, 1), (3, 9), 13, (5, 30))],
        *[{"scale_factor": s} for s in (2, (2.0, 3.0), (0.6, 1.7), 1.4)],
    ],
    3: [{"size": (2, 9, 5)}, {"scale_factor": 2}, {"scale_factor": (1.5, 0.7, 2.0)}],
}
BLENDS = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}


def drawn(*shape, seed=0, low=None):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) if low is None else rng.uniform(low, -low, shape)
    return values.astype("float32")


def agree_with_gradients(ours, theirs, pairs, torch):
    """PyTorch takes positions in float32, needle in float64: they differ by up to 1e-6 of an
    element for each element before it."""
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-4, atol=2e-5)
    weights = drawn(*ours.shape, seed=1)
    (theirs * torch.from_numpy(weights)).sum().backward()
    (ours * ndl.Tensor(weights, requires_grad=False)).sum().backward()
    for x, tx in pairs:
        np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-3, atol=3e-4)


@pytest.mark.peer
@pytest.mark.parametrize("axes", SIZES)
def test_interpolation_is_torchs(axes):
    torch = pytest.importorskip("torch")
    modes = [(m, {}) for m in ("nearest", "nearest-exact", "area")]
    for mode, align in itertools.product(BLENDS[axes], (None, True, False)):
        modes += [(mode, {"align_corners": align, "antialias": a}) for a in (False, True)[:axes]]
    if axes == 3:
        modes = [(mode, {**kind, "antialias": False}) for mode, kind in modes]
    tried = 0
    for size, target, (mode, kind) in itertools.product(SIZES[axes], TARGETS[axes], modes):
        if size == (1,) and target.get("scale_factor", 1) < 1:
            continue  # PyTorch gives nothing, needle refuses it
        values, arguments = drawn(2, 3, *size), {**target, "mode": mode, **kind}
        if axes == 1:
            arguments["antialias"] = False
        for recompute in (None, True) if "scale_factor" in target else (None,):
            x, tx = ndl.Tensor(values), torch.tensor(values, requires_grad=True)
            arguments["recompute_scale_factor"] = recompute
            expected = torch.nn.functional.interpolate(tx, **arguments)
            agree_with_gradients(F.interpolate(x, **arguments), expected, [(x, tx)], torch)
            tried += 1
    assert tried >= 20


@pytest.mark.peer
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grids_are_torchs(mode):
    torch = pytest.importorskip("torch")
    cases = [((5, 7), (4, 3)), ((1, 6), (2, 8)), ((3, 4, 5), (2, 3, 4))]
    kinds = itertools.product(cases, ("zeros", "border", "reflection"), (False, True))
    for (size, points), padding, align in kinds:
        if mode == "bicubic" and len(size) == 3:
            continue
        arrays = drawn(2, 3, *size), drawn(2, *points, len(size), low=-2.5)
        ours = [ndl.Tensor(a) for a in arrays]
        theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
        expected = torch.nn.functional.grid_sample(*theirs, mode, padding, align)
        pairs = list(zip(ours, theirs, strict=True))
        found = F.grid_sample(*ours, mode, padding, align)
        agree_with_gradients(found, expected, pairs[:1] if mode == "nearest" else pairs, torch)


@pytest.mark.peer
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 1, 4), (2, 1, 3, 4, 5)])
def test_affine_grids_are_torchs(size):
    torch = pytest.importorskip("torch")
    theta = drawn(2, len(size) - 2, len(size) - 1)
    for align in (False,) if 1 in size[2:] else (False, True):
        expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), size, align)
        found = F.affine_grid(ndl.Tensor(theta), size, align).numpy()
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_an_identity_leaves_an_image_as_it_is():
    x = ndl.Tensor(drawn(1, 2, 5, 6))
    theta = ndl.Tensor(np.array([[[1, 0, 0], [0, 1, 0]]], "float32"))
    for align in (False, True):
        grid = F.affine_grid(theta, x.shape, align)
        found = F.grid_sample(x, grid, align_corners=align).numpy()
        np.testing.assert_allclose(found, x.numpy(), rtol=1e-5, atol=1e-5)


COMPILED = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "odd": lambda x: F.interpolate(x, (5, 9), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=(2, 3), mode="bicubic"),
    "shrunk": lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
    "area": lambda x: F.interpolate(x, (3, 4), mode="area"),
    "half": lambda x: F.interpolate(x.half(), scale_factor=2, mode="bilinear"),
    "grid": lambda x: F.grid_sample(x, F.affine_grid(x[:, 0, :2, :3], (1, 2, 4, 4))),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_code_agrees(kind):
    x = ndl.Tensor(drawn(1, 2, 6, 7), requires_grad=False)
    found, expected = needle_tvm.jit(COMPILED[kind])(x), COMPILED[kind](x)
    assert found.dtype == expected.dtype
    tolerance = 2e-3 if kind == "half" else 1e-5
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)


SYMBOLIC = [
    {"scale_factor": 2},
    {"scale_factor": 1.5},
    {"scale_factor": 0.75, "mode": "nearest-exact"},
    {"scale_factor": (2, 3), "mode": "bicubic"},
    {"scale_factor": 0.5, "mode": "bilinear"},
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", SYMBOLIC, ids=str)
def test_symbolic_images(arguments):
    h, w = ndl.Dim("h", min=3, max=40), ndl.Dim("w", min=3, max=40)
    resize = needle_tvm.jit(lambda x: F.interpolate(x, **arguments), dims={"x": {2: h, 3: w}})
    for size in ((3, 3), (5, 7), (16, 17), (3, 40)):
        x = ndl.Tensor(drawn(1, 2, *size), requires_grad=False)
        expected = F.interpolate(x, **arguments).numpy()
        # Positions up to 40 in float32, instead of float64.
        np.testing.assert_allclose(resize(x).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grids_of_symbolic_batches(mode):
    batch = ndl.Dim("batch", min=1, max=9)

    def sample(x, grid):
        return F.grid_sample(x, grid, mode)

    sampled = needle_tvm.jit(sample, dims={"x": {0: batch}, "grid": {0: batch}})
    for n in (1, 2, 7, 9):
        x = ndl.Tensor(drawn(n, 3, 5, 6), requires_grad=False)
        grid = ndl.Tensor(drawn(n, 4, 3, 2, low=-1.5), requires_grad=False)
        expected = sample(x, grid).numpy()
        np.testing.assert_allclose(sampled(x, grid).numpy(), expected, rtol=1e-5, atol=1e-5)


WIDE = {"size": (4, 4), "mode": "bilinear", "antialias": True}


@pytest.mark.parametrize("arguments", [WIDE, {"scale_factor": 1.3}], ids=str)
def test_symbolic_images_that_are_refused(arguments):
    resize = needle_tvm.jit(
        lambda x: F.interpolate(x, **arguments), dims={"x": {2: ndl.Dim("h", min=3, max=40)}}
    )
    with pytest.raises(ndl.TraceError, match="symbolic extent h"):
        resize(ndl.Tensor(drawn(1, 2, 5, 7)))


def test_second_gradients():
    x = ndl.Tensor(drawn(1, 1, 3, 3).astype("float64"))
    y = F.interpolate(x, scale_factor=2, mode="bilinear")
    (y * y * y).sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.sum().backward()
    step, moved = 1e-5, []
    for sign in (1, -1):
        near = ndl.Tensor(x.numpy() + sign * step)
        z = F.interpolate(near, scale_factor=2, mode="bilinear")
        (z * z * z).sum().backward()
        moved.append(near.grad.numpy())
    np.testing.assert_allclose(x.grad.numpy(), (moved[0] - moved[1]) / (2 * step), rtol=1e-6)


def test_layers():
    x = ndl.Tensor(drawn(1, 2, 3, 4))
    assert ndl.nn.Upsample(scale_factor=2)(x).shape == (1, 2, 6, 8)
    expected = F.interpolate(x, (6, 5), mode="bilinear", align_corners=True)
    found = ndl.nn.UpsamplingBilinear2d((6, 5))(x)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    repeated = x.numpy().repeat(2, 2).repeat(2, 3)
    np.testing.assert_array_equal(ndl.nn.UpsamplingNearest2d(scale_factor=2)(x).numpy(), repeated)
    assert "scale_factor=2, mode='nearest'" in repr(ndl.nn.Upsample(scale_factor=2))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.interpolate(x[0, 0], 2), ndl.ShapeError, r"shape \(3, 4\)"),
        (lambda x: F.interpolate(x), ValueError, "size or scale_factor"),
        (lambda x: F.interpolate(x, 2, 2), ValueError, "size or scale_factor"),
        (lambda x: F.interpolate(x, 0), ValueError, "size"),
        (lambda x: F.interpolate(x, scale_factor=0.1), ValueError, "0.1 leaves nothing of 3"),
        (lambda x: F.interpolate(x, scale_factor=-1), ValueError, "scale_factor -1"),
        (lambda x: F.interpolate(x, (2, 2, 2)), ValueError, "one number, or a sequence of 2"),
        (lambda x: F.interpolate(x, 2, mode="cubic"), ValueError, "'cubic' is not one of"),
        (lambda x: F.interpolate(x, 2, mode="linear"), ndl.ShapeError, r"\(N, C, L\)"),
        (lambda x: F.interpolate(x, 2, align_corners=True), ValueError, "align_corners"),
        (lambda x: F.interpolate(x.long(), 2, mode="area"), TypeError, "int64"),
        (lambda x: F.grid_sample(x, x), ndl.ShapeError, "grid"),
        (lambda x: F.grid_sample(x, x[:, :, :, :2].double()), TypeError, "float64"),
        (lambda x: F.grid_sample(x, x[..., :2], "cubic"), ValueError, "'cubic'"),
        (lambda x: F.grid_sample(x, x[..., :2], padding_mode="wrap"), ValueError, "'wrap'"),
        (lambda x: F.affine_grid(x[0], (1, 2, 3, 4)), ndl.ShapeError, "theta"),
        (lambda x: ndl.nn.Upsample(), ValueError, "Upsample: give either size"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(ndl.Tensor(drawn(1, 2, 3, 4)))
