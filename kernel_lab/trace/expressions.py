"""TIR expressions as Python text.

Expressions become code that runs either on Python numbers (serial code) or on NumPy arrays of shape
(threads, lanes). In both kinds of code, values that are the same for all threads and lanes stay
numbers. Each load becomes a line of its own, so that it is recorded in the order of execution. A
branch that contains loads runs only for the threads that take it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kernel_lab.trace.errors import NotInterpreted
from kernel_lab.trace.events import Site
from kernel_lab.trace.machine import (
    erf,
    numpy_dtype,
    round_half_away,
    trunc_div,
    trunc_mod,
    wrapped,
)


class Value(NamedTuple):
    """An expression's text, and whether it differs between threads or lanes."""

    code: str
    varying: bool = False


@dataclass(frozen=True)
class Slot:
    """A buffer variable: the name of its storage in the program, and the buffer's number and
    facts."""

    storage: str
    buffer: int
    name: str
    size: int
    dtype: np.dtype


SITE_BITS = 16  # a single access is logged as (element << SITE_BITS) | site

INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "LShift": "<<",
    "RShift": ">>",
    "FloorDiv": "//",
    "FloorMod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
}
INFIX_CALLS = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
# Intrinsics as functions of NumPy arrays or scalars; the result has the dtype of the arguments.
INTRINSICS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in (
            "exp exp2 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh floor ceil trunc isnan"
            " isinf isfinite fmod hypot copysign nextafter"
        ).split()
    },
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "fabs": np.abs,
    "pow": np.power,
    "nearbyint": np.rint,
    "round": round_half_away,
    "erf": erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "bitwise_not": np.invert,
    "truncdiv": trunc_div,
    "truncmod": trunc_mod,
    "fma": lambda a, b, c: a * b + c,
}


