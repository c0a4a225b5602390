"""Op, the base class of all ops. An op is one class: its methods are its rules, its fields its
attributes.

The rules are pure. They store nothing on the op, so one op object may be used any number of times,
by any number of threads, and the gradients of gradients are correct. Ops do not import TVM:
`emit_te` and `emit` receive TVM's modules as an argument.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..autograd.dispatch import apply
from ..autograd.shapes import (
    Spec,
    broadcast_shapes,
    common_device,
    is_one,
    normalize_axes,
    reduced_shape,
)
from ..autograd.tensor import Tensor, Value
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, is_half, result_type
from ..sizes.extents import same
from .samples import ErrorSample, Sample
from .signatures import ArrayGradients, Expr, Gradients, TeNamespace, TeTensor

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda x: x


REGISTRY: dict[str, type[Op]] = {}


class Op:
    """Base of all ops. A subclass, decorated with `register`, is a frozen dataclass.

    Each op defines `infer`, `compute`, `gradient`, `emit_te`, `reference`, `samples`,
    `error_samples` and a docstring.
    """

    name: ClassVar[str]
    # The values that `gradient` reads besides shapes and dtypes, which are always known: a subset
    # of {"inputs", "output"}, or the indices of parts if the output is a tuple. Every other value
    # is freed as soon as nothing refers to it.
    reads: ClassVar[frozenset[Any]] = frozenset()
    # True if the kernels accept inputs that `infer` rejects: eager calls then infer first. Other
    # ops compute at once, and call `infer` only to explain a kernel's error.
    infer_first: ClassVar[bool] = False
    # True if the result may share memory with an input, so that a write to one changes the other.
    may_share: ClassVar[bool] = False
    # True if the op only regroups values and computes nothing (make_tuple, tuple_get_item).
    structural: ClassVar[bool] = False
    # True if the op only moves or repeats elements: half-precision inputs need not be widened.
    moves: ClassVar[bool] = False
    # True if the result depends on the bits of its operands, so that a reference must keep their
    # dtype.
    reads_bits: ClassVar[bool] = False
    # True if `gradient` compares inputs with the output: both must come from the same computation.
    compares: ClassVar[bool] = False
    # True if `gradient` of a tuple-valued op takes None for parts that no gradient reaches.
    partial_gradients: ClassVar[bool] = False
    # True if compiled code never fuses its kernel with others.
    opaque: ClassVar[bool] = False
    # True if `emit_te` writes a kernel's loops in their final form.
    scheduled: ClassVar[bool] = False
    # True if the op runs bodies, for which compiled code has kernels (needle_tvm.frontend.loops);
    # such an op has no `emit_te`.
    has_bodies: ClassVar[bool] = False
    # False if `gradient` always raises an UnsupportedError.
    has_gradient: ClassVar[bool] = True
    # Number of inputs, which `register` reads from the signature of `infer`; None for any.
    arity: ClassVar[int | None] = None
    samples: ClassVar[Sequence[Sample]] = ()
    error_samples: ClassVar[Sequence[ErrorSample]] = ()

    def __eq__(self, other: object) -> bool:
        """Return whether both ops have the same class and equal attributes. Attributes of different
        types (2 and 2.0) differ."""
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def _key(self) -> tuple[str, ...]:
        return tuple([repr(getattr(self, f.name)) for f in dataclasses.fields(self)])  # type: ignore

    def keep(self, output: Any) -> Any:
        """Return the part of the output to save for `gradient`."""
        if "output" in self.reads:
            return output
        if type(output) is tuple and any(i in self.reads for i in range(len(output))):
            return tuple([part if i in self.reads else None for i, part in enumerate(output)])
        return None

    def __call__(self, *inputs: Value) -> Any:
        """Apply the op to Tensors (or TensorTuples, if an input is a tuple)."""
        return apply(self, inputs)

    def infer(self, *specs: Any) -> Spec | tuple[Spec, ...]:
        """Return the Spec of the output for inputs with these Specs; a tuple of Specs if the output
        is a tuple.

        Raises a ShapeError or TypeError that names the op, the inputs and the rule they break.
        """
        raise NotImplementedError(f"{self.name}: infer is not defined")

    def decided(self, *specs: Any) -> Op:
        """Return an equivalent op for inputs whose extents depend on dims. `emit_te` cannot branch
        on such an extent, so the returned op's attributes hold no -1 in a shape and no slice end
        that must be clipped. Raises the errors of `infer`."""
        return self

    def index_ranges(self, *specs: Any) -> dict[int, tuple[int, int]]:
        """Return the least and the largest valid index of each input that holds indices, by the
        input's position.

        Eager calls raise IndexError for other indices. Compiled functions check the inputs of a
        call.
        """
        return {}

    def compute(self, *inputs: Any) -> NDArray | tuple[NDArray, ...]:
        """Return the output NDArray (or a tuple of them) from the input NDArrays. It never writes
        to an input."""
        raise NotImplementedError(f"{self.name}: compute is not defined")

    def gradient(self, out_grad: Any, node: Any) -> Tensor | Gradients | None:
        """Return the gradients for the inputs of `node`, the output Tensor, computed with Tensor
        ops.

        The gradient for an input is a Tensor of its shape and dtype, or None if no gradient flows
        back.
        """
        raise NotImplementedError(f"{self.name}: gradient is not defined")

    def gradient_as_tuple(self, out_grad: Any, node: Any) -> Gradients:
        """Return `gradient` as a tuple with one entry per input."""
        out: Any = self.gradient(out_grad, node)
        if type(out) is tuple:
            return out
        if isinstance(out, list):
            return tuple(out)
        return (out,)

    # An op with kernels for its gradient defines
    #     backward(self, out_grad, node)
    # the twin of `gradient` on NDArrays, for gradients that are not differentiated again. `node` is
    # the Node with `saved` and `output` as `reads` requests. For a tuple-valued op, the out_grad is
    # None for parts without a gradient. `backward` returns a tuple with one entry per input, or
    # NotImplemented for a case that it leaves to `gradient`. If the gradient is recorded or traced,
    # `gradient` is used; a property test checks that both give the same results.
    backward: ClassVar[Callable[..., ArrayGradients] | None] = None

    def emit_te(self, k: TeNamespace, *inputs: Any) -> TeTensor | tuple[TeTensor, ...]:
        """Return the output te.Tensor (or a tuple of them) from input te.Tensors.

        `k` has TVM's te, topi and tirx, and `statements` for loops that are not expressions: it
        passes TVM's statement builder to a function and returns a statement for te.extern.
        """
        raise NotImplementedError(f"{self.name}: emit_te is not defined")

    # An op that graph passes should recognise defines
    #     emit(self, r, *relax_exprs)
    # with r = tvm.relax. It returns an expression, or None if Relax has no equal operator.
    emit: ClassVar[Callable[..., Expr | None] | None] = None

    # needle.onnx.emit exports needle's own ops to ONNX. To be exported, any other op defines
    #     emit_onnx(self, site, *values)
    # with the `Site` and `Value`s of that package. It returns a Value, or a tuple of them.
    emit_onnx: ClassVar[Callable[..., Any] | None] = None

    def reduction_length(self, *specs: Any) -> int:
        """Return the number of terms that an output element sums; rounding errors grow with it."""
        return 1

    # NumPy twin of `compute`: a ufunc, or a method.
    reference: ClassVar[Callable[..., Any]] = None  # type: ignore[assignment]


def in_float32(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `compute` of several steps, so that it computes half-precision inputs in float32
    throughout and rounds the result once."""

    @functools.wraps(compute)
    def wrapped(self: Op, *inputs: Any) -> Any:
        if len(inputs) == 1 and not is_half(inputs[0].view.dtype):
            return compute(self, *inputs)
        dtypes = [x.dtype for x in inputs]
        if not any(map(is_half, dtypes)):
            return compute(self, *inputs)
        wide = [x.astype("float32") if is_half(x.dtype) else x for x in inputs]
        out, dtype = compute(self, *wide), functools.reduce(result_type, dtypes)
        if isinstance(out, tuple):
            return tuple(part.astype(dtype, copy=False) for part in out)
        return out.astype(dtype, copy=False)

    return wrapped


