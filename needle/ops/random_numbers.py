"""Random numbers computed from a counter, so that eager and compiled code draw the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, as_shape
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, scans
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, Sample, error
from ..op.signatures import Expr, TeNamespace, TeTensor

_STATE = Arg((2,), 0, 1000, dtype="int64", special=False)


@register
class RandomUniform(Op):
    """y = numbers of `shape` in [0, 1), float64 if `wide` and float32 otherwise, drawn by Philox
    4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The input is int64
    (2,): the key, and the index of the first block of four 32-bit words. `blocks` is the number of
    blocks that the numbers take."""

    shape: tuple[int, ...]
    wide: bool = False

    infer_first = True
    opaque = True  # if it were fused into several kernels, each would compute it again
    samples = (
        Sample((_STATE,), {"shape": (3, 5)}, gradient=False),
        Sample((_STATE,), {"shape": ()}, gradient=False),
        Sample((_STATE,), {"shape": (7,), "wide": True}, gradient=False),
        Sample((_STATE,), {"shape": (2, 0)}, gradient=False),
    )
    error_samples = (
        error(ShapeError, r"shape \(3,\)", Arg((3,), dtype="int64"), shape=(2,)),
        error(TypeError, "int32", Arg((2,), dtype="int32"), shape=(2,)),
        error(ValueError, "-1", Arg((2,), dtype="int64"), shape=(-1,)),
    )

    @property
    def blocks(self) -> int:
        """The number of blocks that the numbers take."""
        words = math.prod(self.shape) * (2 if self.wide else 1)
        return -(-words // 4)

    def infer(self, state: Spec) -> Spec:
        if state.shape != (2,):
            raise ShapeError(f"{self.name}: the state has shape {state.shape}, not (2,)")
        if state.dtype != "int64":
            raise TypeError(f"{self.name}: the state is {state}, not int64")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"{self.name}: shape {self.shape} has a negative extent")
        return Spec(self.shape, "float64" if self.wide else "float32", state.device)

    def reference(self, state: np.ndarray) -> np.ndarray:
        return scans.philox(state, math.prod(self.shape), self.wide).reshape(self.shape)

    def compute(self, state: NDArray) -> NDArray:
        flat = scans.run("philox", state.compact(), count=math.prod(self.shape), wide=self.wide)
        return flat.reshape(self.shape)

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, state: TeTensor) -> TeTensor:
        count, blocks = math.prod(self.shape), max(self.blocks, 1)
        u64 = lambda value: k.tirx.const(value, "uint64")  # noqa: E731

        def word(j: Expr) -> Expr:
            """Return word number j of the stream, as uint64."""
            block = k.tirx.Cast("uint64", state(1)) + k.tirx.Cast("uint64", j % blocks)
            return _word(k, k.tirx.Cast("uint64", state(0)), block, j // blocks)

        def value(*at: Expr) -> Expr:
            j = k.tirx.const(0, "int64")
            for n, i in zip(self.shape, at, strict=True):
                j = j * n + k.tirx.Cast("int64", i)
            if self.wide:
                bits = (word(j) << u64(32)) | word(j + count)
                whole = k.tirx.Cast("int64", bits >> u64(11))
                return k.tirx.Cast("float64", whole) * k.tirx.const(2.0**-53, "float64")
            whole = k.tirx.Cast("int32", word(j) >> u64(8))
            return k.tirx.Cast("float32", whole) * k.tirx.const(2.0**-24, "float32")

        return k.te.compute(self.shape, value, name=self.name)


def random_uniform(state: Tensor, shape: tuple[int, ...], wide: bool = False) -> Tensor:
    """Return numbers of this `shape` in [0, 1), float64 if `wide` and float32 otherwise. They
    depend only on `state`: int64 (2,), the key and the index of the first block of Philox 4x32-10.
    Raises ShapeError or TypeError for any other state, ValueError for a negative extent.

    >>> state = ndl.Tensor([7, 0])
    >>> one, two = (ndl.ops.random_uniform(state, (3,)) for _ in range(2))
    >>> bool((one == two).all())
    True
    """
    return apply(RandomUniform(as_shape("random_uniform", (shape,)), wide), (state,))


def _word(k: TeNamespace, key: Expr, block: Expr, which: Expr) -> Expr:
    """Return one of the four words of a block. A word is the low half of a uint64."""
    u64 = lambda value: k.tirx.const(value, "uint64")  # noqa: E731
    low, half = u64(0xFFFFFFFF), u64(32)
    # Products are bound to variables: TVM treats expressions as trees, which would double in size
    # with each round.
    bound: list[tuple[Any, Expr]] = []

    def variable(name: str, value: Expr) -> Any:
        bound.append((k.tirx.Var(name, "uint64"), value))
        return bound[-1][0]

    key, block = variable("key", key), variable("block", block)
    x = [block & low, block >> half, u64(0), u64(0)]
    for n in range(10):
        a = variable(f"a{n}", x[0] * u64(0xD2511F53))
        b = variable(f"b{n}", x[2] * u64(0xCD9E8D57))
        k0 = ((key & low) + u64(n * 0x9E3779B9 % 2**32)) & low
        k1 = ((key >> half) + u64(n * 0xBB67AE85 % 2**32)) & low
        x = [(b >> half) ^ x[1] ^ k0, b & low, (a >> half) ^ x[3] ^ k1, a & low]
    found = x[3]
    for n in (2, 1, 0):
        found = k.tirx.Select(which == n, x[n], found)
    for name, value in reversed(bound):
        found = k.tirx.Let(name, value, found)
    return found
