"""The bits of floats as integers, and of integers as floats."""

from __future__ import annotations

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, array
from ..op import Elementwise, register
from ..op.samples import error, unary
from ..op.signatures import TeNamespace, TeTensor
from . import _te

_OTHER = {"float32": "int32", "int32": "float32", "float64": "int64", "int64": "float64"}


@register
class Bitcast(Elementwise):
    """y = the bits of x in another dtype: float32 as int32, float64 as int64, and back. No gradient
    flows back."""

    infer_first = reads_bits = True
    samples = unary(gradient=False)
    error_samples = (error(TypeError, "takes 1 input", (2,), (2,)),)

    def dtype_of(self, dtype: str) -> str:
        if dtype not in _OTHER:
            raise TypeError(f"{self.name}: the input is {dtype}, not one of {', '.join(_OTHER)}")
        return _OTHER[dtype]

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.view(self.dtype_of(x.dtype.name))

    def compute(self, x: NDArray) -> NDArray:
        return array(x.numpy().view(self.dtype_of(x.dtype)), device=x.device)

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype = self.dtype_of(_te.dtype_of(x))
        return _te.elementwise(k, lambda v: k.tirx.reinterpret(dtype, v), x)


BITCAST = Bitcast()


def bitcast(a: Tensor) -> Tensor:
    """Return the bits of `a` in another dtype: float32 as int32, float64 as int64, and the other
    way round. Raises TypeError for any other dtype.

    >>> hex(ndl.bitcast(ndl.Tensor([1.0])).numpy()[0])
    '0x3f800000'
    """
    return apply(BITCAST, (a,))
