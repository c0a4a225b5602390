"""A tensor without axes takes axis 0 or -1, as PyTorch's; what it gives has no axes either."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import ops

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

NAMES = {
    "summation": "sum",
    "max": "amax",
    "min": "amin",
    "logsoftmax": "log_softmax",
    **{name: name for name in "mean prod logsumexp softmax argmax argmin amax amin".split()},
    **{name: name for name in "count_nonzero any all cumsum cumprod logcumsumexp".split()},
}


def cases(x, t, axis):
    """(needle's, PyTorch's) by name."""
    for name, peer in NAMES.items():
        wide = t.to(torch.float32)
        yield name, lambda x, n=name: getattr(ops, n)(x, axis), getattr(torch, peer)(wide, axis)
    for name in ("sort", "cummax", "cummin"):
        for part in (0, 1):
            found = getattr(torch, name)(t, axis)[part]
            yield name, lambda x, n=name, part=part: getattr(ops, n)(x, axis)[part], found
    yield "argsort", lambda x: ops.argsort(x, axis), torch.argsort(t, axis)
    yield "topk", lambda x: ops.topk(x, 1, axis)[0], torch.topk(t, 1, axis)[0]
    yield "flip", lambda x: ops.flip(x, axis), torch.flip(t, (axis,)) if t.ndim else t
    for name in ("var", "std"):
        found = getattr(torch, name)(t, axis, correction=0)
        yield name, lambda x, n=name: getattr(ops, n)(x, axis), found
    yield "norm", lambda x: ops.norm(x, 2, axis), torch.linalg.vector_norm(t, 2, axis)
    yield "keepdims", lambda x: ops.summation(x, axis, True), torch.sum(t, axis, True)
    yield "axes", lambda x: ops.mean(x, (axis,)), torch.mean(t, (axis,))


@pytest.mark.parametrize("axis", [0, -1])
def test_results_are_pytorchs(axis):
    x, t = ndl.Tensor(np.float32(2.5), requires_grad=False), torch.tensor(2.5)
    names, functions, wanted = zip(*cases(x, t, axis), strict=True)
    compiled = needle_tvm.compile(lambda x: tuple(f(x) for f in functions), x)(x)
    for name, function, code, expected in zip(names, functions, compiled, wanted, strict=True):
        for found in (function(x), code):
            assert found.shape == (), name
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6, err_msg=name)


def test_gradients_and_other_axes():
    x = ndl.Tensor(np.float32(2.5))
    ops.logsumexp(x * 3, -1).backward()
    assert x.grad.item() == 3
    for axis in (1, -2):
        with pytest.raises(ndl.errors.ShapeError, match="out of range for 0 dimensions"):
            ops.logsumexp(x, axis)
