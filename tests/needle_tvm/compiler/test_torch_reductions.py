"""Bags of embeddings, scattered reductions, adaptive pooling, and the lines of what is refused."""

from math import prod

import pytest

import needle.torch
import needle_tvm
from needle.trace import trace
from needle_tvm.errors import TranslationError
from tests.needle_tvm.compiler.torch_checks import Applied, check

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        yield


@pytest.mark.slow
def test_bags_of_embeddings():
    table, weights = torch.randn(20, 6), torch.rand(12)
    index, starts = torch.randint(0, 20, (12,)), torch.tensor([0, 4, 4, 9])
    index[4] = 3

    def bags(index, starts):
        ends = torch.cat([starts, starts[-1:] + 2])
        square = index.reshape(4, 3)
        return (
            *(F.embedding_bag(index, table, starts, mode=m) for m in ("sum", "mean", "max")),
            *(F.embedding_bag(square, table, mode=m) for m in ("sum", "mean", "max")),
            *(
                F.embedding_bag(square, table, mode=m, padding_idx=3)
                for m in ("sum", "mean", "max")
            ),
            F.embedding_bag(index, table, starts, mode="mean", padding_idx=-17),
            F.embedding_bag(index, table, starts, mode="sum", per_sample_weights=weights),
            F.embedding_bag(index, table, ends, mode="sum", include_last_offset=True),
        )

    check(bags, [index, starts], atol=1e-6)


def test_reductions_of_a_tensor_without_axes_beside_a_convolution():
    """TVM's `ConvertLayout` fails on them."""
    weight = torch.randn(4, 3, 3, 3)

    def reduced(x, image):
        m = x.mean(0)
        whole = F.l1_loss(m, m + 1), m.sum(), m.prod(), m.amax(), m.amin(), m.var(unbiased=False)
        return *whole, m.sum(dtype=torch.float64), F.conv2d(image, weight)

    check(reduced, [torch.randn(2), torch.randn(1, 3, 6, 6)], atol=1e-5)


def test_bilinear_layers_never_hold_all_products():
    layer = torch.nn.Bilinear(40, 30, 5)
    x, y = torch.randn(2, 60, 40), torch.randn(2, 60, 30)
    check(lambda x, y: layer(x, y), [x, y], atol=1e-5)
    loaded = needle.torch.load(Applied(layer).eval(), x, y, check=False)
    graph = trace(loaded, x.numpy(), y.numpy())
    assert max(prod(spec.shape) for node in graph.nodes for spec in node.specs) < 120 * 400


@pytest.mark.slow
def test_scattered_reductions():
    place = torch.tensor([[0, 1], [2, 0], [0, 0]])

    def reduced(x, source, place):
        kinds = "sum", "mean", "prod", "amax", "amin"
        return tuple(
            x.scatter_reduce(0, place, source, kind, include_self=own)
            for kind in kinds
            for own in (True, False)
        )

    check(reduced, [torch.randn(4, 2), torch.randn(3, 2), place], atol=1e-6)
    whole = torch.randint(-9, 9, (4, 2)), torch.randint(-9, 9, (3, 2))
    check(reduced, [*whole, place])


@pytest.mark.slow
def test_adaptive_pooling_in_three_dimensions():
    check(
        lambda x: (*F.adaptive_max_pool3d(x, (2, 1, 3), return_indices=True),),
        [torch.randn(2, 5, 4, 3)],
    )


def masked(x):
    y = x[:, torch.tensor([0, 1])] * 2  # an index that is no mask
    return y[y > 0].sum()


def branching(x):
    if x.sum() > 0:
        return x
    return -x


def drawing(x):
    return x + torch.rand_like(x)


def converted(x):
    return x * float(x.numpy().mean())


LINES = {
    "a mask": (
        masked,
        r"aten\.index\.Tensor\) whose shape .* \(at .*: return y\[y > 0\]\.sum\(\)\)",
    ),
    "an if": (branching, r"depends on a tensor's values.*\(at .*: if x\.sum\(\) > 0:\)"),
    "random": (drawing, r"random numbers .*\(at .*: return x \+ torch\.rand_like\(x\)\)"),
    "numpy": (converted, r"numpy\(\) is not supported.*\(at .*: return x \* float\(x\.numpy"),
}


@pytest.mark.parametrize("name", LINES)
def test_what_depends_on_data_is_refused_with_its_line(name):
    function, match = LINES[name]
    with pytest.raises(TranslationError, match=match) as caught:
        needle_tvm.compile_torch(Applied(function).eval(), torch.randn(3, 4))
    assert "\n" not in str(caught.value)
