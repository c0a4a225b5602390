"""An op is one class: its rules stand together, its fields are its attributes.

Rules are pure: nothing is stored on the op, so one op object may be used any number of times, by
any number of threads, and gradients of gradients are right. Ops import no TVM: what they need of
it is handed to `emit_te` and `emit`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .apply import apply
from .backend_ndarray import NDArray
from .backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, is_half, result_type
from .errors import ShapeError
from .op_types import ArrayGradients, Expr, Gradients, TeNamespace, TeTensor
from .samples import ErrorSample, Sample
from .spec import (
    Axes,
    Spec,
    broadcast_shapes,
    common_device,
    normalize_axes,
    normalize_axis,
    reduced_shape,
)
from .tensor import Tensor, TensorTuple, Value

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda x: x


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
    "unbroadcast",
]

REGISTRY: dict[str, type[Op]] = {}


class Op:
    """Base of all ops. A subclass, decorated with `register`, is a frozen dataclass.

    To be given by each op: `infer`, `compute`, `gradient` (unless nothing flows back), `emit_te`,
    `reference`, `samples` and `error_samples`, and a docstring.
    """

    name: ClassVar[str]
    # What `gradient` reads of values (shapes and dtypes are always there): a subset of
    # {"inputs", "output"}, or numbers of the parts it reads of an output that is a tuple. The rest
    # is released as soon as nobody else holds it.
    reads: ClassVar[frozenset[Any]] = frozenset()
    # Set where the kernels accept inputs that `infer` refuses: eager calls then infer first.
    # Elsewhere they compute at once, and `infer` is asked only to explain a kernel's error.
    infer_first: ClassVar[bool] = False
    # Only regroups values (make_tuple, tuple_get_item): a translator has nothing to compute.
    structural: ClassVar[bool] = False
    # Moves or repeats elements and computes none: a translator need not widen halves for it.
    moves: ClassVar[bool] = False
    # Number of inputs, read off `infer` by `register`; None for any.
    arity: ClassVar[int | None] = None
    samples: ClassVar[Sequence[Sample]] = ()
    error_samples: ClassVar[Sequence[ErrorSample]] = ()

    def __eq__(self, other: object) -> bool:
        """Same class and attributes; unlike 2 == 2.0, attributes of different types differ."""
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def _key(self) -> tuple[str, ...]:
        return tuple([repr(getattr(self, f.name)) for f in dataclasses.fields(self)])  # type: ignore

    def keep(self, output: Any) -> Any:
        """What is kept of the output for `gradient`."""
        if "output" in self.reads:
            return output
        if type(output) is tuple and any(i in self.reads for i in range(len(output))):
            return tuple([part if i in self.reads else None for i, part in enumerate(output)])
        return None

    def __call__(self, *inputs: Value) -> Any:
        """Applies the op to Tensors (or TensorTuples, where an input is a tuple)."""
        return apply(self, inputs)

    def infer(self, *specs: Any) -> Spec | tuple[Spec, ...]:
        """Spec(s) of the output from those of the inputs; a tuple for a tuple-valued op.

        Raises ShapeError or TypeError that names the op, the inputs and the rule they break.
        """
        raise NotImplementedError(f"{self.name}: infer is not defined")

    def index_ranges(self, *specs: Any) -> dict[int, tuple[int, int]]:
        """Of inputs that are indices, by their number: the least and the largest that is valid.

        Eager code raises IndexError for others. Compiled code is checked where it is called.
        """
        return {}

    def compute(self, *inputs: Any) -> NDArray | tuple[NDArray, ...]:
        """NDArrays in, an NDArray (or a tuple of them) out; never writes to its inputs."""
        raise NotImplementedError(f"{self.name}: compute is not defined")

    def gradient(self, out_grad: Any, node: Any) -> Tensor | Gradients | None:
        """Gradient(s) for the inputs of `node`, the output Tensor, written with Tensor ops.

        A Tensor of the input's shape and dtype for each input, None where nothing flows back.
        """
        raise NotImplementedError(f"{self.name}: gradient is not defined")

    def gradient_as_tuple(self, out_grad: Any, node: Any) -> Gradients:
        """`gradient`, always as a tuple with one entry per input."""
        out: Any = self.gradient(out_grad, node)
        if type(out) is tuple:
            return out
        if isinstance(out, list):
            return tuple(out)
        return (out,)

    # An op whose gradient has kernels of its own defines
    #     backward(self, out_grad, node)
    # the twin of `gradient` on NDArrays, for gradients that nobody differentiates: `node` is the
    # Node with `saved` and `output` as `reads` asks for, and out_grad of a tuple-valued op has None
    # for parts that nothing flowed back to. It returns a tuple with one entry per input, or
    # NotImplemented for a case it leaves to `gradient`. Where the gradient is recorded or traced,
    # `gradient` is used; a property test holds the two to the same results.
    backward: ClassVar[Callable[..., ArrayGradients] | None] = None

    def emit_te(self, k: TeNamespace, *inputs: Any) -> TeTensor | tuple[TeTensor, ...]:
        """te.Tensors in, a te.Tensor (or a tuple) out.

        `k` has TVM's te, topi and tirx, and `statements`, for loops that no expression says: it
        hands TVM's statement builder to a function and returns what te.extern takes.
        """
        raise NotImplementedError(f"{self.name}: emit_te is not defined")

    # An op that graph passes should recognise defines
    #     emit(self, r, *relax_exprs)
    # with r = tvm.relax, returning an expression, or None when this case has no equal operator.
    emit: ClassVar[Callable[..., Expr | None] | None] = None

    def reduction_length(self, *specs: Any) -> int:
        """How many terms each element of the output sums: what rounding errors grow with."""
        return 1

    # NumPy twin of `compute`: a ufunc, or a method.
    reference: ClassVar[Callable[..., Any]] = None  # type: ignore[assignment]


def in_float32(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a `compute` of several steps: of halves all steps are taken in float32, and what
    comes out is rounded once."""

    @functools.wraps(compute)
    def wrapped(self: Op, *inputs: Any) -> Any:
        dtypes = [x.dtype for x in inputs]
        if not any(map(is_half, dtypes)):
            return compute(self, *inputs)
        wide = [x.astype("float32") if is_half(x.dtype) else x for x in inputs]
        out, dtype = compute(self, *wide), functools.reduce(result_type, dtypes)
        if isinstance(out, tuple):
            return tuple(part.astype(dtype, copy=False) for part in out)
        return out.astype(dtype, copy=False)

    return wrapped


