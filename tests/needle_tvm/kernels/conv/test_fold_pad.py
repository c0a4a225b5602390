"""Padding that a convolution does by itself."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle_tvm._tvm.names import relax
from needle_tvm.kernels.conv.fold_pad import fold_pad
from tests.needle_tvm.conftest import tensor
from tests.needle_tvm.kernels.conv.convolutions import conv
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

X, W = Spec(2, 5, 6, 4), Spec(3, 3, 4, 8)
pad, permute = relax.op.nn.pad, relax.op.permute_dims
AROUND = [0, 0, 1, 2, 0, 3, 0, 0]


def test_zeros_become_the_convolutions_own():
    check_becomes(
        fold_pad,
        relax_module(lambda x, w: conv(pad(x, AROUND), w, [1, 0, 0, 2], strides=2), X, W),
        relax_module(lambda x, w: conv(x, w, [2, 0, 2, 5], strides=2), X, W),
    )


def test_behind_a_permutation():
    images, order = Spec(2, 4, 5, 6), [0, 2, 3, 1]
    check_becomes(
        fold_pad,
        relax_module(
            lambda x, w: conv(permute(pad(x, [0, 0, 0, 0, 1, 2, 0, 3]), order), w, 0), images, W
        ),
        relax_module(lambda x, w: conv(permute(x, order), w, [1, 0, 2, 3]), images, W),
    )


def test_others_may_read_the_padded_images():
    def before(x, w):
        y = emit(pad(x, AROUND))
        return conv(y, w, 0), y

    def after(x, w):
        return conv(x, w, [1, 0, 2, 3]), pad(x, AROUND)

    check_becomes(fold_pad, relax_module(before, X, W), relax_module(after, X, W))


STAYS = {
    "other numbers": lambda x, w: conv(pad(x, AROUND, "constant", 1.0), w),
    "reflections": lambda x, w: conv(pad(x, AROUND, "reflect"), w),
    "more images": lambda x, w: conv(pad(x, [1, 0, 1, 0, 0, 0, 0, 0]), w),
    "something between": lambda x, w: conv(relax.op.nn.relu(pad(x, AROUND)), w),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    check_stays(fold_pad, relax_module(STAYS[name], X, W))


def test_more_channels_stay():
    function = lambda x, w: conv(pad(x, [0, 0, 1, 0, 0, 0, 0, 2]), w)  # noqa: E731
    check_stays(fold_pad, relax_module(function, X, Spec(3, 3, 6, 8)))


@pytest.mark.parametrize("groups", [1, 6])
def test_same_padding_of_tensorflow(groups):
    torch = pytest.importorskip("torch")

    class Same(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(6, 6, 1)
            self.second = torch.nn.Conv2d(6, 6, 3, stride=2, groups=groups)

        def forward(self, x):
            y = torch.nn.functional.silu(self.first(x))
            return self.second(torch.nn.functional.pad(y, (0, 1, 0, 1)))

    model, x = Same().eval(), torch.randn(1, 6, 8, 10)
    compiled = needle_tvm.compile_torch(model, x, recompile=True)
    with torch.no_grad():
        wanted = model(x).numpy()
    # Sums of 54 products of numbers of about 1, in another order.
    np.testing.assert_allclose(np.asarray(compiled(x)), wanted, rtol=1e-5, atol=1e-5)


def test_padding_by_minus_zero_keeps_its_sign(rng):
    x = tensor(rng.standard_normal((1, 2, 3, 3)).astype(np.float32))
    compiled = needle_tvm.compile(lambda x: ops.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)), -0.0), x)
    found = compiled(x).numpy()
    assert np.signbit(found[:, :, 0]).all() and np.signbit(found[..., 3:]).all()
