"""Values and gradients of ops against PyTorch's, over the ops' own samples."""

import math
import zlib

import numpy as np
import pytest

import needle as ndl
from needle.backend_ndarray.dtypes import is_floating
from needle.ops import REGISTRY
from needle.testing import assert_close, examples

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.peer


def over(op, x, fn):
    """fn(x, dim, keepdim) over the op's axes."""
    axes = tuple(range(x.ndim)) if op.axes is None else op.axes
    return x if axes == () else fn(x, axes, op.keepdims)


def channels(fn, x):
    """Apply a function of (N, C, H, W) to (N, H, W, C)."""
    return fn(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def conv(op, x, w):
    weight = w.permute(3, 2, 0, 1)
    return channels(
        lambda y: F.conv2d(y, weight, None, op.stride, op.padding, op.dilation, op.groups), x
    )


def conv_input(op, g, w):
    shape = (g.shape[0], w.shape[2] * op.groups, *op.size)
    weight = w.permute(3, 2, 0, 1)
    return channels(
        lambda y: torch.nn.grad.conv2d_input(
            shape, weight, y, op.stride, op.padding, op.dilation, op.groups
        ),
        g,
    )


def conv_weight(op, x, g):
    shape = (g.shape[3], x.shape[3] // op.groups, *op.kernel)
    grad = torch.nn.grad.conv2d_weight(
        x.permute(0, 3, 1, 2), shape, g.permute(0, 3, 1, 2),
        op.stride, op.padding, op.dilation, op.groups,
    )  # fmt: skip
    return grad.permute(2, 3, 1, 0)


def sliding_windows(op, x):
    w = op.window
    (p, q) = w.padding
    padded = F.pad(x.permute(0, 3, 1, 2), (q, q, p, p), value=op.value)
    n, c = padded.shape[:2]
    out = F.unfold(padded, w.kernel, w.dilation, 0, w.stride)
    rows, columns = w.counts("sliding_windows", x.shape[1:3])
    return out.reshape(n, c, *w.kernel, rows, columns).permute(0, 4, 5, 2, 3, 1)


def normalize(op, x):
    axes = op.axes if isinstance(op.axes, tuple) else (op.axes,)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + op.eps)


def logsumexp(op, x):
    return torch.logsumexp(x, tuple(range(x.ndim)) if op.axes is None else op.axes, op.keepdims)


def take(op, x, index):
    axis = op.axis % x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    picked = torch.index_select(x, axis, index.reshape(-1))
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def segment_sum(op, x, where):
    index = torch.where(where < 0, where + op.extent, where).reshape(-1).long()
    lead, rest = x.shape[: op.axis], x.shape[op.axis + where.ndim :]
    out = torch.zeros(*lead, op.extent, *rest, dtype=x.dtype)
    return out.index_add(op.axis, index, x.reshape(*lead, index.numel(), *rest))


PEERS = {
    "abs": lambda op, x: torch.abs(x),
    "add": lambda op, a, b: a + b,
    "add_scalar": lambda op, x: x + op.scalar,
    "argmax": lambda op, x: torch.argmax(x, op.axis, op.keepdims),
    "avg_pool": lambda op, x: channels(
        lambda y: F.avg_pool2d(y, op.kernel, op.stride, op.padding), x
    ),
    "broadcast_to": lambda op, x: torch.broadcast_to(x, op.shape),
    "concat": lambda op, *parts: torch.cat(parts, op.axis),
    "conv": conv,
    "conv_input": conv_input,
    "conv_weight": conv_weight,
    "divide": lambda op, a, b: a / b,
    "divide_scalar": lambda op, x: x / op.scalar,
    "erf": lambda op, x: torch.erf(x),
    "exp": lambda op, x: torch.exp(x),
    "flip": lambda op, x: torch.flip(
        x, tuple(range(x.ndim)) if op.axes is None else np.atleast_1d(op.axes).tolist()
    ),
    "take": take,
    "gelu": lambda op, x: F.gelu(x),
    "log": lambda op, x: torch.log(x),
    "logsoftmax": lambda op, x: torch.log_softmax(x, op.axis),
    "logsumexp": logsumexp,
    "matmul": lambda op, a, b: a @ b,
    "max": lambda op, x: over(op, x, torch.amax),
    "max_pool": lambda op, x: channels(
        lambda y: F.max_pool2d(y, op.kernel, op.stride, op.padding, op.dilation), x
    ),
    "maximum": lambda op, a, b: torch.maximum(a, b),
    "mean": lambda op, x: over(op, x, torch.mean),
    "min": lambda op, x: over(op, x, torch.amin),
    "minimum": lambda op, a, b: torch.minimum(a, b),
    "mul_scalar": lambda op, x: x * op.scalar,
    "multiply": lambda op, a, b: a * b,
    "negate": lambda op, x: -x,
    "normalize": normalize,
    "pad": lambda op, x: F.pad(x, [n for p in reversed(op.padding) for n in p], value=op.value),
    "permute": lambda op, x: x.permute(op.axes),
    "power": lambda op, a, b: a**b,
    "power_scalar": lambda op, x: x**op.scalar,
    "relu": lambda op, x: torch.relu(x),
    "reshape": lambda op, x: x.reshape(op.shape),
    "rsqrt": lambda op, x: torch.rsqrt(x),
    "segment_sum": segment_sum,
    "sigmoid": lambda op, x: torch.sigmoid(x),
    "sign": lambda op, x: torch.sign(x),
    "silu": lambda op, x: F.silu(x),
    "softmax": lambda op, x: torch.softmax(x, op.axis),
    "sqrt": lambda op, x: torch.sqrt(x),
    "stack": lambda op, *parts: torch.stack(parts, op.axis),
    "subtract": lambda op, a, b: a - b,
    "summation": lambda op, x: over(op, x, torch.sum),
    "tanh": lambda op, x: torch.tanh(x),
    "sliding_windows": sliding_windows,
    "var": lambda op, x: over(
        op, x, lambda y, axes, keep: torch.var(y, axes, correction=op.correction, keepdim=keep)
    ),
    "where": lambda op, c, a, b: torch.where(c, a, b),
}


def refused(op, arrays):
    """Whether PyTorch refuses an op on these arrays, such as empty windows or some variances."""
    if op.name in ("conv", "conv_input", "conv_weight", "sliding_windows", "avg_pool", "max_pool"):
        return any(0 in a.shape for a in arrays)
    if op.name == "max_pool" and arrays[0].dtype.kind != "f":
        return True
    if op.name == "normalize":
        return arrays[0].size == 0
    if op.name == "var":
        return not (arrays[0].ndim and arrays[0].size) or op.axes == () or op.count(arrays[0]) <= 0
    return op.name == "logsumexp" and op.axes == ()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(PEERS))
