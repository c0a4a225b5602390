"""What PyTorch's graphs become: the kernels of compiled models."""

import itertools

import numpy as np
import pytest

import needle.torch
import needle_tvm
from needle_tvm.frontend.loaded_models import graph_of
from needle_tvm.frontend.lowering import lowered
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
    """In eval mode, batch norm's statistics and weights not those of a new module."""
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
    loaded = needle.torch.load(model.eval(), *inputs, check=False)
    graph = graph_of(loaded, [each.numpy() for each in inputs], {})
    module = lowered(graph, target, Variant("tuned"))
    return [name.rstrip("0123456789") for name in calls_of(module, "main")]


class Beside(nn.Module):
    """Several modules, each with inputs of its own: one compilation for all."""

    def __init__(self, cases):
        super().__init__()
        self.parts = nn.ModuleList([module for module, *_ in cases])
        self.counts = [len(inputs) for _, *inputs in cases]

    def forward(self, *inputs):
        given = iter(inputs)
        return tuple(
            part(*(next(given) for _ in range(count)))
            for part, count in zip(self.parts, self.counts, strict=True)
        )


def check(*cases):
    """Compiled, modules give what they do in PyTorch; a case is a module and its inputs. At most
    some hundred float32 terms a sum."""
    model = Beside(cases).eval()
    inputs = [each for _, *given in cases for each in given]
    found = needle_tvm.compile_torch(model, *inputs)(*inputs)
    with torch.no_grad():
        expected = model(*inputs)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=2e-5, atol=2e-5, err_msg=f"case {number}"
        )


def conv_norm(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, **options), nn.ReLU6()


@pytest.mark.slow
def test_batch_norm_after_a_convolution_is_its_bias(target):
    cases = []
    for affine in (True, False):
        layers = [*conv_norm(3, 8, affine=affine), *conv_norm(8, 8, affine=affine)]
        model, x = with_statistics(nn.Sequential(*layers)), torch.randn(2, 3, 9, 7)
        names = kernels(model, target, x)
        assert [name for name in names if "conv" in name] == names[:2]
        assert not any("multiply" in name or "divide" in name for name in names)
        cases.append((model, x))
    x = torch.randn(2, 6, 5, 4)
    alone = nn.Sequential(with_statistics(nn.BatchNorm2d(6)), nn.ReLU(), nn.Conv2d(6, 4, 3))
    check(*cases, (alone, x))


@pytest.mark.slow
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
    check((model, x))


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


def test_attention_is_one_kernel(target):
    cases = []
    leads, options = ((2, 3), (3,), (), (2, 2, 3)), ({}, {"is_causal": True}, {"scale": 2.0})
    for number, lead in enumerate(leads):
        model, inputs = attention(**options[number % 3]), heads(*lead)
        assert kernels(model, target, *inputs)[0] == "attention"
        cases.append((model, *inputs))
    check(*cases, (attention(is_causal=True), *heads(2, 3)), (attention(scale=2.0), *heads(2, 3)))


@pytest.mark.slow
def test_rows_that_a_mask_leaves_empty_are_zero(target):
    cases = []
    for shape, boolean in itertools.product([(9, 12), (2, 1, 1, 12), (3, 9, 12)], (True, False)):
        seen = torch.rand(shape) > 0.5
        seen[0] = False
        seen[-1, ..., :6] = False  # keys that are not seen come first
        seen[-1, ..., 6] = True
        mask = seen if boolean else torch.where(seen, torch.randn(shape), -torch.inf)
        model, inputs = attention(), (*heads(2, 3), mask)
        assert "attention" in kernels(model, target, *inputs)
        cases.append((model, *inputs))
    check(*cases)


def test_a_constant_mask_without_empty_rows_costs_nothing(target):
    whole = torch.ones(20, 20, dtype=torch.bool).tril()

    def causal(q, k, v):
        mask = torch.zeros(9, 12).masked_fill(~whole[:9, :12], -torch.inf)
        return functional.scaled_dot_product_attention(q, k, v, mask)

    inputs = heads(2, 3)
    assert kernels(Function(causal), target, *inputs)[0] == "attention"
    check((Function(causal), *inputs))


@pytest.mark.slow
def test_heads_and_batches_of_attention_broadcast():
    cases = []
    for shapes, mask in (
        (((4, 3, 8), (4, 4, 6, 8), (4, 4, 6, 8)), None),
        (((2, 4, 3, 8), (2, 1, 6, 8), (1, 4, 6, 5)), None),
        (((3, 8), (4, 6, 8), (2, 1, 6, 8)), None),
        (((2, 1, 4, 3, 8), (2, 3, 1, 6, 8), (6, 7)), (4, 3, 6)),
        (((5, 1, 2, 3, 4), (5, 1, 2, 3, 4), (5, 1, 2, 3, 4)), (5, 1, 1, 1, 3)),
        (((2, 3, 4), (2, 0, 4), (2, 0, 6)), None),
    ):
        seen = None if mask is None else torch.rand(mask) > 0.3
        model = attention_by(seen)
        cases.append((model, *map(torch.randn, shapes)))
    grouped = attention(enable_gqa=True)
    heads_of = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    check(*cases, (grouped, *heads_of))


