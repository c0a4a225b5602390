"""Converters of convolutions, pools, resizes and grids, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.torch.oracle import is_close
from needle.torch.reading import array_of

torch = pytest.importorskip("torch")
from tests.needle.torch.rows import Together, check, compare, row  # noqa: E402

pytestmark = pytest.mark.peer
F, nan, inf = torch.nn.functional, float("nan"), float("inf")


def normal(*shape, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def tied(*shape):
    """Few different values, NaN, and images of -inf."""
    x = torch.from_numpy(np.random.default_rng(5).integers(0, 2, shape)).float()
    x[0, 0, 1:3, 1:4], x[1] = nan, -inf
    return x


def padded_pool(x):
    return F.max_pool2d(x, (4, 3), 2, (2, 1), (1, 2), return_indices=True)


X, K, HALF = normal(2, 4, 9, 7), normal(6, 2, 3, 4, seed=4), normal(2, 4, 9, 7).bfloat16()
IMAGE, WHOLE = X[0], torch.arange(-40, 32).reshape(2, 4, 9)
SAMPLES = torch.from_numpy(np.random.default_rng(6).random((2, 4, 2))).float()
GRID, THETA = normal(2, 4, 5, 2, seed=8) * 0.7, normal(2, 2, 3, seed=9)

LINES, CUBES = normal(5, 9, 4, seed=10), normal(3, 2, 2, 3, 2, seed=11)
TAPS, BACK, BIAS = normal(3, 7, 5, seed=12), normal(4, 2, 3, 3, seed=13), normal(6, seed=14)
CONVOLUTIONS = [
    row("groups", lambda x, w: F.conv2d(x, w, None, 2, (1, 2), (2, 1), 2), X, K),
    row("no batch", lambda x, w: F.conv2d(x, w, groups=2, padding="same"), IMAGE, K),
    row("same", lambda x, w: F.conv1d(x, w, padding="same"), IMAGE, LINES),
    row("three", lambda x, w: F.conv3d(x[None], w, padding=1), X, CUBES),
    row("half", lambda *e: F.conv2d(*e, groups=2), HALF, K.bfloat16(), BIAS.bfloat16()),
    row("whole", lambda x: F.conv1d(x, x[:, :, :3]), WHOLE),
    row("transposed", lambda x, w: F.conv_transpose2d(x, w, None, 3, 1, 2, 2), X, BACK),
    # Beyond the stride, but below the dilation.
    row("added", lambda *e: F.conv_transpose2d(*e, 2, (1, 4), (2, 1), 1, 3), X, BACK, BIAS[:2]),
    row("cut off", lambda x, w: F.conv_transpose2d(x, w, None, 1, (3, 4)), X, BACK),
    row("of lines", lambda x, w: F.conv_transpose1d(x, w, stride=2), IMAGE[:, :5], LINES),
    row("of cubes", lambda x, w: F.conv_transpose3d(x[None], w.mT[:2], None, 2, 1), X, CUBES),
    row("tbc", lambda x, w, b: torch.conv_tbc(x, w, b, 1), IMAGE, TAPS, BIAS[:5]),
    row("unfold", lambda x: F.unfold(x, (3, 2), (1, 2), 1, 2), X),
    row("fold", lambda x: F.fold(x[:, :, :, 0], 4, 2), X),
]  # fmt: skip
POOLS = [
    row("max", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), X),
    row("max of three", lambda x: F.max_pool3d(x, (2, 3, 2), return_indices=True), X),
    row("max of halves", lambda x: F.max_pool1d(x[0], 3, 2, 1, 2), HALF),
    row("max of whole", lambda x: F.max_pool1d(x, 2, return_indices=True), WHOLE),
    row("average", lambda x: F.avg_pool2d(x, 4, 3, 2, True, False), X),
    row("divisor", lambda x: F.avg_pool3d(x, 2, 2, 1, True, True, -3), X),
    row("average of whole", lambda x: F.avg_pool1d(x, 4, 3, 2, True, False), WHOLE),
    row("adaptive", lambda x: F.adaptive_avg_pool2d(x, (4, 12)), X),
    row("adaptive parts", lambda x: F.adaptive_avg_pool3d(x, (2, 3, None)), X),
    row("adaptive max", lambda x: F.adaptive_max_pool2d(x, (4, 9), return_indices=True), X),
    row("lp", lambda x: F.lp_pool2d(x.abs() + 1, 3, 2, ceil_mode=True), X),
    row("fractional", lambda x, s: F.fractional_max_pool2d(
        x, (2, 3), (5, 3), return_indices=True, _random_samples=s.detach()), X, SAMPLES),
    row("fractional of three", lambda x, s: F.fractional_max_pool3d(
        x, 2, (1, 4, 3), return_indices=True,
        _random_samples=torch.cat([s, s[..., :1]], -1)[:1].detach()), X, SAMPLES[:, :2]),
    row("unpool", lambda x: F.max_unpool2d(
        *F.max_pool2d(x, 2, return_indices=True), 2, output_size=(9, 7)), X),
]  # fmt: skip
# The named fault: which of several equal elements, and of NaN, is the largest of a window.
TIED = tied(2, 3, 9, 11)
TIES = [
    row("padded", padded_pool, TIED),
    row("filled", lambda x: F.max_pool2d(x, 3, 2, 1, 1, True, True), TIED[..., :10]),
    row("adaptive", lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), TIED),
    row("infinite", lambda x: F.adaptive_avg_pool2d(x, (4, 15)), TIED),
]  # fmt: skip
RESIZES = [
    *(row(f"{mode} {how}", lambda x, mode=mode, how=how: F.interpolate(x, mode=mode, **how), X)
      for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
      for how in ({"scale_factor": (2, 3)}, {"scale_factor": (1.7, 0.6)}, {"size": (11, 1)},
                  {"scale_factor": 1.7, "recompute_scale_factor": True})),
    *(row(f"{mode} corners", lambda x, mode=mode: F.interpolate(
        x, (11, 1), mode=mode, align_corners=True), X) for mode in ("bilinear", "bicubic")),
    *(row(f"{mode} antialias", lambda x, mode=mode: F.interpolate(
        x, (4, 12), mode=mode, antialias=True), X) for mode in ("bilinear", "bicubic")),
    row("linear", lambda x: F.interpolate(x[0], 11, mode="linear"), X),
    row("trilinear", lambda x: F.interpolate(x[None], scale_factor=1.5, mode="trilinear"), X),
    row("half", lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), HALF),
    row("shuffles", lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :6, :6], 3),
                               F.channel_shuffle(x, 2)), X),
]  # fmt: skip
GRIDS = [
    *(row(f"{mode} {padding} {corners}",
          lambda x, g, how=(mode, padding, corners): F.grid_sample(x, g, *how), X, GRID)
      for mode in ("bilinear", "nearest", "bicubic")
      for padding, corners in (("zeros", True), ("border", False), ("reflection", True))),
    row("three", lambda x, g: F.grid_sample(
        x[None], F.pad(g, (0, 1), value=0.3)[None, :1, :], align_corners=False), X, GRID),
    row("affine", lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=True), THETA),
    row("affine of one", lambda t: F.affine_grid(t, (2, 1, 3, 1), False), THETA.double()),
]  # fmt: skip
TABLES = {
    "convolutions": CONVOLUTIONS,
    "pools": POOLS,
    "ties": TIES,
    "resizes": RESIZES,
    "grids": GRIDS,
}


LONG = ("resizes", "grids")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONG)) for each in TABLES]
)
def test_results_and_gradients(name):
    check(TABLES[name], gradients=name != "ties")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_compiled(stage):
    rows = [CONVOLUTIONS[7], *POOLS[4:7], TIES[0], *RESIZES[1:12:5], GRIDS[4]]
    inputs = [x for each in rows for x in each.inputs]
    loaded = needle.torch.load(Together(rows).eval(), *inputs)
    compiled = needle_tvm.compile(loaded, *(ndl.Tensor(array_of(x)) for x in inputs), stage=stage)
    compare(rows, compiled(*(ndl.Tensor(array_of(x)) for x in inputs)))


class Open(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x, y):
        return (
            *(self.conv(x), F.conv_transpose2d(x, self.conv.weight.transpose(0, 1), stride=2)),
            *(F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, 1)),
            *(F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, 3)),
            *(F.interpolate(y, x.shape[2:], mode=m) for m in ("nearest", "bilinear", "bicubic")),
            F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=True),
            *(F.interpolate(x, scale_factor=1.5, mode=m) for m in ("nearest", "bicubic")),
            F.interpolate(x, (9, 9), mode="bilinear"),
        )


@pytest.mark.slow
def test_open_sizes():
    rows = ndl.Dim("rows", min=4, max=20)
    model, y = Open().eval(), normal(1, 2, 6, 5)
    loaded = needle.torch.load(model, normal(2, 3, 9, 8), y, dims={"x": {2: rows}})
    for n in (4, 13):
        x = normal(2, 3, n, 8)
        for found, wanted in zip(
            torch.utils._pytree.tree_leaves(loaded(x.numpy(), y.numpy())),
            torch.utils._pytree.tree_leaves(model(x, y)),
            strict=True,
        ):
            assert is_close(found.numpy(), array_of(wanted))


def test_channels_last():
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    model = model.eval().to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    loaded = needle.torch.load(model, x)
    assert is_close(loaded(X.numpy()).numpy(), array_of(model(x)))
