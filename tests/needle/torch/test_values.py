"""Models whose Python code decides on numbers in their buffers, as EnCodec's padding does."""

import numpy as np
import pytest

import needle.torch
from needle.errors import UnsupportedError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer


class Padded(torch.nn.Module):
    """A convolution that pads its input to whole strides, by buffers."""

    def __init__(self, stride, change=None):
        super().__init__()
        self.conv, self.change = torch.nn.Conv1d(2, 3, 4, stride), change
        self.register_buffer("stride", torch.tensor(stride))
        self.register_buffer("wide", torch.tensor(True))

    def forward(self, x):
        length = x.shape[-1]
        count = torch.ceil((length - 4) / self.stride).long()
        extra = count * self.stride + 4 - length
        if self.change is not None:
            self.change(self)
        if self.wide and length > max(extra, self.stride // 2):
            x = torch.nn.functional.pad(x, (self.stride // 2, extra))
        return self.conv(x) + self.stride


def test_buffers_that_decide_are_numbers():
    models = torch.nn.Sequential(Padded(3), torch.nn.BatchNorm1d(3)).eval(), Padded(2).eval()
    x = torch.randn(1, 2, 12)
    for model in models:
        before, order = dict(model.named_buffers()), list(model.state_dict())
        loaded = needle.torch.load(model, x)
        with torch.no_grad():
            np.testing.assert_allclose(loaded(x.numpy()).numpy(), model(x), rtol=1e-5, atol=1e-6)
        assert all(after is before[name] for name, after in model.named_buffers())
        assert list(model.state_dict()) == order


def test_a_buffer_of_two_modules_and_of_one_axis_is_a_number():
    class Strided(torch.nn.Module):
        def __init__(self, step):
            super().__init__()
            self.register_buffer("step", step)

        def forward(self, x):
            return x[:, :: int(self.step)] * self.step.item()

    step, x = torch.tensor([2]), torch.randn(2, 12)
    model = torch.nn.Sequential(Strided(step), Strided(step)).eval()
    loaded = needle.torch.load(model, x)
    np.testing.assert_allclose(loaded(x.numpy()).numpy(), model(x), rtol=1e-6)


class Masked(torch.nn.Module):
    """Branches on a mask of its own, as Longformer does, after `change` wrote to it."""

    def __init__(self, change=lambda mask, x: None):
        super().__init__()
        self.change = change

    def forward(self, x):
        mask, steps = torch.ones(x.shape[:2]), torch.arange(x.shape[1])
        self.change(mask, x)
        hidden = torch.full_like(mask, 2.0) * (1 - mask) + x.new_zeros(1)
        hidden = torch.where(hidden > 0, hidden, -1.0)
        if (hidden[:, None] > 0).flatten().any().item() or int(steps.max()) > 3:
            return x * 2
        return x + mask[..., None]


@pytest.mark.parametrize(
    "change",
    [
        lambda mask, x: None,
        lambda mask, x: mask[:, 1:].zero_(),
        lambda mask, x: x[0].add_(mask[0, 0]),
        lambda mask, x: torch.zeros(2)[0].copy_(x[0, 0, 0]).view(1).exp_(),
    ],
)
def test_constants_that_decide(change):
    model = Masked(lambda mask, x: change(mask, x.clone())).eval()
    for x in (torch.randn(2, 3, 4), torch.randn(2, 6, 4)):
        loaded = needle.torch.load(model, x)
        np.testing.assert_allclose(loaded(x.numpy()).numpy(), model(x), rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda mask, x: mask[0].copy_(x[0, :, 0]),
        lambda mask, x: mask.mul_(x[:, :, 0] > 0),
        lambda mask, x: mask.__setitem__(x[:, :, 0] > 9, 0.0),
    ],
)
def test_a_constant_that_becomes_a_variable_is_refused(change):
    with pytest.raises(UnsupportedError, match="depends on a tensor's values"):
        needle.torch.load(Masked(change).eval(), torch.zeros(2, 3, 4))


def test_assertions_about_values_are_left_out():
    """As XLM asserts that no length is above the number of its tokens."""

    class Asserting(torch.nn.Module):
        def forward(self, x, lengths):
            torch._check(lengths.max().item() <= 16)  # pytest rewrites an assert
            torch._check(lengths.min().item() >= 0)
            torch._check_tensor_all(lengths < 9)
            return x * 2

    given = torch.randn(3), torch.tensor([2, 3, 1])
    n = torch.export.Dim("n", max=8)
    for dims in (None, ({0: n}, {0: n})):
        loaded = needle.torch.load(Asserting().eval(), *given, dims=dims)
        found = loaded(*(each.numpy() for each in given))
        np.testing.assert_array_equal(found.numpy(), given[0] * 2)


def test_numbers_of_inputs_in_arithmetic():
    class Scaled(torch.nn.Module):
        def forward(self, x, count, scale):
            return (x + count.item()) * scale.item(), x.int() // (count.item() + 1)

    x, given = torch.randn(4, 3), (torch.tensor(2), torch.tensor([0.5]))
    loaded = needle.torch.load(Scaled().eval(), x, *given)
    for count in (2, 5):
        given = torch.tensor(count), torch.tensor([count / 4])
        results = loaded(x.numpy(), *(each.numpy() for each in given))
        for found, want in zip(results, Scaled()(x, *given), strict=True):
            assert str(want.dtype) == f"torch.{found.dtype}"
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)


def _added(model):
    model.stride += 1


def _replaced(model):
    model.stride = model.stride + 1


def _written_out(model):
    torch.add(model.stride, 1, out=model.stride)


@pytest.mark.parametrize(
    "change", [_added, _replaced, _written_out, lambda model: model.stride.mul_(2)]
)
def test_buffers_that_decide_and_change_are_refused(change):
    model, x = Padded(2, change).eval(), torch.randn(1, 2, 12)
    with pytest.raises(UnsupportedError, match="writes to its buffer 'stride'"):
        needle.torch.load(model, x)
    assert model.state_dict()["stride"] == 2


def test_an_input_that_decides_is_refused_as_before():
    class Branching(Padded):
        def forward(self, x):
            return super().forward(x) if x.sum() > self.stride else x

    with pytest.raises(UnsupportedError, match=r"Branching: its control flow depends on a tensor"):
        needle.torch.load(Branching(2).eval(), torch.randn(1, 2, 12))