C = TypeVar("C", bound=Op)
O = TypeVar("O", bound=type[Op])  # noqa: E741


@dataclass_transform(frozen_default=True)
def register(cls: O) -> O:
    """Make `cls` a frozen dataclass and enter it in REGISTRY under its snake-case name.

    Raises ValueError if another class has the name.
    """
    if "name" not in vars(cls):
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    parameters = list(inspect.signature(cls.infer).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    cls.arity = None if variadic else len(parameters)
    op_class: O = dataclasses.dataclass(frozen=True, eq=False)(cls)  # type: ignore[assignment]
    other = REGISTRY.get(cls.name)
    # The same class again means that a module was reloaded.
    if other is not None and (other.__module__, other.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise ValueError(
            f"op name {cls.name!r} is taken by {other.__module__}.{other.__qualname__}"
        )
    REGISTRY[cls.name] = op_class
    return op_class


def remembered(cls: Callable[..., C]) -> Callable[..., C]:
    """Return a constructor of the op that returns the same object for the same attributes. Ops hold
    no state, and constructing one takes a large part of a small call's time."""
    return functools.lru_cache(maxsize=256, typed=True)(cls)


class Elementwise(Op):
    """An op with one input and an output of the same shape. If `floating` is True, integers give
    float64."""

    floating: ClassVar[bool] = False

    def infer(self, x: Spec) -> Spec:
        return Spec(x.shape, self.dtype_of(x.dtype), x.device)

    def dtype_of(self, dtype: str) -> str:
        return FLOAT_OF_INTEGER if self.floating and not is_floating(dtype) else dtype


class Binary(Op):
    """An op with two inputs, with NumPy's broadcasting and promotion."""

    def infer(self, a: Spec, b: Spec) -> Spec:
        device = common_device(self.name, a, b)
        shape = broadcast_shapes(self.name, a.shape, b.shape)
        return Spec(shape, self.dtype_of(a.dtype, b.dtype), device)

    def dtype_of(self, a: str, b: str) -> str:
        return result_type(a, b)


class Reduce(Op):
    """An op that removes axes (None: all), or reduces them to extent 1 with `keepdims`."""

    # Fields of subclasses.
    axes: int | tuple[int, ...] | None
    keepdims: bool

    def infer(self, x: Spec) -> Spec:
        axes = normalize_axes(self.name, self.axes, x.ndim)
        return Spec(reduced_shape(x.shape, axes, self.keepdims), self.dtype_of(x.dtype), x.device)

    def dtype_of(self, dtype: str) -> str:
        return dtype

    def reduction_length(self, x: Spec) -> int:
        return prod(x.shape[a] for a in normalize_axes(self.name, self.axes, x.ndim))

    def expand(self, reduced: Tensor, like: Tensor) -> Tensor:
        """Return `reduced` with the reduced axes restored as extents of 1, to broadcast against
        `like`."""
        if self.keepdims:
            return reduced
        axes = normalize_axes(self.name, self.axes, like.ndim)
        return reduced.reshape(reduced_shape(like.shape, axes, True))


class Movement(Op):
    """An op that only moves or repeats elements. Subclasses define `shape_of`."""

    moves = True

    def infer(self, x: Spec) -> Spec:
        return Spec(self.shape_of(x.shape), x.dtype, x.device)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        raise NotImplementedError(f"{self.name}: shape_of is not defined")


def unbroadcast(grad: Tensor, like: Tensor) -> Tensor:
    """Return `grad` summed over the axes along which `like` was broadcast, in like's dtype."""
    shape, target = grad.shape, like.shape
    if not same(shape, target):
        lead = len(shape) - len(target)
        ones = [lead + i for i, n in enumerate(target) if is_one(n) and not is_one(shape[lead + i])]
        axes = (*range(lead), *ones)
        if axes:
            grad = grad.sum(axes)
        if not same(grad.shape, target):
            grad = grad.reshape(target)
    return grad if grad.dtype == like.dtype else grad.astype(like.dtype)