def int8_dots(sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Compute AVX512-VNNI's `vpdpbusd`. Each int32 of `x` and `w` holds four 8-bit numbers,
    unsigned in `x` and signed in `w`; their products are added to a sum."""
    shape = np.broadcast_shapes(np.shape(x), np.shape(w))
    parts = [
        np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.int32), shape))
        .view(dtype)
        .reshape(*shape, 4)
        .astype(np.int32)
        for value, dtype in ((x, np.uint8), (w, np.int8))
    ]
    return sums + (parts[0] * parts[1]).sum(axis=-1, dtype=np.int32)


# Python versions of the LLVM IR functions that accompany some schedules, by name.
EXTERNALS: dict[str, Callable[..., Any]] = {"kernel_lab_dots": int8_dots}


class Expressions:
    """The emitter of the program's lines; `Program` in statements.py adds the statements."""

    def __init__(self, ignore: tuple[str, ...]) -> None:
        self.ignore = ignore
        self.lines: list[tuple[int, str]] = []
        self.depth = 1
        self.vector = False  # inside a kernel, a parallel loop or a vectorised one
        self.mask: str | None = None
        self.variables: dict[Any, Value] = {}
        self.slots: dict[Any, Slot] = {}
        self.scopes: list[str] = []  # scope of each buffer
        self.sites: list[Site] = []
        self.constants: dict[str, Any] = {"np": np, "wrapped": wrapped}
        self.nests: list[tuple[tuple[str, int], ...]] = []  # variable and extent of each loop
        self.parallel_nests: set[int] = set()  # numbers of the nests that are one parallel loop
        self.open_nests: list[int] = []  # nests around the code that is being emitted
        self.times = 1  # how often the code that is being emitted runs, predicates aside
        self.estimate = 0
        self._names = 0

    def emit(self, text: str) -> None:
        self.lines.append((self.depth, text))

    def fresh(self, stem: str) -> str:
        """Return a name that no other line uses."""
        self._names += 1
        return "".join(c if c.isalnum() else "_" for c in stem) + f"_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """Return the program's name for a Python object."""
        name = self.fresh(stem)
        self.constants[name] = value
        return name

    def named(self, value: Value, stem: str = "v") -> Value:
        """Return the value under a new name, so that its text runs once."""
        if value.code.isidentifier() or value.code.lstrip("-").isdigit():
            return value
        name = self.fresh(stem)
        self.emit(f"{name} = {value.code}")
        return Value(name, value.varying)

    def expr(self, node: Any) -> Value:
        """Emit the lines that the expression needs; return its value."""
        kind = type(node).__name__
        if kind in INFIX:
            left, right = self.expr(node.a), self.expr(node.b)
            code = f"({left.code} {INFIX[kind]} {right.code})"
            return Value(code, left.varying or right.varying)
        method = getattr(self, f"_{kind}", None)
        if method is None:
            raise NotInterpreted(f"trace: expression {kind} is not interpreted: {node}")
        return method(node)

    def _Var(self, node: Any) -> Value:
        if node not in self.variables:
            raise NotInterpreted(
                f"trace: {node.name} has no value; scalar arguments and symbolic sizes are not"
                " interpreted"
            )
        return self.variables[node]

    def _IntImm(self, node: Any) -> Value:
        return Value(repr(bool(node.value)) if dtype_of(node) == "bool" else str(int(node.value)))

    def _FloatImm(self, node: Any) -> Value:
        return Value(self.constant("c", numpy_dtype(dtype_of(node)).type(node.value)))

    def _Div(self, node: Any) -> Value:
        if numpy_dtype(dtype_of(node)).kind == "f":
            left, right = self.expr(node.a), self.expr(node.b)
            return Value(f"({left.code} / {right.code})", left.varying or right.varying)
        return self._apply(trunc_div, (node.a, node.b))

    def _Mod(self, node: Any) -> Value:
        return self._apply(trunc_mod, (node.a, node.b))

    def _Max(self, node: Any) -> Value:
        return self._choice(node, ">")

    def _Min(self, node: Any) -> Value:
        return self._choice(node, "<")

    def _choice(self, node: Any, operator: str) -> Value:
        # Like compiled code: a comparison, which is false for NaN, and a selection.
        left, right = self.named(self.expr(node.a)), self.named(self.expr(node.b))
        return self._where(
            Value(f"({left.code} {operator} {right.code})", left.varying or right.varying),
            left,
            right,
        )

    def _where(self, condition: Value, then: Value, other: Value) -> Value:
        varying = condition.varying or then.varying or other.varying
        if condition.varying:
            return Value(f"np.where({condition.code}, {then.code}, {other.code})", varying)
        return Value(f"({then.code} if {condition.code} else {other.code})", varying)

    def _Not(self, node: Any) -> Value:
        return inverse(self.expr(node.a))

    def _And(self, node: Any) -> Value:
        return self._both(node, "&", "and")

    def _Or(self, node: Any) -> Value:
        return self._both(node, "|", "or")

    def _both(self, node: Any, array_operator: str, operator: str) -> Value:
        # The right side loads only where the left side does not determine the result.
        left = self.named(self.expr(node.a))
        undecided = inverse(left) if operator == "or" else left
        right = self._guarded(undecided, node.b, "False")
        varying = left.varying or right.varying
        code = f"({left.code} {array_operator if varying else operator} {right.code})"
        return Value(code, varying)

    def _Select(self, node: Any) -> Value:
        condition = self.named(self.expr(node.condition))
        return self._where(condition, self.expr(node.true_value), self.expr(node.false_value))

    def _Cast(self, node: Any) -> Value:
        value = self.expr(node.value)
        return self._converted(value, dtype_of(node))

    def _converted(self, value: Value, dtype: str) -> Value:
        numpy_type = numpy_dtype(dtype)
        if value.varying:
            return Value(f"{value.code}.astype({self.constant('t', numpy_type)})", True)
        if numpy_type.kind == "f":
            return Value(f"{self.constant('t', numpy_type.type)}({value.code})")
        if numpy_type.kind == "b":
            return Value(f"bool({value.code})")
        return Value(f"wrapped({value.code}, {self.constant('t', numpy_type)})")

    def _Let(self, node: Any) -> Value:
        value = self.expr(node.value)
        self.variables[node.var] = self.named(value, node.var.name)
        return self.expr(node.body)

    def _Ramp(self, node: Any) -> Value:
        base, stride = self.expr(node.base), self.expr(node.stride)
        lanes = self.constant("lanes", np.arange(int(node.lanes))[None, :])
        return Value(f"({base.code} + {lanes} * {stride.code})", True)

    def _Broadcast(self, node: Any) -> Value:
        return self.expr(node.value)

    def _TensorLoad(self, node: Any) -> Value:
        slot = self.slot_of(node.source)
        index = self._element(node.indices)
        site = self.site(slot, False, node.indices)
        name = self.fresh("x")
        if self.vector or index.varying:
            self.emit(f"{name} = m.load({slot.storage}, {site}, {index.code}, {self.mask})")
            return Value(name, True)
        index = self._checked(slot, site, index)
        code = f"{slot.storage}.data[{index.code}]"
        if slot.dtype.kind in "iub":  # Python integers, so that they index and do not overflow
            code += ".item()"
        self.emit(f"{name} = {code}")
        return Value(name)

    def _checked(self, slot: Slot, site: int, index: Value) -> Value:
        """Emit the bounds check and the record of a single access."""
        index = self.named(index, "i")
        self.emit(
            f"if not 0 <= {index.code} < {slot.size}: "
            f"m.outside({site}, {index.code}, {slot.storage})"
        )
        if site >= 0:
            self.emit(f"note({index.code} << {SITE_BITS} | {site})")
        return index

    def _element(self, indices: Any) -> Value:
        if len(indices) != 1:
            raise NotInterpreted(f"trace: access with {len(indices)} indices was not flattened")
        return self.expr(indices[0])

    def slot_of(self, buffer: Any) -> Slot:
        """Return the storage of a buffer variable."""
        if buffer not in self.slots:
            raise NotInterpreted(f"trace: buffer {buffer.name} is used before it is allocated")
        return self.slots[buffer]

    def site(self, slot: Slot, is_store: bool, indices: Any) -> int:
        """Return the number of a new load or store in the program; -1 if its scope is not
        recorded."""
        scope = self.scopes[slot.buffer]
        if scope.startswith("wmma."):
            raise NotInterpreted(
                f"trace: {slot.name} has scope {scope!r}; only tensor-core instructions access it"
            )
        if scope in self.ignore or scope == "warp":  # "warp": registers of a warp's threads
            return -1
        self.estimate += self.times
        text = f"{slot.name}[{', '.join(str(index) for index in indices)}]"
        self.sites.append(Site(slot.buffer, is_store, text, tuple(self.open_nests)))
        if len(self.sites) >> SITE_BITS:
            raise NotInterpreted(
                f"trace: more than {1 << SITE_BITS:,} loads and stores in the kernel's text"
            )
        return len(self.sites) - 1

    def _Call(self, node: Any) -> Value:
        name = call_name(node)
        if name == "likely":
            return self.expr(node.args[0])
        if name == "if_then_else":
            return self._if_then_else(node)
        if name in INFIX_CALLS:
            left, right = (self.expr(argument) for argument in node.args)
            code = f"({left.code} {INFIX_CALLS[name]} {right.code})"
            return Value(code, left.varying or right.varying)
        if name == "reinterpret":
            value, dtype = self.expr(node.args[0]), numpy_dtype(dtype_of(node))
            source = numpy_dtype(dtype_of(node.args[0]))
            code = f"np.asarray({value.code}, {self.constant('t', source)})"
            code = f"{code}.view({self.constant('t', dtype)})"
            return Value(code if value.varying else f"{code}[()]", value.varying)
        if name == "call_pure_extern" and node.args[0].value in EXTERNALS:
            return self._apply(EXTERNALS[node.args[0].value], node.args[1:])
        if name not in INTRINSICS:
            what = ", ".join(str(argument) for argument in node.args)
            raise NotInterpreted(f"trace: intrinsic {name}({what}) is not interpreted")
        return self._apply(INTRINSICS[name], node.args)

    def _apply(self, function: Callable[..., Any], arguments: Any) -> Value:
        values = [self.expr(argument) for argument in arguments]
        code = f"{self.constant('f', function)}({', '.join(value.code for value in values)})"
        return Value(code, any(value.varying for value in values))

    def _if_then_else(self, node: Any) -> Value:
        condition = self.named(self.expr(node.args[0]))
        zero = self.constant("zero", numpy_dtype(dtype_of(node)).type(0))
        then = self._guarded(condition, node.args[1], zero)
        other = self._guarded(inverse(condition), node.args[2], zero)
        return self._where(condition, then, other)

    def _guarded(self, condition: Value, node: Any, otherwise: str) -> Value:
        """Return the node's value; its loads run only where the condition holds."""
        lines, before = self.lines, self.mask
        self.lines = []
        self.begin_where(condition)
        head = len(self.lines)
        value = self.expr(node)
        self.depth -= 1
        self.mask = before
        guarded, self.lines = self.lines, lines
        if len(guarded) == head:
            return value
        name = self.fresh("g")
        self.emit(f"{name} = {otherwise}")
        self.lines += guarded
        self.lines.append((self.depth + 1, f"{name} = {value.code}"))
        return Value(name, value.varying or condition.varying)

    def begin_where(self, condition: Value) -> None:
        """Emit the head of a block that runs where the condition holds, and narrow the mask."""
        if condition.varying:
            mask = self.fresh("mask")
            both = condition.code if self.mask is None else f"{condition.code} & {self.mask}"
            self.emit(f"{mask} = {both}")
            self.emit(f"if {mask}.any():")
            self.mask = mask
        else:
            self.emit(f"if {condition.code}:")
        self.depth += 1


def inverse(condition: Value) -> Value:
    """Return the condition's negation."""
    operator = "~" if condition.varying else "not "
    return Value(f"({operator}{condition.code})", condition.varying)


def call_name(node: Any) -> str:
    """Return the name of a called operator, without the namespace that TVM registers it in."""
    name = str(getattr(node.op, "name", node.op))
    return name.partition(".")[2] or name


def dtype_of(node: Any) -> str:
    """Return the element type of an expression, such as "float32"."""
    return str(node.ty.dtype).partition("x")[0]
