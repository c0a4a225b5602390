"""needle.checkpoint: the same gradients bit by bit, with less memory."""

import pytest

import needle as ndl
from needle import nn, ops


class Block(nn.Module):
    """A block with branches, several kinds of ops, dropout and running statistics."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, x):
        y = self.drop(ops.tanh(self.first(x)))
        a, b = ops.sort(y, 1)
        y = self.second(a * b.astype(a.dtype) + y.detach())
        return self.norm(x + self.drop(y)) * ndl.rand(1).item()


def run(wrap, *, count=3, model=None, x=None, each=None):
    """Loss, gradients, statistics and the state of the generator of a step of `count` blocks."""
    ndl.manual_seed(3)
    blocks = [Block(6) for _ in range(count)]
    x = ndl.randn(5, 6, requires_grad=True)
    y = x
    for block in blocks:
        y = wrap(block)(y)
    loss = (y * y).sum()
    (each or (lambda loss: loss.backward()))(loss)
    tensors = [t for block in blocks for t in block.parameters()]
    return [
        loss.numpy(),
        x.grad.numpy(),
        *(t.grad.numpy() for t in tensors),
        *(t.numpy() for block in blocks for t in block.buffers()),
        ndl.rand(3).numpy(),
    ]


def direct(block):
    return block


def once(block):
    return lambda x: ndl.checkpoint(block, x)


def decorated(block):
    return ndl.checkpoint(block)


def nested(block):
    def outer(x, *, add):
        inner = ndl.checkpoint(block, x)
        return ndl.checkpoint(lambda x, y: (x * y).sin() + add, inner, x)

    return lambda x: ndl.checkpoint(outer, x, add=0.5)


def nested_direct(block):
    return lambda x: (block(x) * x).sin() + 0.5


def in_containers(block):
    def outer(given, *, more):
        return block(given["x"][0]) * more[0]

    return lambda x: ndl.checkpoint(outer, {"x": [x]}, more=(x, None))


def twice_backward(loss):
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize(
    ("wrap", "plain"),
    [
        (once, direct),
        (decorated, direct),
        (nested, nested_direct),
        (in_containers, lambda block: lambda x: block(x) * x),
    ],
)
@pytest.mark.parametrize("each", [None, twice_backward])
def test_gradients_statistics_and_random_numbers_are_the_same(wrap, plain, each):
    found, expected = run(wrap, each=each), run(plain, each=each)
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def test_gradients_of_gradients():
    def second(wrap):
        w, x = ndl.Tensor([0.3, -0.7]), ndl.Tensor([1.0, 2.0])
        y = wrap(lambda x: (x * w).tanh() * x.exp())(x)  # w is no argument
        (first,) = ndl.autograd.grad(y.sum(), [x], create_graph=True)
        (first * first).sum().backward()
        return [first.numpy(), x.grad.numpy(), w.grad.numpy()]

    for a, b in zip(second(once), second(direct), strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_closure_may_have_a_graph():
    def grads(wrap):
        w = ndl.Tensor([0.3, -0.7])
        between = w.exp()
        y = wrap(lambda x: (x * between).sin())(ndl.ones(2))
        (y * between).sum().backward()
        return w.grad.numpy().tobytes()

    assert grads(once) == grads(direct)


def test_a_decorated_function_without_arguments_runs_again():
    calls, w = [], ndl.Tensor([1.0, 2.0])

    @ndl.checkpoint
    def block():
        calls.append(w)
        return (w.exp() * w).sum()

    block().backward()
    assert len(calls) == 2
    expected = w.grad.numpy().tobytes()
    w.grad = None
    (w.exp() * w).sum().backward()
    assert w.grad.numpy().tobytes() == expected


def test_without_gradients_it_is_a_call():
    calls = []

    def counted(x):
        calls.append(x)
        return x * 2

    with ndl.no_grad():
        assert ndl.checkpoint(counted, ndl.ones(2)).tolist() == [2, 2]
    ndl.checkpoint(counted, ndl.ones(2, requires_grad=True)).sum().backward()
    assert len(calls) == 2  # the gradient of x * 2 reads nothing
    assert ndl.checkpoint(lambda: 5)() == 5
    assert ndl.checkpoint(lambda use_reentrant: use_reentrant)(use_reentrant=3) == 3
    y = ndl.checkpoint(lambda x: (x * 2, "text"), ndl.ones(2), use_reentrant=False)
    assert y[1] == "text" and not y[0].requires_grad


def test_memory_falls(device):
    """The peak of live bytes of a chain of blocks with values of 16 times their input's size."""

    def block(x):
        wide = x.broadcast_to((16, *x.shape))
        for _ in range(6):
            wide = (wide * 0.5).tanh()
        return x + wide.mean(0)

    def peak(wrap):
        x = ndl.randn(64, 64, device=device, requires_grad=True)
        device.reset_peak_memory_stats()
        before = device.memory_allocated()
        y = x
        for _ in range(8):
            y = wrap(block)(y)
        y.sum().backward()
        return device.max_memory_allocated() - before

    assert peak(once) < 0.3 * peak(direct)


def test_what_was_changed_is_an_error():
    layer = nn.Linear(3, 3)
    for change in ("in place", "replaced", "argument"):
        x = ndl.ones(2, 3, requires_grad=True)
        y = ndl.checkpoint(lambda x: layer(x).tanh(), x)
        with ndl.no_grad():
            if change == "in place":
                p = layer.bias
                p -= 0.5
            elif change == "replaced":
                layer.weight.data = layer.weight.detach() * 2
            else:
                x -= 1
        with pytest.raises(RuntimeError, match=r"checkpoint: float32.* was changed since"):
            y.sum().backward()


def test_another_run_is_an_error():
    flags = iter([1, 2, 1, 0])

    def fickle(x):
        for _ in range(next(flags)):
            x = x.exp()
        return x.sum()

    with pytest.raises(RuntimeError, match="recorded 2 ops in the forward pass and 3"):
        ndl.checkpoint(fickle, ndl.ones(2, requires_grad=True)).backward()
    kinds = iter([lambda x: x.exp(), lambda x: x.tanh()])
    with pytest.raises(RuntimeError, match=r"by exp in the forward pass and .* by tanh"):
        ndl.checkpoint(lambda x: next(kinds)(x), ndl.ones(2, requires_grad=True)).sum().backward()
    with pytest.raises(TypeError, match="checkpoint: function is a Tensor"):
        ndl.checkpoint(ndl.ones(2))
