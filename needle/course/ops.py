"""The course's names for op classes, and a base class for users' ops that define only `compute` and
`gradient`."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

import needle

from .. import ops
from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor, TensorTuple, Value
from ..backend_ndarray import NDArray
from ..common.state import state
from ..errors import TraceError
from ..op import Op
from .arrays import as_array
from .patches import Patches

# The course's names for op classes, and needle's names.
ALIASES = {
    "EWiseAdd": "Add",
    "EWiseMul": "Multiply",
    "EWiseDiv": "Divide",
    "EWisePow": "Power",
    "DivScalar": "DivideScalar",
    "MatMul": "Matmul",
    "ReLU": "Relu",
    "UnDilate": "Undilate",
}
# Classes whose arguments may be lists in the course.
_LISTS = ("Reshape", "BroadcastTo", "Transpose", "Summation", "Flip", "Dilate", "Undilate")
_CONV = ("stride", "padding", "dilation", "groups")  # Conv's; the course passes a number for a pair
# Functions of a tensor and a number; in homework 1 the number may be an array of one element.
_SCALARS = ("add_scalar", "mul_scalar", "divide_scalar", "power_scalar")

_numpy_backend = False


class TensorOp(Op):
    """Base class for your own ops: define `compute` for NDArrays and `gradient` for Tensors.

    Set attributes in `__init__`. All inputs and the output are kept for `gradient`. Such an op can
    run and be differentiated. docs/contributing/op.md shows an op that can also be compiled.
    """

    reads = frozenset({"inputs", "output"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if "compute" in vars(cls):
            cls.compute = _on_arrays(cls.compute)  # type: ignore[method-assign]

    __eq__ = object.__eq__  # the attributes are unknown, so each op equals only itself
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def infer(self, *specs: Any) -> Any:
        if state.trace is None:
            raise NotImplementedError(f"{self.name}: infer is not defined")
        raise TraceError(
            "an op with only compute and gradient cannot be traced or compiled; "
            "docs/contributing/op.md says what a compiled op defines"
        )


class TensorTupleOp(TensorOp):
    """Base class for your own ops whose `compute` returns a tuple."""


def _on_arrays(compute: Any) -> Any:
    """Wrap `compute` so that it returns NDArrays and, if NumPy is the backend, gets NumPy
    arrays."""

    @functools.wraps(compute)
    def wrapped(self: Any, *inputs: Any) -> Any:
        given = tuple([_numpy(x) for x in inputs]) if _numpy_backend else inputs
        return as_array(compute(self, *given), _device(inputs))

    return wrapped


def _device(inputs: tuple[Any, ...]) -> Any:
    """Return the device of the first array, or None (the default device) if there is no array."""
    while inputs and isinstance(inputs[0], tuple):
        inputs = inputs[0]
    return inputs[0].device if inputs else None


def _numpy(value: Any) -> Any:
    return tuple(map(_numpy, value)) if isinstance(value, tuple) else value.numpy()


def _call_stack(self: Any, *inputs: Any) -> Any:
    """Apply Stack or Concat to several Tensors or, as in the course, to one TensorTuple or list."""
    if len(inputs) == 1 and isinstance(inputs[0], (TensorTuple, tuple, list)):
        inputs = tuple(inputs[0])
    return apply(self, inputs)


def _with(convert: Any, init: Any) -> Any:
    """Wrap the constructor `init` so that `convert` converts its arguments."""

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *map(convert, args), **{k: convert(v) for k, v in kwargs.items()})

    return wrapped


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _with_pairs(init: Any) -> Any:
    """Wrap the constructor `init` of a convolution so that a number may stand for a pair."""

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(_CONV, args, strict=False)) | kwargs
        init(self, **{k: v if k == "groups" else _pair(v) for k, v in given.items()})

    return wrapped


def _pair(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value, value)


def _with_number(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(a: Tensor, scalar: Any) -> Tensor:
        if isinstance(scalar, (np.ndarray, np.generic, NDArray)) and scalar.size == 1:
            scalar = scalar.item()
        result: Tensor = function(a, scalar)
        return result

    return wrapped


def install(patches: Patches, backend: str) -> None:
    """Add the course's names to `needle.ops`, and the functions of ops to `needle`."""
    global _numpy_backend
    _numpy_backend = backend == "np"
    names = {alias: getattr(ops, name) for alias, name in ALIASES.items()}
    patches.add(ops, **names, TensorOp=TensorOp, TensorTupleOp=TensorTupleOp)
    patches.add(ops, Value=Value, Tensor=Tensor, TensorTuple=TensorTuple, NDArray=NDArray)
    for name in ("Stack", "Concat"):
        patches.set(getattr(ops, name), "__call__", _call_stack)
    for name in _LISTS:
        cls = getattr(ops, name)
        patches.set(cls, "__init__", _with(_as_tuple, cls.__init__))
    patches.set(ops.Conv, "__init__", _with_pairs(ops.Conv.__init__))
    for name in _SCALARS:
        function = _with_number(getattr(ops, name))
        patches.set(ops, name, function)
        patches.set(needle, name, function)
    functions = {name for names in ops._NAMES.values() for name in names if name[0].islower()}
    functions.discard("slice")  # shadows Python's built-in slice
    patches.add(needle, **{name: getattr(ops, name) for name in functions})
