"""PyTorch's operators at special values and stray indices, compiled with ordinary ones."""

import subprocess
import sys

import numpy as np
import pytest

import needle_tvm
from needle_runtime.errors import InputError
from tests.needle_tvm.compiler.torch_checks import STAGES, Applied, check

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")
pytestmark = pytest.mark.slow
INF, NAN = float("inf"), float("nan")


def numbers(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


WRITTEN = """
import sys
import torch
import needle_tvm

class Written(torch.nn.Module):
    def forward(self, y, i):
        columns = i[:, None] * 2
        return (
            y.index_fill(0, i * 2, 3.0),
            y.index_put((i * 2,), y[:2]),
            y.index_copy(0, i * 2, y[:2]),
            y.index_add(0, i * 2, y[:2]),
            y.scatter(1, columns, 1.0),
            y.scatter(1, columns, y),
            y.scatter_add(1, columns, y),
            y.gather(1, columns),
        )

y = torch.arange(12.0).reshape(4, 3)
compiled = needle_tvm.compile_torch(Written().eval(), y, torch.tensor([0, 1]), stage=sys.argv[1])
for far in (10**6, 10**9, 10**15):
    found = compiled(y, torch.tensor([far, -far]))
    assert all((result.numpy() == y.numpy()).all() for result in found[:-1])
    assert (found[-1].numpy() == y.gather(1, torch.tensor([[2], [0]])).numpy()).all()
"""


@pytest.mark.parametrize("stage", STAGES)
def test_computed_indices_that_lie_outside_write_nothing(stage):
    done = subprocess.run(
        [sys.executable, "-c", WRITTEN, stage],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_indices_that_are_inputs_are_checked_at_the_call():
    def function(y, rows, copied, classes):
        return (
            y.index_fill(0, rows, 3.0),
            y.index_copy(0, copied, y[:2]),
            F.cross_entropy(y, classes, ignore_index=-7),
        )

    y, classes = numbers((4, 3)), torch.tensor([0, 2, -7, 1])
    given = [y, torch.tensor([-4, 3]), torch.tensor([3, 0]), classes]
    check(function, given)
    compiled = needle_tvm.compile_torch(Applied(function).eval(), *given, stage="fused")
    wrong = [(1, 4), (1, -5), (2, -1), (2, 4), (3, 3), (3, -8)]
    for position, value in wrong:
        changed = list(given)
        changed[position] = torch.full_like(given[position], value)
        with pytest.raises(InputError, match=str(value)):
            compiled(*changed)


def test_values_are_put_where_indices_say(capfd):
    def function(y, i):
        written = y.clone()
        written[i] = 1.0
        written[:, i] = y[:, :3]
        written[1:3, i - 1] = y[0, :3]
        masked = y.clone()
        masked[y > 0] = 0.0
        grid = y.expand(2, 4, 5).clone()
        grid[:, i] = y[:3]
        grid[i % 2, :, i] = y[:3, :4]
        added = y.index_put((i % 2, i % 2), y[0, :3], accumulate=True)
        return written, masked, grid, added, y.slice_scatter(y[:2], 0, -9, 2)

    check(function, [numbers((4, 5)), torch.tensor([0, 1, 3])])
    assert "pragma" not in capfd.readouterr().err


def test_a_slice_is_replaced_by_what_is_shorter_than_the_axis():
    """Nothing behind the replacement's end is read; this process would end."""
    from needle_tvm.check.campaign.fenced import fenced
    from needle_tvm.lower.libraries import unoptimized

    def function(x, row, rows, none):
        one, every, last, nothing = x.clone(), x.clone(), x.clone(), x.clone()
        one[3:4] = row
        every[:, 1::7] = rows
        last[..., -2:] = rows[:, :2]
        nothing[:, 5:5] = none
        return one, every, last, nothing

    class Model(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    shapes = (40, 30), (1, 30), (40, 5), (40, 0)
    given = [numbers(shape, seed=i).numpy() for i, shape in enumerate(shapes)]
    tensors = [torch.from_numpy(x) for x in given]
    with unoptimized():
        compiled = needle_tvm.compile_torch(Model().eval(), *tensors, recompile=True)
    for at_end in (True, False):
        found = compiled(*[fenced(x, at_end) for x in given[:3]], given[3])
        for part, expected in zip(found, function(*tensors), strict=True):
            np.testing.assert_array_equal(part.numpy(), expected.numpy())


def test_norms_of_numbers_far_from_zero():
    def function(x):
        return F.group_norm(x, 2), F.instance_norm(x), F.batch_norm(x, None, None, training=True)

    x = torch.rand((2, 4, 6, 6), generator=torch.Generator().manual_seed(0))
    check(function, [x], [x + 100], atol=1e-3)
    check(function, [x], [x + 10000], atol=3e-2)


def test_tensors_full_of_what_is_not_finite():
    def function(x):
        mask = torch.triu(torch.full((4, 4), -INF), 1)
        other = torch.full_like(x, INF), torch.full((3,), NAN), torch.full((2,), 7)
        half = torch.full((2,), -INF, dtype=torch.bfloat16)
        return (x + mask).softmax(-1), *other, half, x.masked_fill(x > 0, -INF)

    check(function, [numbers((4, 4))])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_summed_in_float32(dtype):
    x = torch.rand(3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(lambda x: (x.cumsum(0), (x[:9] + 0.5).cumprod(0), x[0].cumsum(0)), [x], steps=1)


def test_splits_of_one_part_and_inner_products():
    def function(x, y):
        one = x.chunk(2, -1)[0] * 2, x.split([1], 1)[0], y.split(2, 0)[0], *x.unbind(1)
        return *one, *y.split(2, 1), torch.inner(y, y), torch.inner(y[0], y[1])

    check(function, [numbers((4, 1)), numbers((2, 3))], steps=32)


def test_average_pools_of_another_divisor():
    def function(x):
        return (
            F.avg_pool2d(x, 3, 2, divisor_override=5),
            F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, divisor_override=7),
            F.avg_pool3d(x, 3, 2, divisor_override=5),
        )

    check(function, [numbers((2, 3, 9, 8))], steps=8, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pools_keep_nan_and_say_where(dtype):
    def function(x):
        places = F.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
        wide = F.max_pool3d(x, (1, 2, 3), 2, dilation=(1, 2, 1), return_indices=True)[1]
        pools = F.max_pool1d(x[0], 3, 2, 1), F.max_pool2d(x, 3), F.max_pool3d(x, 3, 2, 1)
        return *pools, places, wide

    x = torch.arange(6 * 72.0).roll(100).reshape(2, 3, 9, 8).sin().to(dtype)
    check(function, [x])
    unknown = x.clone()
    unknown[0, 0, 3, 3], unknown[1] = NAN, -INF
    check(lambda x: function(x)[:3], [x], [unknown])


SPECIAL = [0, 1e-10, -1e-10, 1e-9, -1e-5, 0.3, -0.3, 0.41, 0.5, -0.5, 0.999, -0.999, 1, -1, 2, -2]
SPECIAL += [20, -20, 80, -80, 1e4, -1e4, 1e5, 1e30, -1e30, 1e-30, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_functions_near_zero_and_far_from_it(dtype):
    def function(x):
        activations = F.elu(x), F.celu(x, 0.5), F.selu(x), F.softplus(x), F.softplus(x, 2, 10)
        hyperbolic = x.sinh(), x.asinh(), x.acosh(), x.atanh(), x.tanh()
        return x.log1p(), x.expm1(), *activations, F.mish(x), *hyperbolic

    special = torch.tensor([*SPECIAL, *np.linspace(-1.2, 3, 43)], dtype=torch.float64).to(dtype)
    check(function, [torch.ones_like(special) / 2], [special], steps=16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_remainders_and_quotients(dtype):
    def function(x, y):
        rest = x.remainder(y), x % 0.1, x % -0.1, x.fmod(y), x.fmod(0.1)
        return *rest, x // y, x // 0.1, x.div(y, rounding_mode="floor")

    # PyTorch's remainders are NaN if the quotient overflows; compiled ones are exact.
    inputs = pairs([each for each in SPECIAL if abs(each) not in (1e30, 1e-30)], dtype)
    check(function, [torch.ones_like(each) for each in inputs], inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_lengths_and_sums_of_logarithms(dtype):
    inputs = pairs(SPECIAL, dtype)
    check(torch.hypot, [torch.ones_like(each) for each in inputs], inputs)
    atol = float(torch.finfo(dtype).eps)  # where the two parts cancel
    check(torch.logaddexp, [torch.ones_like(each) for each in inputs], inputs, atol=atol)


def pairs(values, dtype):
    special = torch.tensor(values, dtype=torch.float64).to(dtype)
    return [each.contiguous() for each in torch.cartesian_prod(special, special).unbind(1)]


def test_integers():
    def function(x, y):
        small = x.to(torch.uint8)
        powers = 2 ** x.abs(), x**y, (-1) ** y, x.int() ** 3
        return *powers, small.div(3, rounding_mode="trunc"), x // 4, x % -3, x.fmod(3), small // 3

    check(function, [torch.tensor([3, -2, 0, 1, -1, 5]), torch.tensor([4, 3, 2, -1, -1, 0])])


def test_order_and_boundaries_with_nan():
    def function(x):
        edges = torch.tensor([-1.0, 0.0, 1.0])
        ordered = *x.kthvalue(2), *x.median(1), x.median(), x.msort()
        return *ordered, torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)

    special = torch.tensor([[3.0, NAN, 1.0, 2.0, 5.0], [INF, 1.0, -INF, 0.0, 2.0]])
    for dtype in (torch.float32, torch.bfloat16):
        check(lambda x: function(x)[:6], [numbers((2, 5)).to(dtype)], [special.to(dtype)])
    check(function, [numbers((2, 5))], [special])


def test_tensors_without_axes_and_ranges():
    def function(x):
        sums = x.sum(-1), x.mean(0), x.cumsum(0), x.prod(0), x.var(0, correction=0)
        chosen = x.softmax(-1), x.log_softmax(0), x.argmax(-1), *x.sort(0), *x.max(0), x.flip(0)
        ranges = torch.arange(2, -1, -1), torch.arange(5, 0, -2), torch.arange(0, 1, 0.25)
        return *sums, *chosen, *ranges

    check(function, [torch.tensor(2.5)])


def test_what_is_made_like_another_has_the_dtype_asked_for():
    def function(x, mask):
        likes = (torch.zeros_like, torch.ones_like, lambda x, **kw: torch.full_like(x, 1.5, **kw))
        dtypes = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
        return *(
            like(each, dtype=to) for like in likes for each in (x, mask) for to in dtypes
        ), 1 * x

    check(function, [torch.tensor([1, 2, 3]), torch.tensor([True, False, True])])


def test_padding_that_cuts_off():
    pad = F.pad

    def function(x):
        return pad(x, (0, 1, -1, 1), value=-1.5), pad(x, (-2, 3, 1, 0)), pad(x, (-1, -1), value=INF)

    for dtype in (torch.float32, torch.bfloat16):
        check(function, [numbers((8, 1, 31)).to(dtype)])


def test_windows_distances_and_places_in_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 6, generator=generator)
    rows = torch.randn(2, 5, 4, generator=generator).sort(-1)[0]
    special = x.clone()
    special[0, 0, :4] = torch.tensor([NAN, INF, -INF, 0.0])
    bounds = torch.tensor([-0.5, 0.0, 0.0, 0.5])

    def places(x, special, rows):
        return (
            x.unfold(1, 3, 2),
            special.unfold(-1, 2, 1).unfold(0, 1, 1),
            torch.searchsorted(rows, special),
            torch.searchsorted(bounds, special, right=True, out_int32=True),
            torch.searchsorted(bounds, special, side="left"),
        )

    def distances(x):
        return tuple(torch.cdist(x, x[:, :3].round(), p=p) for p in (0.0, 1.0, 2.0, 3.0, INF))

    check(places, [x, special, rows])
    check(distances, [x], steps=32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_lengths_are_summed_in_float32_and_elements_counted(dtype):
    """The square of 300 overflows float16."""
    x = torch.tensor([[300.0, -400.0, 0.0], [0.0, 0.0, 0.0], [NAN, INF, 1.0]]).to(dtype)

    def norms(x):
        return (
            *(torch.linalg.vector_norm(x, p, 1) for p in (0, 2)),
            *(torch.linalg.vector_norm(x[:2], p) for p in (0, 2)),
            x.norm(2, 1, keepdim=True),
            torch.linalg.vector_norm(x, 2, 0, dtype=torch.float64),
            torch.nn.functional.normalize(x[:2], dim=1),
        )

    check(norms, [x], steps=2)


# Layers that take on the layout of the convolution before them, and must handle it.
AFTER_A_CONVOLUTION = {
    "transposed convolutions": [
        "nn.ConvTranspose2d(8, 4, 3, stride=2)",
        "nn.ConvTranspose2d(8, 4, 3, stride=2, dilation=2, output_padding=1)",
        "nn.ConvTranspose2d(8, 8, 2, stride=2, groups=4)",
        "nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ReLU(), nn.Conv2d(8, 2, 3))",
    ],
    "pooling and resizing": [
        *("nn.MaxPool2d(3, 2, 1, ceil_mode=True)", "nn.AvgPool2d(3, 2, 1)", "nn.LPPool2d(2, 2)"),
        *("nn.AdaptiveAvgPool2d((3, 2))", "nn.AdaptiveMaxPool2d(2)", "nn.Upsample((5, 9))"),
        *("nn.Upsample(None, 2, 'bilinear')", "nn.PixelShuffle(2)", "nn.Unfold(3)"),
    ],
    "norms and paddings": [
        *("nn.InstanceNorm2d(8)", "nn.GroupNorm(2, 8)", "nn.BatchNorm2d(8)", "nn.PReLU(8)"),
        *("nn.LocalResponseNorm(3)", "nn.LayerNorm(10)", "nn.ReflectionPad2d(1)"),
        *("nn.CircularPad2d(1)", "nn.ZeroPad2d((1, 0, 2, 1))", "nn.GLU(1)", "nn.Softmax2d()"),
    ],
}


@pytest.mark.parametrize("name", AFTER_A_CONVOLUTION)
def test_layers_of_images_after_a_convolution(name):
    torch.manual_seed(0)
    layers = [eval(each, {"nn": torch.nn}) for each in AFTER_A_CONVOLUTION[name]]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), *layers)
    model.eval().requires_grad_(False)
    x = torch.randn(2, 3, 8, 10)
    check(lambda x: tuple(layer(model[0](x)) for layer in layers), [x], steps=64, atol=1e-5)


def test_attention_ignores_the_keys_of_a_computed_mask():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)

    def function(x, lengths):
        mask = torch.arange(x.shape[1]) >= lengths[:, None]
        return attention(x, x, x, key_padding_mask=mask)

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 5, 8, generator=generator), torch.tensor([5, 3])]
    check(function, inputs, steps=64, atol=1e-6)


@pytest.mark.parametrize("stage", ["fused", "tuned"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_powers_wrap_as_pytorch_s_do(dtype, stage):
    x = torch.tensor([0, 0, 2, 3, -3, 1, -1, 7, 5, -2]).to(dtype)
    y = torch.tensor([0, 100, 64, 67, 65, 100, 101, 2, 33, 63]).to(dtype)
    model = Applied(lambda x, y: (x**y, 2**y, x**3)).eval()
    compiled = needle_tvm.compile_torch(model, torch.ones_like(x), torch.ones_like(y), stage=stage)
    for found, expected in zip(compiled(x, y), model(x, y), strict=True):
        np.testing.assert_array_equal(found.numpy().astype(expected.numpy().dtype), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions(dtype):
    """Also where a series changes to another one, and far from it."""
    inputs = np.array([-30, -3.5, -0.25, 0.0, 0.3, 1.4, 8, 19.9, 20.1, 60, INF, NAN])
    x = torch.tensor(inputs, dtype=dtype)
    names = "erfc erfcx i0e i1e gammaln digamma log_ndtr"

    def function(x, y):
        found = [getattr(torch.special, name)(x) for name in names.split()]
        bessel = [getattr(torch.special, f"bessel_{each}")(x.float()) for each in ("j0", "j1")]
        return (
            *found,
            y.i0(),
            torch.special.i1(y),
            torch.nextafter(x, x.flip(0)),
            y.erfinv(),
            *bessel,
        )

    y = torch.linspace(-0.9, 0.9, 7, dtype=dtype)
    check(function, [x, y], steps=400, atol=float(8 * torch.finfo(dtype).eps))


def test_running_orders_and_bits():
    def function(x, i, rows):
        running = *x.cummax(1), *x.cummin(0), x.logcumsumexp(1), *(x > 0).max(1), *x[0, 0].cummax(0)
        odd = x.where(x < 0, NAN)
        middle = *odd.nanmedian(1), odd.nanmedian()
        sorter = rows.argsort(-1)
        found = torch.searchsorted(rows, x, sorter=sorter), torch.searchsorted(rows[0] * 0, 0.0)
        bits = (
            i << 2,
            i >> torch.tensor([1, 0, 64, 70, -1]),
            i << i,
            torch.bitwise_right_shift(9, i),
        )
        return *running, *middle, *found, *bits, torch.ldexp(x[0], i), sorter + 1

    x, rows = numbers((3, 5)), numbers((3, 5), seed=1)
    check(function, [x, torch.tensor([-5, 0, 3, 62, 1]), rows], steps=16)


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_places_in_memory_and_of_masks():
    def function(x, mask, i):
        strided = (
            x.as_strided((3, 2), (1, 5), 2),
            x.t().as_strided((2, 3), (4, 1), 1),
            torch.as_strided_scatter(x.t(), x[:2], (2, 5), (1, 2)),
            x * torch.div(x.shape[0], 2, rounding_mode="trunc") / torch.div(7, 2),
            torch.as_strided_scatter(x, x[:2], (2, 5), (1, 2)),
        )
        diagonals = torch.diagonal_scatter(x, x[:, 0] * 9, 1), x.unfold(1, 2, 3)
        masked = x.masked_scatter(mask, x.flip(0)), x.masked_scatter(mask[:, :1], x)
        reduced = [
            x.index_reduce(0, i % 2, x[:3], kind, include_self=False)
            for kind in ("prod", "mean", "amax")
        ]
        flat = x.take(i), x.take(i[0]), x.put(i, x[0, :3]), x.put(i % 2, x[0, :3], accumulate=True)
        return *strided, *diagonals, *masked, *reduced, *flat

    x = numbers((4, 5))
    check(function, [x, x > 0, torch.tensor([0, -1, 7])])


def test_products_distances_and_windows():
    def function(x, y):
        sums = (
            torch.addmv(x[:, 0], x, y[0], beta=2, alpha=3),
            torch.addmv(y[0], y.T, x[0, :3], beta=0),
        )
        batches = torch.addbmm(x, x[None, :, :3].expand(2, -1, -1), y.expand(2, 3, 5), alpha=0.5)
        apart = F.pdist(x), F.pdist(x, 1.0), torch.dist(x[:3], y, 3), torch.angle(x)
        windows = torch.kaiser_window(5), torch.tril_indices(3, 4), torch.bartlett_window(4)
        return *sums, batches, *apart, *windows

    check(function, [numbers((4, 5)), numbers((3, 5), seed=1)], steps=32)


def test_average_pooling_of_integers():
    check(lambda x: F.avg_pool2d(x, 2, divisor_override=3), [torch.arange(16).reshape(1, 1, 4, 4)])
