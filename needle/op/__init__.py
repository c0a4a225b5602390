"""Op, the base class of all ops, and everything that the definition of an op needs.

`base` has the class, its families (`Elementwise`, `Binary`, `Reduce`, `Movement`) and `register`;
`signatures` has the types in the signatures of rules, `samples` the descriptions of example inputs,
and `subgraph` the functions of tensors that are attributes of ops such as `Scan`.
"""

from ..autograd.shapes import Axes, Spec, normalize_axes, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple
from ..errors import ShapeError
from .base import (
    REGISTRY,
    Binary,
    Elementwise,
    Movement,
    Op,
    Reduce,
    in_float32,
    register,
    remembered,
    unbroadcast,
)
from .samples import ErrorSample, Sample

__all__ = [
    "REGISTRY",
    "Axes",
    "Binary",
    "Elementwise",
    "ErrorSample",
    "Movement",
    "Op",
    "Reduce",
    "Sample",
    "ShapeError",
    "Spec",
    "Tensor",
    "TensorTuple",
    "in_float32",
    "normalize_axes",
    "normalize_axis",
    "register",
    "remembered",
    "unbroadcast",
]
