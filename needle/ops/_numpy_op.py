"""Ops that NumPy computes. They work in eager code only, with gradients of any order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..autograd.shapes import Shape, Spec
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, array
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, compute_dtype, is_floating, result_type
from ..common.state import state
from ..common.user_code import user_line
from ..errors import LinAlgError, ShapeError, TraceError
from ..op import Op
from . import cast

Array = np.ndarray[Any, Any]


class NumpyOp(Op):
    """Base of ops whose method `values` maps float32 or float64 NumPy arrays to such arrays.

    A subclass is a frozen dataclass with `name`, `arity`, `values`, `gradient`, `check` and the
    attributes that these read. It is in no registry, because it has no compiled form: a trace
    rejects it.
    """

    infer_first = True  # so that an error about shapes is ours, not NumPy's
    # How the error message describes a matrix for which NumPy raises a LinAlgError.
    fails: ClassVar[str] = ""

    def check(self, *shapes: Any) -> None:
        """Raise ShapeError for shapes that `values` does not accept."""

    def infer(self, *specs: Spec) -> Any:
        refuse_trace(self.name)
        self.check(*[spec.shape for spec in specs])

    def compute(self, *inputs: NDArray) -> Any:
        arrays = [x.numpy() for x in inputs]
        try:
            with np.errstate(all="ignore"):
                out = self.values(*arrays)
        except np.linalg.LinAlgError as error:
            raise LinAlgError(f"{self.name}: {self.failed(*arrays)} ({error})") from None
        if isinstance(out, tuple):
            return tuple([array(np.asarray(part), device=inputs[0].device) for part in out])
        return array(np.asarray(out), device=inputs[0].device)

    def values(self, *arrays: Any) -> Any:
        """Return the result, or a tuple of results, from the inputs' values."""
        raise NotImplementedError(f"{self.name}: values is not defined")

    def failed(self, x: Array, *others: Array) -> str:
        """Return the part of the error message that says which matrix of `x` fails, and why."""
        for index in np.ndindex(x.shape[:-2]):
            try:
                self.values(
                    x[index], *[other.reshape(-1, *other.shape[-2:])[0] for other in others]
                )
            except np.linalg.LinAlgError:
                which = f"matrix {index} of the input" if index else "the matrix"
                return f"{which} of shape {x.shape} {self.fails}"
        return f"a matrix of shape {x.shape} {self.fails}"


def refuse_trace(name: str) -> None:
    """Raise TraceError while tracing."""
    if state.trace is not None:
        raise TraceError(
            f"{name}: tracing: {state.trace.here} calls it; NumPy computes it, so it runs only in "
            f"eager code and has no compiled form{user_line()}"
        )


def check_square(name: str, shape: Shape) -> None:
    """Raise ShapeError unless the last two extents are equal."""
    check_matrices(name, shape)
    if shape[-2] != shape[-1]:
        raise ShapeError(
            f"{name}: matrices of shape {shape} are not square: the last two extents are "
            f"{shape[-2]} and {shape[-1]}"
        )


def check_matrices(name: str, shape: Shape) -> None:
    """Raise ShapeError unless there are two axes."""
    if len(shape) < 2:
        raise ShapeError(f"{name}: shape {shape} has no matrices: it has fewer than two axes")


def as_floats(name: str, *inputs: Any) -> tuple[list[Tensor], str]:
    """Return the inputs in the dtype of the computation, and the dtype of the result: the inputs'
    common dtype, or float64 for integers. Half precision is computed in float32. Raises TypeError
    for anything but Tensors, TraceError while tracing."""
    refuse_trace(name)
    for number, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: input {number} is a {type(x).__name__}, not a Tensor")
    dtype = functools.reduce(result_type, [x.dtype for x in inputs])
    dtype = dtype if is_floating(dtype) else FLOAT_OF_INTEGER
    wide = compute_dtype(dtype)
    return [in_dtype(x, wide) for x in inputs], dtype


def in_dtype(x: Tensor, dtype: str) -> Tensor:
    """Return `x` in `dtype`, or `x` itself if it has that dtype."""
    return x if x.dtype == dtype else cast(x, dtype)


def unary(name: str, op: Callable[[Tensor], Tensor], a: Any) -> Tensor:
    """Return the result of an op of one float input, for an input of any dtype."""
    (x,), dtype = as_floats(name, a)
    return in_dtype(op(x), dtype)