def attention_by(seen):
    attend = functional.scaled_dot_product_attention
    return Function(lambda q, k, v: attend(q, k, v, attn_mask=seen, is_causal=seen is None))


def test_attention_written_by_hand(target):
    cases = []
    for scores in (
        lambda q, k: q @ k.transpose(-1, -2) / 3.0,
        lambda q, k: (q * 0.3) @ k.transpose(-1, -2),
        lambda q, k: (q * 0.5) @ (k.transpose(-1, -2) * 0.5) * 0.9,
    ):
        model = Function(lambda q, k, v, scores=scores: torch.softmax(scores(q, k), -1) @ v)
        inputs = heads(2, 3)
        assert kernels(model, target, *inputs)[0] == "attention"
        cases.append((model, *inputs))
    check(*cases)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_encoder_layer_projects_once_and_copies_no_heads(batch, target):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(batch, 7, 32)
    names = kernels(layer, target, x)
    assert names.count("attention") == 1
    assert sum("dense" in name for name in names) == 4
    if batch == 1:
        assert len(names) == 7
    check((layer, x))


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
    check((model, x))


def test_views():
    def fn(x):
        a, b = x.unsqueeze(0).squeeze(0).permute(0, 2, 1, 3).chunk(2, dim=-1)
        return (a + b)[:, -1].flatten(1)

    check((Function(fn), torch.randn(3, 1, 5, 8)))


def test_a_linear_layer_of_a_permutation_has_one_product(target):
    cases = []
    for order in ((1, 0, 2), (2, 0, 1)):
        shape = [0, 0, 0]
        for axis, extent in zip(order, (3, 2, 5), strict=True):
            shape[axis] = extent
        model = nn.Sequential(Function(lambda x, order=order: x.permute(order)), nn.Linear(5, 4))
        x = torch.randn(shape)
        assert sum("dense" in name for name in kernels(model, target, x)) == 1
        cases.append((model, x))
    check(*cases)


def test_products_of_any_rank_and_extremes():
    product = Function(lambda x, y: x @ y)
    shapes = [(3, 4, 5), (5,)], [(5,), (5,)], [(3, 1, 4, 5), (2, 5, 6)]
    extremes = (lambda x: x.amax((0, 2)), lambda x: x.amin(-1, keepdim=True))
    check(
        *((product, *map(torch.randn, pair)) for pair in shapes),
        *((Function(fn), torch.randn(3, 4, 5)) for fn in extremes),
    )


def test_convolutions_of_sequences():
    every = {}, {"padding": 2}, {"stride": 2, "padding": 1}, {"dilation": 3}, {"groups": 8}
    check(*((nn.Conv1d(8, 8, 3, **options), torch.randn(2, 8, 21)) for options in every))


def test_a_chain_of_sequences_is_permuted_at_its_ends(target):
    model = nn.Sequential(
        nn.Conv1d(8, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 4, 5, stride=2)
    )
    model, x = with_statistics(model), torch.randn(2, 8, 21)
    names = kernels(model, target, x)
    assert [name for name in names if "conv" in name] == names[1:3]
    assert len(names) == 4 and "maximum" in names[1]
    check((model, x))


@pytest.mark.slow
def test_convolutions_of_volumes():
    model = nn.Sequential(
        *(nn.Conv3d(3, 8, 3, (1, 2, 1), 1), nn.BatchNorm3d(8), nn.ReLU()),
        *(nn.Conv3d(8, 8, (3, 3, 1), padding=(2, 0, 0), dilation=(2, 1, 1), groups=4), nn.SiLU()),
        *(nn.ConvTranspose3d(8, 4, 2, 2), nn.ConvTranspose3d(4, 6, 3, 2, 1, 1, groups=2)),
    )
    check(
        (with_statistics(model), torch.randn(2, 3, 3, 8, 5)),
        (nn.ConvTranspose3d(3, 2, 3, 1, 1, dilation=2), torch.randn(1, 3, 3, 4, 5)),
    )


@pytest.mark.slow
def test_transposed_convolutions():
    """Taps fewer than, as many as, and more than a stride; padding that cuts off part of a block;
    and those that stay what they are."""
    cases = [
        *((k, s, (k + s) % 2, 0) for k, s in itertools.product((2, 3, 4), (1, 2, 3))),
        *((3, 2, 1, 1), (5, 2, 2, 1), ((3, 4), (2, 3), (0, 2), (1, 0))),
    ]
    layers = [
        nn.ConvTranspose2d(3, 5, taps, stride, padding, output_padding=more)
        for taps, stride, padding, more in cases
    ]
    others = {"groups": 2}, {"dilation": 2}, {"padding": 3}
    sequence = nn.ConvTranspose1d(4, 5, 4, 2, 1), nn.BatchNorm1d(5), nn.ReLU(), nn.Conv1d(5, 3, 3)
    check(
        *((layer, torch.randn(2, 3, 6, 7)) for layer in layers),
        *((nn.ConvTranspose2d(4, 6, 3, 2, **o), torch.randn(2, 4, 6, 7)) for o in others),
        (with_statistics(nn.Sequential(*sequence)), torch.randn(2, 4, 9)),
    )
