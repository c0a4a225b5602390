"""Checks for needle's ops and your own. `check_op(MyOp)` raises OpCheckError, an AssertionError
that names the op, the sample and the broken rule."""

from __future__ import annotations

import inspect
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import DTYPES, Device, cpu, cpu_numpy
from ..backend_ndarray.dtypes import dtype_name, finfo, is_floating, is_half
from ..common.state import no_grad
from ..op import Op
from ..op.samples import Arg, ErrorSample, Sample
from . import examples
from .examples import Array

Compiled = Callable[[Op, list[Any]], Any]

# The largest error in ulps that a kernel or a compiled elementary function may have; the worst
# function is TVM's tanh with 73. The error of a sum of n terms grows like sqrt(n) (Higham,
# "Accuracy and Stability of Numerical Algorithms", section 4.2).
_ULPS = 96
# The error of central differences in float64 with this step is about 1e-10; gradients must agree
# within the tolerance below.
_STEP = 1e-6
_GRADIENT_TOLERANCE = 1e-6


class OpCheckError(AssertionError):
    """An op breaks one of the rules that `check_op` checks."""


def tolerance(dtype: str, reduction_length: int = 1) -> float:
    """Return the allowed difference, relative to the largest magnitude of the result. It is 0 for
    integers and bools, near 1e-5 for float32 and near 2e-14 for float64, and grows with
    `reduction_length`, the number of summed terms. Half precision is computed in float32; its
    tolerance adds the rounding of both results and of a scalar to half precision."""
    if not is_floating(dtype):
        return 0.0
    if is_half(dtype):
        return 2 * float(finfo(dtype).eps) + tolerance("float32", reduction_length)
    return _ULPS * float(np.finfo(dtype).eps) * math.sqrt(max(1, reduction_length))


def assert_close(
    actual: Any,
    expected: Any,
    reduction_length: int = 1,
    scale: float = 0.0,
    rtol: float | None = None,
    what: str = "result",
) -> None:
    """Raise AssertionError unless shapes and dtypes are equal, NaN and infinities are at the same
    positions, and other elements agree within `rtol` (None: `tolerance`) times the larger of
    `scale` and the largest expected magnitude."""
    wrong = difference(actual, expected, reduction_length, scale, rtol)
    if wrong is not None:
        raise AssertionError(f"{what}: {wrong}")


