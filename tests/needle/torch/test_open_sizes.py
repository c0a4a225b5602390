"""Models loaded for many sizes, beside PyTorch, and what is refused of them."""

import numpy as np
import pytest

import needle.torch
from needle.errors import DimError, ModelError
from needle.sizes.dims import Dim

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.peer
N, LARGE = Dim("n", max=33), Dim("n", min=2, max=33)
X = torch.linspace(-2, 2, 60).reshape(6, 10)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


def agree_at(function, make, dims, sizes):
    """Check that one load gives PyTorch's results for `make(*size)` at each of the sizes."""
    example = make(*(range(6, 6 - len(sizes[0]), -1)))
    loaded = needle.torch.load(Applied(function).eval(), *example, dims=dims)
    for size in sizes:
        inputs = make(*size)
        found = loaded(*(each.numpy() for each in inputs))
        expected = torch.utils._pytree.tree_leaves(function(*inputs))
        for have, want in zip(
            [*found] if isinstance(found, (tuple, list)) else [found], expected, strict=True
        ):
            assert have.shape == tuple(want.shape)
            np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-4, atol=2e-5)


def rows(n):
    return (torch.randn(n, 10),)


def indexed(n):
    return torch.randn(n, 10), torch.randint(0, 10, (n,))


def padded_attention(x):
    q = x.reshape(1, x.shape[0], 2, 5).transpose(1, 2)
    return functional.scaled_dot_product_attention(q, q, q, is_causal=True)


# Functions of x (n, 10), in groups that are compiled together.
FUNCTIONS = {
    "sizes as numbers": lambda x: (
        x.sum(0) / x.shape[0],
        x + x.shape[0] * 2,
        x * (torch.arange(x.shape[0]) / x.shape[0])[:, None],
        torch.full((x.shape[0], 2), 0.5),
    ),
    "reductions": lambda x: (x.mean(0), x.softmax(0), x.cumsum(0), x.max(0)[0], x.amin(0)),
    "views": lambda x: (
        x.reshape(-1) * 2,
        x.t() @ x,
        x.flip(0),
        x.roll(1, 0),
        x.reshape(x.shape[0], 2, 5).permute(1, 0, 2) + 1,
        x.repeat(2, 1),
        x.repeat(2, x.shape[0], 2),
        torch.ones(1, 2, 3).repeat(x.shape[0], 1, 1) + x[:, :1, None],
    ),
    "parts": lambda x: (x[:1] * 2, x[-1] * 2, x[-1:] + 1, x[::2] * 1, x[:, -3:] * 1),
    "joined": lambda x: (torch.cat([x, x * 2]), functional.pad(x, (1, 1, 2, 0))),
    "split": lambda x: (
        *torch.cat([x, x * 2]).chunk(2),
        *torch.cat([x, x[:1], x + 1]).split([x.shape[0], 1, x.shape[0]]),
    ),
    "instance norm": lambda x: functional.instance_norm(
        x.reshape(x.shape[0], 2, 5), weight=x[0, :2], bias=x[0, 2:4]
    ),
    "ordered": lambda x: (
        x.sort(0)[0],
        x.topk(1, 0)[0],
        x.gather(0, torch.zeros(1, 10, dtype=torch.long)),
        x.gather(1, x.argsort(1)),
    ),
    "masks": lambda x: (
        torch.tril(torch.ones(x.shape[0], x.shape[0])) @ x,
        padded_attention(x),
        functional.one_hot(x.argmax(1), 10),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name):
    agree_at(FUNCTIONS[name], rows, {0: {0: N}}, [(1,), (2,), (7,), (8,), (33,)])


def test_parts_that_are_smaller():
    def parts(x):
        return x[:-1] * 2, x[1:] + x[:-1]

    agree_at(parts, rows, {0: {0: LARGE}}, [(2,), (7,), (33,)])


def test_parts_of_a_table_that_are_as_long_as_an_input():
    table = torch.arange(80.0).reshape(1, 80)  # such as the positions of a language model

    def parts(x):
        n = x.shape[0]
        return (
            x[:, 0] + table[0, :n],
            table[:, n : 2 * n] * 1,
            table[:, -n:] * 2,
            table[0, 2 : n + 2],
        )

    agree_at(parts, rows, {0: {0: LARGE}}, [(2,), (7,), (33,)])


def test_one_element_of_each_row():
    def chosen(x, at):
        return x[torch.arange(x.shape[0]), at]

    agree_at(chosen, indexed, {0: {0: N}, 1: {0: N}}, [(1,), (7,), (33,)])


def test_multiples_decide_what_bounds_do_not():
    pairs = Dim("n", max=64, multiple_of=2)
    agree_at(lambda x: x.view(-1, 2, 10) * 2, rows, {0: {0: pairs}}, [(2,), (64,)])


def doubled_if_many(x):
    return x * 2 if x.shape[0] > 8 else x


ROW = {0: {0: N}}
REFUSED = {
    "a branch": (doubled_if_many, ROW, r"only while n <= 8 \(asked at test_open_sizes\.py"
                 r":\d+: return x \* 2 if .*n \(1 to 33\)"),
    "a loop": (lambda x: sum(x[i] for i in range(x.shape[0])), ROW,
               r"axis 0 of input 'inputs_0' cannot be n: .*\(asked at test_open_sizes\.py"),
    "one row": (lambda x: x if x.shape[0] == 1 else x * 2, ROW,
                "at n = 1 the model computes something other than its exported program: give n a "
                "min of 2"),
    "a divisor": (lambda x: x.view(2, x.shape[0] // 2, 10), ROW,
                  "PyTorch itself does not run it on inputs with n = 7, which dims allow"),
    "a constant": (lambda x: x + torch.ones(6, 10), ROW, "does not run it on .* n = 7"),
    "parts": (lambda x: x.chunk(2), ROW, r"the model is the same only while Eq\("),
    "a size": (lambda x: (x, x.shape[0]), ROW, "returns a size that dims leave open"),
    "nothing": (lambda x: x[:-1], ROW, "the extent n - 1 can be 0, which is below 1"),
    "values": (lambda x: x[x[:, 0] > 0], ROW, "whose shape depends on values"),
    "no axis": (lambda x: x, {0: {0: 2 * N}}, "n must be the whole size of an axis of an input"),
    "no example": (lambda x: x * 2, {0: {0: Dim("n", min=7, max=9)}}, "the example does not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, dims, match = REFUSED[name]
    with pytest.raises((DimError, ModelError), match=match) as caught:
        needle.torch.load(Applied(function).eval(), X, dims=dims)
    assert "\n" not in str(caught.value)


def test_the_steps_of_an_lstm_with_projections():
    model = nn.LSTM(10, 4, batch_first=True, proj_size=3).eval()
    dims = {0: {0: N, 1: Dim("t", max=9)}}
    loaded = needle.torch.load(model, torch.randn(6, 5, 10), dims=dims)
    x = torch.randn(3, 8, 10)
    output, (h, c) = loaded(x.numpy())
    wanted, (wanted_h, wanted_c) = model(x)
    for mine, theirs in ((output, wanted), (h, wanted_h), (c, wanted_c)):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), atol=1e-5)


def test_two_dims_that_the_model_needs_to_be_one():
    model = Applied(lambda x, y: x[:, None] @ y[:, :, None]).eval()
    dims = {"inputs_0": {0: N}, "inputs_1": {0: Dim("m", max=33)}}
    with pytest.raises(ModelError, match=r"on inputs with m = 7, n = 8, which dims allow"):
        needle.torch.load(model, X, X, dims=dims)