def test_op_is_torchs(name, dtype, device):
    op_class = REGISTRY[name]
    compared = 0
    for number, sample in enumerate(op_class.samples):
        op = op_class(**sample.attributes)
        rng = np.random.default_rng(zlib.crc32(f"{name} {number}".encode()))
        arrays = [examples.draw(arg, dtype, rng) for arg in sample.inputs]
        if refused(op, arrays):
            continue
        length = max(op.reduction_length(*[examples.spec(a, None) for a in arrays]), 1)
        mine = [ndl.Tensor(a, device=device, dtype=a.dtype) for a in arrays]
        others = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
        y, z = op(*mine), PEERS[name](op, *others)
        got, want = y.numpy(), z.detach().numpy()
        scale = max([1.0, *(examples.largest(a) for a in arrays)])
        assert_close(got, want.reshape(got.shape), length, scale=scale, what=f"{op!r}")
        compared += 1
        if not z.requires_grad or not is_floating(y.dtype) or not sample.gradient:
            continue
        weights = np.asarray(rng.uniform(0.5, 1.5, got.shape)).astype(got.dtype)
        z.backward(torch.tensor(weights).reshape(z.shape))
        if not y.requires_grad:  # needle propagates no gradient
            continue
        y.backward(ndl.Tensor(weights, device=device, dtype=weights.dtype))
        for a, b in zip(mine, others, strict=True):
            if b.grad is None:
                continue
            found = np.zeros(a.shape, a.dtype) if a.grad is None else a.grad.numpy()
            terms = length * max(1, math.prod(y.shape) // max(1, math.prod(a.shape)))
            size = max(scale, float(np.abs(b.grad.numpy()).max(initial=0)))
            assert_close(found, b.grad.numpy(), terms * 4, scale=size, what=f"gradient of {op!r}")
    assert compared