O = TypeVar("O", bound=type[Op])  # noqa: E741


@dataclass_transform(frozen_default=True)
def register(cls: O) -> O:
    """Makes `cls` a frozen dataclass and enters it in REGISTRY under its snake-case name.

    Raises ValueError when another class has the name.
    """
    if "name" not in vars(cls):
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    parameters = list(inspect.signature(cls.infer).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    cls.arity = None if variadic else len(parameters)
    made: O = dataclasses.dataclass(frozen=True, eq=False)(cls)  # type: ignore[assignment]
    other = REGISTRY.get(cls.name)
    # The same class again: a module was reloaded.
    if other is not None and (other.__module__, other.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise ValueError(
            f"op name {cls.name!r} is taken by {other.__module__}.{other.__qualname__}"
        )
    REGISTRY[cls.name] = made
    return made


class Elementwise(Op):
    """One input, an output of the same shape. `floating` ops compute integers in float64."""

    floating: ClassVar[bool] = False

    def infer(self, x: Spec) -> Spec:
        return Spec(x.shape, self.dtype_of(x.dtype), x.device)

    def dtype_of(self, dtype: str) -> str:
        return FLOAT_OF_INTEGER if self.floating and not is_floating(dtype) else dtype


class Binary(Op):
    """Two inputs with NumPy broadcasting and promotion."""

    def infer(self, a: Spec, b: Spec) -> Spec:
        device = common_device(self.name, a, b)
        shape = broadcast_shapes(self.name, a.shape, b.shape)
        return Spec(shape, self.dtype_of(a.dtype, b.dtype), device)

    def dtype_of(self, a: str, b: str) -> str:
        return result_type(a, b)


class Reduce(Op):
    """Axes (None: all) are reduced away, or to extent 1 with keepdims."""

    # Set by the fields of subclasses.
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
        """`reduced` with the reduced axes back as extents of 1, to broadcast against `like`."""
        if self.keepdims:
            return reduced
        axes = normalize_axes(self.name, self.axes, like.ndim)
        return reduced.reshape(reduced_shape(like.shape, axes, True))


class Movement(Op):
    """Elements are moved or repeated, none is computed: `shape_of` is all there is to infer."""

    moves = True

    def infer(self, x: Spec) -> Spec:
        return Spec(self.shape_of(x.shape), x.dtype, x.device)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        raise NotImplementedError(f"{self.name}: shape_of is not defined")


def unbroadcast(grad: Tensor, like: Tensor) -> Tensor:
    """`grad` summed over the axes along which `like` was broadcast, in like's dtype."""
    shape, target = grad.shape, like.shape
    if shape != target:
        lead = len(shape) - len(target)
        ones = [lead + i for i, n in enumerate(target) if n == 1 and shape[lead + i] != 1]
        axes = (*range(lead), *ones)
        if axes:
            grad = grad.sum(axes)
        if grad.shape != target:
            grad = grad.reshape(target)
    return grad if grad.dtype == like.dtype else grad.astype(like.dtype)
