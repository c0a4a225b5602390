"""Lowering of PyTorch's graphs: the preparing passes, and the kernels that they make possible."""

import itertools

import numpy as np
import pytest

import needle_tvm
from needle_tvm._tvm.names import relax
from needle_tvm.frontend.torch import export as torch_export
from needle_tvm.frontend.torch.lowering import lowered
from needle_tvm.frontend.torch.passes.conv1d_as_conv2d import conv1d_as_conv2d
from needle_tvm.frontend.torch.passes.conv_transpose import conv_transpose
from needle_tvm.frontend.torch.passes.norm_as_scale import norm_as_scale
from needle_tvm.frontend.torch.passes.plain_views import plain_views
from needle_tvm.lower.variant import Variant
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


@pytest.fixture(scope="module")
def target():
    return resolve("cpu", 2).to_tvm()


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def with_statistics(model):
    """The model in eval mode, with batch norm statistics and weights unlike a new module's."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            with torch.no_grad():
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                if module.affine:
                    module.weight.normal_()
                    module.bias.normal_()
    return model.eval()


def kernels(model, target, *inputs):
    module, *_ = torch_export.translate(model.eval(), inputs)
    module = lowered(module, target, Variant("tuned"))
    return [name.rstrip("0123456789") for name in calls_of(module, "main")]


def operators(model, target, *inputs, passes):
    """The names of the operators in `main` after `passes`, without dead code."""
    module, *_ = torch_export.translate(model.eval(), inputs)
    for graph_pass in passes:
        module = graph_pass(module, target)
    module = relax.transform.DeadCodeElimination()(module)
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call):
            found.append(expr.op.name.removeprefix("relax."))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def check(model, *inputs):
    """Check the compiled model against PyTorch; sums have at most a few hundred float32 terms."""
    model.eval()
    found = needle_tvm.compile_torch(model, *inputs)(*inputs)
    with torch.no_grad():
        expected = model(*inputs)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-5)


def conv_norm(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, **options), nn.ReLU6()


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_after_a_convolution_is_its_bias(affine, target):
    layers = [*conv_norm(3, 8, affine=affine), *conv_norm(8, 8, affine=affine)]
    model, x = with_statistics(nn.Sequential(*layers)), torch.randn(2, 3, 9, 7)
    names = kernels(model, target, x)
    assert [name for name in names if "conv" in name] == names[:2]
    assert not any("multiply" in name or "divide" in name for name in names)
    check(model, x)


def test_batch_norm_is_one_scale_and_one_shift(target):
    model, x = with_statistics(nn.BatchNorm2d(6)), torch.randn(2, 6, 5, 4)
    found = operators(model, target, x, passes=[norm_as_scale])
    assert "nn.batch_norm" not in found
    assert found[-2:] == ["multiply", "add"]
    check(nn.Sequential(model, nn.ReLU(), nn.Conv2d(6, 4, 3)), x)


def test_an_inverted_residual_stays_in_channels_last(target):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                *(nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32), nn.ReLU6()),
                *(nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.BatchNorm2d(32), nn.ReLU6()),
                *(nn.Conv2d(32, 8, 1), nn.BatchNorm2d(8)),
            )

        def forward(self, x):
            return x + self.layers(x)

    model, x = with_statistics(nn.Sequential(Block(), Block())), torch.randn(2, 8, 9, 7)
    names = kernels(model, target, x)
    assert [name for name in names if "conv" not in name] == ["transpose", "transpose"]
    check(model, x)


def attention(**options):
    def fn(q, k, v, mask=None):
        return functional.scaled_dot_product_attention(q, k, v, mask, **options)

    return Function(fn)


def heads(*lead, queries=9, keys=12):
    return (
        torch.randn(*lead, queries, 8),
        torch.randn(*lead, keys, 8),
        torch.randn(*lead, keys, 5),
    )


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 2.0}], ids=str)
@pytest.mark.parametrize("lead", [(2, 3), (3,), (), (2, 2, 3)], ids=str)
def test_attention_is_one_kernel(lead, options, target):
    model, inputs = attention(**options), heads(*lead)
    assert kernels(model, target, *inputs)[0] == "attention"
    check(model, *inputs)


@pytest.mark.parametrize("shape", [(9, 12), (2, 1, 1, 12), (3, 9, 12)], ids=str)
@pytest.mark.parametrize("boolean", [True, False])
def test_rows_that_a_mask_leaves_empty_are_zero(shape, boolean, target):
    seen = torch.rand(shape) > 0.5
    seen[0] = False
    seen[-1, ..., :6] = False  # masked keys come first
    seen[-1, ..., 6] = True
    mask = seen if boolean else torch.where(seen, torch.randn(shape), -torch.inf)
    model, inputs = attention(), (*heads(2, 3), mask)
    assert "attention" in kernels(model, target, *inputs)
    check(model, *inputs)


def test_a_constant_mask_without_empty_rows_costs_nothing(target):
    whole = torch.ones(20, 20, dtype=torch.bool).tril()

    def causal(q, k, v):
        mask = torch.zeros(9, 12).masked_fill(~whole[:9, :12], -torch.inf)
        return functional.scaled_dot_product_attention(q, k, v, mask)

    inputs = heads(2, 3)
    assert kernels(Function(causal), target, *inputs)[0] == "attention"
    check(Function(causal), *inputs)


@pytest.mark.parametrize(
    ("shapes", "mask"),
    [
        (((4, 3, 8), (4, 4, 6, 8), (4, 4, 6, 8)), None),
        (((2, 4, 3, 8), (2, 1, 6, 8), (1, 4, 6, 5)), None),
        (((3, 8), (4, 6, 8), (2, 1, 6, 8)), None),
        (((2, 1, 4, 3, 8), (2, 3, 1, 6, 8), (6, 7)), (4, 3, 6)),
        (((5, 1, 2, 3, 4), (5, 1, 2, 3, 4), (5, 1, 2, 3, 4)), (5, 1, 1, 1, 3)),
        (((2, 3, 4), (2, 0, 4), (2, 0, 6)), None),
    ],
    ids=str,
)
def test_heads_and_batches_of_attention_broadcast(shapes, mask):
    q, k, v = map(torch.randn, shapes)
    seen = None if mask is None else torch.rand(mask) > 0.3
    attend = torch.nn.functional.scaled_dot_product_attention
    check(
        Function(lambda q, k, v: attend(q, k, v, attn_mask=seen, is_causal=seen is None)), q, k, v
    )


def test_groups_of_heads_share_keys():
    model = attention(enable_gqa=True)
    check(model, torch.randn(2, 4, 9, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8))


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: q @ k.transpose(-1, -2) / 3.0,
        lambda q, k: (q * 0.3) @ k.transpose(-1, -2),
        lambda q, k: (q * 0.5) @ (k.transpose(-1, -2) * 0.5) * 0.9,
    ],
    ids=["divided", "queries", "both"],
)
def test_attention_written_by_hand(scores, target):
    model = Function(lambda q, k, v: torch.softmax(scores(q, k), -1) @ v)
    inputs = heads(2, 3)
    assert kernels(model, target, *inputs)[0] == "attention"
    check(model, *inputs)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_encoder_layer_projects_once_and_copies_no_heads(batch, target):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(batch, 7, 32)
    names = kernels(layer, target, x)
    assert names.count("attention") == 1
    assert sum("dense" in name for name in names) == 4
    if batch == 1:
        assert len(names) == 7
    check(layer, x)


def test_projections_of_one_input_are_merged(target):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))

        def forward(self, x):
            q, k, v = (
                each(x).reshape(2, 7, 3, 8).transpose(1, 2) for each in (self.q, self.k, self.v)
            )
            return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    model, x = Attention(), torch.randn(2, 7, 24)
    assert kernels(model, target, x) == ["fused_dense_add", "attention"]
    check(model, x)


def test_views_have_three_names(target):
    def fn(x):
        a, b = x.unsqueeze(0).squeeze(0).permute(0, 2, 1, 3).chunk(2, dim=-1)
        return (a + b)[:, -1].flatten(1)

    found = operators(Function(fn), target, torch.randn(3, 1, 5, 8), passes=[plain_views])
    assert set(found) <= {"reshape", "strided_slice", "add"}
    check(Function(fn), torch.randn(3, 1, 5, 8))


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
def test_a_linear_layer_of_a_permutation_has_one_product(order, target):
    shape = [0, 0, 0]
    for axis, extent in zip(order, (3, 2, 5), strict=True):
        shape[axis] = extent
    model = nn.Sequential(Function(lambda x: x.permute(order)), nn.Linear(5, 4))
    x = torch.randn(shape)
    assert sum("dense" in name for name in kernels(model, target, x)) == 1
    check(model, x)


@pytest.mark.parametrize("shapes", [[(3, 4, 5), (5,)], [(5,), (5,)], [(3, 1, 4, 5), (2, 5, 6)]])
def test_products_of_any_rank(shapes):
    check(Function(lambda x, y: x @ y), *(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("fn", [lambda x: x.amax((0, 2)), lambda x: x.amin(-1, keepdim=True)])
def test_extremes(fn):
    check(Function(fn), torch.randn(3, 4, 5))


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 2}, {"stride": 2, "padding": 1}, {"dilation": 3}, {"groups": 8}],
    ids=str,
)
def test_a_convolution_of_a_sequence_is_one_of_an_image(options, target):
    model, x = nn.Conv1d(8, 8, 3, **options), torch.randn(2, 8, 21)
    found = operators(model, target, x, passes=[conv1d_as_conv2d])
    assert "nn.conv2d" in found and "nn.conv1d" not in found
    check(model, x)


def test_a_chain_of_sequences_is_permuted_at_its_ends(target):
    model = nn.Sequential(
        nn.Conv1d(8, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 4, 5, stride=2)
    )
    model, x = with_statistics(model), torch.randn(2, 8, 21)
    names = kernels(model, target, x)
    assert [name for name in names if "conv" in name] == names[1:3]
    assert len(names) == 4 and "relu" in names[1]
    check(model, x)


# Fewer taps than the stride, as many, and more; padding that cuts off part of a block.
@pytest.mark.parametrize(
    ("taps", "stride", "padding", "more"),
    [(k, s, p, 0) for k, s, p in itertools.product((2, 3, 4), (1, 2, 3), (0, 1))]
    + [(3, 2, 1, 1), (5, 2, 2, 1), ((3, 4), (2, 3), (0, 2), (1, 0))],
)
def test_a_transposed_convolution_is_one_of_stride_1(taps, stride, padding, more, target):
    model = nn.ConvTranspose2d(3, 5, taps, stride, padding, output_padding=more)
    x = torch.randn(2, 3, 6, 7)
    found = operators(model, target, x, passes=[conv_transpose])
    assert "nn.conv2d" in found and "nn.conv2d_transpose" not in found
    check(model, x)


def test_a_transposed_convolution_of_a_sequence():
    layers = nn.ConvTranspose1d(4, 5, 4, 2, 1), nn.BatchNorm1d(5), nn.ReLU(), nn.Conv1d(5, 3, 3)
    check(with_statistics(nn.Sequential(*layers)), torch.randn(2, 4, 9))


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2}, {"padding": 3}], ids=str)
def test_other_transposed_convolutions_stay(options, target):
    model, x = nn.ConvTranspose2d(4, 6, 3, 2, **options), torch.randn(2, 4, 6, 7)
    assert "nn.conv2d_transpose" in operators(model, target, x, passes=[conv_transpose])
    check(model, x)
