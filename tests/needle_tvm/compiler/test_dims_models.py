"""Whole models compiled once for every size, beside the eager model at the sizes that tell most.

The long test has every stage, and 200 random sizes more.
"""

import itertools

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from apps.models import mlp, resnet, transformer
from needle import nn
from needle.sizes.dims import Dim

pytestmark = pytest.mark.slow

RANDOM = 200
# Ones, primes, tiles and their neighbours.
TELLING = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 61, 63, 64, 65)

N, SMALL = Dim("n", max=65), Dim("n", max=9)
T, TOKENS = Dim("t", max=65), Dim("t", max=transformer.LENGTH)
H, W = Dim("h", max=65), Dim("w", max=49)


class Last(nn.Module):
    """The hidden states of an LSTM, and its last state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 20, 2)

    def forward(self, x):
        hidden, (h, c) = self.lstm(x)
        return hidden, h, c


def fully_convolutional():
    blocks = [resnet.ConvBN(3, 16, 3, 1), resnet.residual(16), resnet.ConvBN(16, 32, 3, 2)]
    return nn.Sequential(*blocks, nn.Conv(32, 5, 1))


# The model, and the shape of its input.
MODELS = {
    "mlp": (lambda: mlp.build()[0], (N, mlp.SIZES[0])),
    "resnet9": (lambda: resnet.build()[0], (N, *resnet.IMAGE)),
    "transformer": (lambda: transformer.build()[0], (SMALL, TOKENS, transformer.SIZE)),
    "lstm": (Last, (T, SMALL, 12)),
    "gru": (lambda: nn.GRU(12, 20, 2, bidirectional=True), (T, SMALL, 12)),
    "fully convolutional": (fully_convolutional, (Dim("n", max=3), 3, H, W)),
}


def telling_sizes(dims, rng):
    """All telling sizes of each dim beside least, largest, middle and any of these of the
    others."""
    for number, dim in enumerate(dims):
        others = [
            sorted({other.min, other.max, (other.min + other.max) // 2})
            for other in dims[:number] + dims[number + 1 :]
        ]
        telling = [n for n in TELLING if dim.min <= n <= dim.max]
        for size, rest in zip(itertools.cycle(telling), itertools.product(*others), strict=False):
            yield *rest[:number], size, *rest[number:]
        for size in telling:
            rest = [int(rng.choice(each)) for each in others]
            yield *rest[:number], size, *rest[number:]


@pytest.mark.parametrize("name", MODELS)
def test_right_at_telling_sizes(name, rng):
    check(name, "tuned", 0, rng)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
@pytest.mark.parametrize("name", MODELS)
def test_right_at_every_size(name, stage, rng):
    check(name, stage, RANDOM, rng)


def check(name, stage, random, rng):
    """Compare compiled and eager model at all telling sizes, and `random` random ones."""
    build, shape = MODELS[name]
    ndl.manual_seed(0)
    model = build().eval()
    dims = [n for n in shape if isinstance(n, Dim)]

    def example(sizes):
        numbers = iter(sizes)
        extents = [next(numbers) if isinstance(n, Dim) else n for n in shape]
        return rng.standard_normal(extents, dtype=np.float32)

    given = {axis: n for axis, n in enumerate(shape) if isinstance(n, Dim)}
    first = example([min(dim.max, 7) for dim in dims])
    exe = needle_tvm.compile(model, first, dims={0: given}, stage=stage)
    tried = list(telling_sizes(dims, rng))
    tried += [tuple(int(rng.integers(d.min, d.max + 1)) for d in dims) for _ in range(random)]
    for sizes in tried:
        x = example(sizes)
        with ndl.no_grad():
            wanted = model(ndl.Tensor(x))
        found = exe(x)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for have, want in pairs:
            want = want.numpy()
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(
                have.numpy(), want, rtol=2e-4, atol=2e-5 * scale, err_msg=f"{name} at {sizes}"
            )
