"""The base of ops that take one step of an optimizer for one parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..autograd.engine import pulled_back
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor, TensorTuple, make_const
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..errors import ShapeError
from ..op import Op
from ..op.samples import Arg, ErrorSample, Sample, error
from ..op.signatures import Gradients, TeNamespace, TeTensor
from . import _te
from .arithmetic import maximum
from .elementwise import cast, sign, sqrt
from .reduce import summation


@dataclasses.dataclass(frozen=True)
class Functions:
    """The functions that a formula needs besides + - * and /, for one kind of numbers."""

    sqrt: Callable[[Any], Any]
    sign: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    power: Callable[[float, Any], Any]  # a number to the power of a float64
    above: Callable[[Any, float], Any]  # 1.0 if a float64 is above a number, else 0.0


NUMPY = Functions(np.sqrt, np.sign, np.maximum, lambda a, t: a**t, lambda t, a: float(t > a))
ARRAYS = dataclasses.replace(
    NUMPY, sqrt=NDArray.sqrt, sign=NDArray.sign, maximum=lambda a, b: a.maximum(b)
)
TENSORS = Functions(sqrt, sign, maximum, lambda a, t: a**t, lambda t, a: cast(t > a, "float64"))


def decayed(g: Any, p: Any, weight_decay: float) -> Any:
    """Return g + weight_decay * p, or g itself if there is no weight decay: an infinite p then does
    not change g, as in PyTorch."""
    return g + p * weight_decay if weight_decay else g


def coupled(op: Any, p: Any, g: Any, lr: Any) -> tuple[Any, Any]:
    """Return parameter and gradient after weight decay, which changes the parameter itself if
    `op.decoupled`, else the gradient."""
    if not op.decoupled:
        return p, decayed(g, p, op.weight_decay)
    return (p - p * (lr * op.weight_decay) if op.weight_decay else p), g


class Update(Op):
    """One step of an optimizer for one parameter: (parameter, gradient, *state, lr, step) -> (new
    parameter, *new state, step + 1).

    A state tensor has the parameter's shape, or () if it is one of `numbers`. Its dtype is the
    parameter's, or float32 for a parameter in half precision; the gradient has the parameter's
    shape and dtype. lr is a float, and `step` is the int64 number of steps before this one; both
    have shape (). `update` takes the same step in place.
    """

    infer_first = True
    reads = frozenset({"inputs"})
    numbers: ClassVar[frozenset[str]] = frozenset()  # states that are one number for all elements

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state tensors."""
        raise NotImplementedError(f"{self.name}: states is not defined")

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        """Return the numbers that the formula reads, computed from float64 numbers."""
        return (lr,)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return (new parameter, new state), elementwise."""
        raise NotImplementedError(f"{self.name}: formula is not defined")

    def update(
        self, param: NDArray, grad: NDArray, state: Mapping[str, NDArray], lr: float, step: int
    ) -> None:
        """Take the step in place. The state has the dtype in which the parameter's dtype is
        computed."""
        dtype = compute_dtype(param.dtype)
        p, g = param.astype(dtype, copy=False), grad.astype(dtype, copy=False)
        new, kept = self.formula(ARRAYS, p, g, state, *map(float, self.scalars(lr, step, NUMPY)))
        for name, value in kept.items():
            state[name][...] = value
        param[...] = new.astype(param.dtype, copy=False)

    def infer(self, *specs: Any) -> tuple[Spec, ...]:
        names = self.states
        if len(specs) != len(names) + 4:
            raise TypeError(
                f"{self.name}: takes {len(names) + 4} inputs (parameter, gradient, "
                f"{''.join(f'{n}, ' for n in names)}lr, step), {len(specs)} given"
            )
        param, grad, *state, lr, step = specs
        if not is_floating(param.dtype):
            raise TypeError(f"{self.name}: the parameter is {param}, not floating point")
        allowed = {param.dtype, compute_dtype(param.dtype)}
        for what, spec in zip(("gradient", *names), (grad, *state), strict=True):
            if spec.shape != (shape := () if what in self.numbers else param.shape):
                of = "it should have" if what in self.numbers else "the parameter has"
                raise ShapeError(f"{self.name}: {what} has shape {spec.shape}, {of} {shape}")
            if spec.dtype not in ({param.dtype} if spec is grad else allowed):
                raise TypeError(f"{self.name}: {what} is {spec}, but the parameter is {param}")
        if lr.shape != () or not is_floating(lr.dtype) or step.shape != () or step.dtype != "int64":
            raise TypeError(
                f"{self.name}: lr is {lr} and step {step}; they must be a float [] and an int64 []"
            )
        common_device(self.name, *specs)
        return (param, *state, step)

    def reference(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        param, grad, *state, lr, step = inputs
        numbers = self.scalars(np.float64(lr), np.float64(step), NUMPY)
        numbers = tuple(param.dtype.type(number) for number in numbers)
        old = dict(zip(self.states, state, strict=True))
        new, kept = self.formula(NUMPY, param, grad, old, *numbers)
        return (new, *(kept[name] for name in self.states), step + 1)

    def compute(self, *inputs: NDArray) -> tuple[NDArray, ...]:
        param, grad, *state, lr, step = inputs
        new, wide = param.copy(), compute_dtype(param.dtype)
        kept = [x.astype(wide).copy() if x.dtype == wide else x.astype(wide) for x in state]
        old = dict(zip(self.states, kept, strict=True))
        self.update(new, grad, old, float(lr.item()), int(step.item()))
        after = [x.astype(y.dtype, copy=False) for x, y in zip(kept, state, strict=True)]
        return (new, *after, step + 1)

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Gradients:
        def weighted(*inputs: Tensor) -> Tensor:
            param, grad, *state, lr, step = inputs
            wide = compute_dtype(param.dtype)
            numbers = self.scalars(cast(lr, "float64"), cast(step, "float64"), TENSORS)
            numbers = tuple(cast(x, wide) if isinstance(x, Tensor) else x for x in numbers)
            p, g, *old = (cast(x, wide) for x in (param, grad, *state))
            old_state = dict(zip(self.states, old, strict=True))
            new, kept = self.formula(TENSORS, p, g, old_state, *numbers)
            parts = (new, *(kept[name] for name in self.states))
            total = summation(parts[0] * cast(out_grad[0], wide))
            for i, part in enumerate(parts[1:], 1):
                total = total + summation(part * cast(out_grad[i], wide))
            return total

        like = node.inputs[0]
        one = make_const(np.ones((), "float32"), like.device)
        return pulled_back(weighted, node.inputs, cast(one, compute_dtype(like.dtype)))

    def emit_te(self, k: TeNamespace, *inputs: TeTensor) -> tuple[TeTensor, ...]:
        param, grad, *state, lr, step = inputs
        dtype = _te.dtype_of(param)
        f = Functions(
            k.tirx.sqrt,
            lambda v: _sign(k, v, dtype),
            lambda a, b: _te.greater_or_nan(k, a, b, dtype),
            lambda a, t: k.tirx.pow(k.tirx.const(a, "float64"), t),
            lambda t, a: k.tirx.Select(
                t > k.tirx.const(a, "float64"),
                k.tirx.const(1, "float64"),
                k.tirx.const(0, "float64"),
            ),
        )
        count = len(self.scalars(1.0, 1, NUMPY))

        def number(i: int) -> TeTensor:
            def value() -> Any:
                rate, done = (k.tirx.Cast("float64", x()) for x in (lr, step))
                return k.tirx.Cast(dtype, self.scalars(rate, done, f)[i])

            return k.te.compute((), value, name="scalar")

        numbers = [number(i) for i in range(count)]

        def part(name: str) -> TeTensor:
            is_number = name in self.numbers

            def value(*at: Any) -> Any:
                # A number does not depend on the element, so any element will do.
                at = (k.tirx.const(0, "int32"),) * len(param.shape) if is_number else at
                old = {
                    n: x() if n in self.numbers else x[at]
                    for n, x in zip(self.states, state, strict=True)
                }
                scalars = [x() for x in numbers]
                new, kept = self.formula(f, param[at], grad[at], old, *scalars)
                return kept[name] if name else new

            return k.te.compute(() if is_number else param.shape, value, name=self.name)

        after = k.te.compute((), lambda: step() + k.tirx.const(1, "int64"), name="step")
        return (*(part(name) for name in ("", *self.states)), after)


def _sign(k: TeNamespace, v: Any, dtype: str) -> Any:
    zero, one, minus = (k.tirx.const(c, dtype) for c in (0, 1, -1))
    return k.tirx.Select(v > zero, one, k.tirx.Select(v < zero, minus, v))


LR, STEP = Arg((), 0.1, 0.5, dtype="float64", special=False), Arg((), 0, 9, "int64", special=False)


def samples(
    states: Sequence[str],
    positive: Sequence[str] = ("v", "v_max", "largest", "deltas"),
    numbers: Sequence[str] = (),
    **attributes: Any,
) -> tuple[Sample, ...]:
    """Return samples of a step with these state tensors. The tensors in `positive` are above the
    squares of the others; `numbers` have shape () and are below 1."""

    def kept(name: str, shape: tuple[int, ...]) -> Arg:
        if name in numbers:
            return Arg((), 0.3, 0.7, special=False)
        return Arg(shape, *((0.5, 2.0) if name in positive else (-0.7, 0.7)), special=False)

    return tuple(
        Sample(
            (
                Arg(shape, special=False),
                Arg(shape, special=False),
                *(kept(name, shape) for name in states),
                LR,
                STEP,
            ),
            attributes,
        )
        for shape in ((), (3, 4), (0, 2))
    )


def error_samples(states: int, numbers: int = 0) -> tuple[ErrorSample, ...]:
    """Return error samples of a step whose state is `states` tensors and then `numbers` numbers."""
    like = [(2, 3)] * states + [()] * numbers
    whole = Arg((2, 3), dtype="int32")
    return (
        error(TypeError, "inputs", (2, 3), LR, STEP),
        error(ShapeError, r"\(3,\).*\(2, 3\)", (2, 3), (3,), *like, LR, STEP),
        error(TypeError, "int32", *[whole] * (2 + states + numbers), LR, STEP),
        error(TypeError, "float64", (2, 3), Arg((2, 3), dtype="float64"), *like, LR, STEP),
        error(TypeError, "int64", (2, 3), (2, 3), *like, LR, LR),
    )