def difference(
    actual: Any,
    expected: Any,
    reduction_length: int = 1,
    scale: float = 0.0,
    rtol: float | None = None,
) -> str | None:
    """Return the message with which `assert_close` rejects an array, or None if it accepts it."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    name = expected.dtype.name
    actual, expected = examples.widened(actual), examples.widened(expected)
    allowed, wrong = 0.0, np.asarray(actual != expected)
    if expected.dtype.kind in "fc":
        largest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0))
        limit = tolerance(name, reduction_length) if rtol is None else rtol
        allowed = limit * max(largest, scale)
        wide = np.result_type(expected.dtype, "float64")
        with np.errstate(all="ignore"):
            near = np.abs(np.subtract(actual, expected, dtype=wide)) <= allowed
        wrong &= ~(near | (np.isnan(actual) & np.isnan(expected)))
    if not np.any(wrong):
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{np.count_nonzero(wrong)} of {wrong.size} elements differ; at {list(at)} "
        f"{actual[at].item()}, expected {expected[at].item()} within {allowed:.3g}"
    )


def check_op(
    op_class: type[Op],
    *,
    devices: Sequence[Device] | None = None,
    dtypes: Sequence[str] = DTYPES,
    compiled: Compiled | Mapping[str, Compiled] | None = None,
) -> None:
    """Check every rule of an op on its samples.

    On each device and dtype, the result must equal the NumPy twin's (also for strided inputs, with
    NaN, infinities and -0, and with the extremes of integer dtypes, which wrap around), shape and
    dtype must match `infer`, and inputs must stay unchanged. First and second order gradients must
    equal central differences in float64. Error samples must raise, both eagerly and from `infer`.
    If `infer` refuses a dtype, the op must refuse it too.

    `compiled(op, inputs) -> output` (NumPy arrays, or tuples of arrays for a tuple value), or a
    dict of several such functions by name, must also agree with the NumPy twin. A function returns
    None if it does not apply. Without `compiled` nothing is compiled. `devices` None means the
    usable CPU devices.

    Raises OpCheckError, which names the op, the sample and the rule; TypeError or ValueError for
    arguments that are not an op, devices or dtypes.
    """
    devices, dtypes = checked_arguments(op_class, devices, dtypes)
    if not devices and not compiled:
        raise ValueError("check_op: devices=[] is empty: nothing would be checked")
    _check_declared(op_class)
    hooks = {"compiled": compiled} if callable(compiled) else dict(compiled or {})
    for number, sample in enumerate(op_class.samples):
        op = op_class(**sample.attributes)
        where = f"{op!r} on sample {number}"
        accepted = 0
        for dtype in dtypes:
            rng = np.random.default_rng(zlib.crc32(f"{op.name} {number} {dtype}".encode()))
            arrays = [examples.draw(arg, dtype, rng) for arg in sample.inputs]
            case = _Case(op, f"{where} ({dtype})", devices, hooks)
            accepted += case.check(arrays, sample)
        if not accepted:
            raise OpCheckError(f"{where}: infer refuses every dtype")
        if not sample.gradient:
            continue
        rng = np.random.default_rng(zlib.crc32(f"{op.name} {number}".encode()))
        arrays = [examples.draw(arg, "float64", rng) for arg in sample.inputs]
        for device in devices:
            _check_gradients(op, arrays, device, f"{where} on {device}")
    for number, bad in enumerate(op_class.error_samples):
        for device in devices:
            _check_error(op_class, bad, device, f"{op_class.name}: error sample {number}")


def checked_arguments(
    op_class: Any, devices: Any, dtypes: Any
) -> tuple[Sequence[Device], Sequence[str]]:
    """Return the devices and dtype names from arguments of `check_op`.

    Raises TypeError or ValueError if they are invalid, or if `op_class` is not an op.
    """
    if not (isinstance(op_class, type) and issubclass(op_class, Op) and hasattr(op_class, "name")):
        raise TypeError(f"check_op: {op_class!r} is not a class of ops with @needle.op.register")
    if devices is None:
        devices = [d for d in (cpu(), cpu_numpy()) if d.enabled()]
    for what, values in (("devices", devices), ("dtypes", dtypes)):
        if isinstance(values, str) or not isinstance(values, Collection):
            raise TypeError(f"check_op: {what}={values!r} is not a list")
    if not dtypes:
        raise ValueError(f"check_op: dtypes={dtypes!r} is empty: nothing would be checked")
    for device in devices:
        if not isinstance(device, Device):
            raise TypeError(f"check_op: device {device!r} is not a Device such as needle.cpu()")
    try:
        return list(devices), [dtype_name(dtype) for dtype in dtypes]
    except TypeError as error:
        raise TypeError(f"check_op: {error}") from None


def _check_declared(op_class: type[Op]) -> None:
    name = op_class.name
    if not (op_class.__doc__ or "").strip() or op_class.__doc__ == Op.__doc__:
        raise OpCheckError(f"{name}: has no docstring")
    if (op_class.__doc__ or "").startswith(f"{op_class.__name__}("):
        raise OpCheckError(f"{name}: has no docstring (only the text that dataclass generates)")
    for rule in ("samples", "error_samples"):
        if not getattr(op_class, rule):
            raise OpCheckError(f"{name}: has no {rule}")
    rules = ("infer", "compute", "gradient", "reference")
    for rule in rules if op_class.has_bodies else (*rules, "emit_te"):
        if inspect.getattr_static(op_class, rule) is inspect.getattr_static(Op, rule):
            raise OpCheckError(f"{name}: defines no {rule}")


class _Case:
    """Forward checks of one op and dtype on every device and through every compiler."""

    def __init__(
        self, op: Op, where: str, devices: Sequence[Device], hooks: Mapping[str, Compiled]
    ) -> None:
        self.op, self.where, self.devices, self.hooks = op, where, devices, hooks

    def check(self, arrays: list[Any], sample: Sample) -> bool:
        """Run the checks. Return False if `infer` refuses the dtype, True if the checks pass."""
        try:
            inferred = self.op.infer(*[examples.spec(a, None) for a in arrays])
        except (TypeError, ValueError, OverflowError) as refusal:
            for device in self.devices:
                self._expect_refusal(arrays, device, type(refusal))
            return False
        self._forward(arrays, inferred, "")
        self._forward([examples.strided(a) for a in arrays], inferred, "strided ")
        if examples.special(sample) and any(examples.has_float(a) for a in arrays):
            for pattern in range(3):
                noted = [examples.with_specials(a, pattern) for a in arrays]
                self._forward(noted, inferred, "NaN/Inf ")
        for pattern in range(5):
            extreme = [
                examples.with_extremes(a, arg, pattern * number)
                for number, (a, arg) in enumerate(zip(arrays, sample.inputs, strict=True), 1)
            ]
            if any(new is not old for new, old in zip(extreme, arrays, strict=True)):
                self._forward(extreme, inferred, "extreme integers: ")
        return True

    def _forward(self, arrays: list[Any], inferred: Any, kind: str) -> None:
        with np.errstate(all="ignore"):
            # For half precision, the twin's float32 result is rounded once.
            expected = self.op.reference(*[examples.widened(examples.copied(a)) for a in arrays])
            expected = examples.narrowed(expected, inferred)
        results: list[tuple[str, Any]] = []
        for device in self.devices:
            tensors = [examples.tensor(a, device, False) for a in arrays]
            before = [t.spec for t in tensors], [examples.numpy(t) for t in tensors]
            with no_grad():
                out = self.op(*tensors)
            kept = zip(
                examples.flat(before[1]),
                examples.flat([examples.numpy(t) for t in tensors]),
                strict=True,
            )
            if [t.spec for t in tensors] != before[0] or any(
                difference(a, b, rtol=0.0) for a, b in kept
            ):
                raise OpCheckError(f"{self.where}: compute changed its inputs on {device}")
            results.append((str(device), examples.numpy(out)))
        for name, out in results:
            self._compare(out, expected, inferred, f"{self.where}: {kind}forward on {name}", arrays)
        for name, hook in self.hooks.items():
            out = hook(self.op, [examples.copied(a) for a in arrays])
            if out is not None:
                out = tuple(out) if isinstance(out, list) else out
                what = f"{self.where}: {kind}forward on {name}"
                self._compare(out, expected, inferred, what, arrays)

    def _compare(
        self, out: Any, expected: Any, inferred: Any, what: str, arrays: list[Any]
    ) -> None:
        if isinstance(inferred, Spec):
            out, expected, inferred = (out,), (expected,), (inferred,)
        if not len(out) == len(expected) == len(inferred):
            raise OpCheckError(
                f"{what}: {len(out)} outputs, twin {len(expected)}, infer {len(inferred)}"
            )
        length = self.op.reduction_length(*[examples.spec(a, None) for a in arrays])
        scale = min(1.0, max((examples.largest(a) for a in arrays), default=0.0))
        if length > 1:  # a float sum of integers may cancel: its error is relative to the terms
            scale = max([scale, *(examples.largest(a, "i") for a in arrays)])
        for got, want, spec in zip(out, expected, inferred, strict=True):
            if (got.shape, got.dtype.name) != (spec.shape, spec.dtype):
                raise OpCheckError(f"{what}: got {got.dtype}{list(got.shape)}, infer says {spec}")
            wrong = difference(got, want, length, scale)
            if wrong is not None:
                raise OpCheckError(f"{what}: {wrong}")

    def _expect_refusal(self, arrays: list[Any], device: Device, kind: type[Exception]) -> None:
        try:
            self.op(*[examples.tensor(a, device, False) for a in arrays])
        except kind:
            return
        raise OpCheckError(f"{self.where}: infer refuses the dtype, but {device} computes it")


def _check_gradients(op: Op, arrays: list[Any], device: Device, where: str) -> None:
    """Check first and second order gradients against central differences, in float64."""
    try:
        inferred = op.infer(*[examples.spec(a, device) for a in arrays])
    except (TypeError, ValueError):
        return
    specs = (inferred,) if isinstance(inferred, Spec) else inferred
    flat = list(examples.flat(arrays))
    if not any(is_floating(s.dtype) for s in specs) or not any(a.dtype.kind == "f" for a in flat):
        return
    rng = np.random.default_rng(zlib.crc32(where.encode()))
    weights = [rng.uniform(0.5, 1.5, s.shape) if is_floating(s.dtype) else None for s in specs]
    directions = [rng.uniform(0.5, 1.5, a.shape) for a in flat]

    def objective(values: list[Array]) -> tuple[Tensor, list[Tensor]]:
        tensors, leaves = examples.leaves(arrays, values, device)
        out = op(*tensors)
        parts = list(out) if isinstance(out, TensorTuple) else [out]
        total: Any = Tensor(np.zeros(()), device=device, requires_grad=False)
        for part, weight in zip(parts, weights, strict=True):
            if weight is not None:
                total = total + (part.astype("float64") * examples.const(weight, device)).sum()
        return total, leaves

    def gradients(values: list[Array], create_graph: bool = False) -> tuple[Any, list[Tensor]]:
        """Return (sum of gradient * direction, leaves that hold the gradients)."""
        total, leaves = objective(values)
        if total.requires_grad:
            total.backward(create_graph=create_graph)
        along: Any = Tensor(np.zeros(()), device=device, requires_grad=False)
        for leaf, direction in zip(leaves, directions, strict=True):
            if leaf.grad is not None:
                along = along + (leaf.grad * examples.const(direction, device)).sum()
        return along, leaves

    _, leaves = gradients(flat)
    analytic = [_grad_of(leaf, where) for leaf in leaves]
    with no_grad():
        numeric = _central_differences(lambda v: objective(v)[0].item(), flat)
    _compare_gradients(analytic, numeric, f"{where}: gradient")

    # This uses `gradient`; the pass above used `backward` if the op has it.
    along, leaves = gradients(flat, create_graph=True)
    analytic = [_grad_of(leaf, where) for leaf in leaves]
    _compare_gradients(analytic, numeric, f"{where}: recorded gradient")
    for leaf in leaves:
        leaf.grad = None
    if along.requires_grad:
        along.backward()
    analytic = [_grad_of(leaf, where) for leaf in leaves]
    numeric = _central_differences(lambda v: gradients(v)[0].item(), flat)
    _compare_gradients(analytic, numeric, f"{where}: second order gradient")


def _grad_of(leaf: Tensor, where: str) -> Array:
    if leaf.grad is None:
        return np.zeros(leaf.shape)
    if leaf.grad.dtype != leaf.dtype:
        raise OpCheckError(f"{where}: gradient of {leaf.spec} has dtype {leaf.grad.dtype}")
    return leaf.grad.numpy()


def _central_differences(fn: Callable[[list[Array]], Any], values: list[Array]) -> list[Array]:
    out = []
    for i, value in enumerate(values):
        slope = np.zeros(value.shape)
        for at in np.ndindex(value.shape) if value.dtype.kind == "f" else ():
            ends = []
            for sign in (1, -1):
                moved = [v.copy() for v in values]
                moved[i][at] += sign * _STEP
                ends.append((fn(moved), moved[i][at]))
            slope[at] = (ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1])
        out.append(slope)
    return out


def _compare_gradients(found: list[Array], numeric: list[Array], what: str) -> None:
    scale = max((1.0, *(float(np.max(np.abs(n), initial=0.0)) for n in numeric)))
    for i, (got, want) in enumerate(zip(found, numeric, strict=True)):
        wrong = difference(got, want, scale=scale, rtol=_GRADIENT_TOLERANCE)
        if wrong is not None:
            raise OpCheckError(f"{what} for input {i}: {wrong}")


def _check_error(op_class: type[Op], bad: ErrorSample, device: Device, where: str) -> None:
    rng = np.random.default_rng(0)
    plain = all(isinstance(arg, (Arg, list)) for arg in bad.inputs)
    arrays = [
        examples.draw(a, "float32", rng) if isinstance(a, (Arg, list)) else a for a in bad.inputs
    ]

    def eager() -> None:
        op_class(**bad.attributes)(
            *[
                examples.tensor(a, device, False) if isinstance(a, (np.ndarray, tuple)) else a
                for a in arrays
            ]
        )

    def infer() -> None:
        op = op_class(**bad.attributes)
        if op.arity in (None, len(arrays)):
            op.infer(*[examples.spec(a, device) for a in arrays])
        else:
            eager()

    for kind, run in (("eager", eager), *([("infer", infer)] if plain else [])):
        try:
            run()
        except bad.error as error:
            if not re.search(bad.match, str(error)):
                raise OpCheckError(f"{where}: {kind}: {error!s} does not say {bad.match}") from None
        except Exception as error:
            raise OpCheckError(
                f"{where}: {kind} raises {error!r}, expected {bad.error.__name__}"
            ) from error
        else:
            raise OpCheckError(f"{where}: {kind} raises nothing, expected {bad.error.__name__}")
