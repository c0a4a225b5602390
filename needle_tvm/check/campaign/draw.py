"""Draw random programs from the whole registry of ops; `judge.serve` draws one per seed.

An op without a recipe or known attributes is applied to inputs like its own samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import needle as ndl
from needle.backend_ndarray.dtypes import DTYPES, is_floating
from needle.errors import TraceError
from needle.op import REGISTRY, Op
from needle.op.samples import Arg
from needle.trace.graph import Graph
from needle_tvm.check.campaign.drawer import REFUSALS, Drawer, Made, Unfit
from needle_tvm.check.campaign.layers import LAYERS
from needle_tvm.check.campaign.program import CONSTANT, INPUT, Program
from needle_tvm.check.campaign.recipes import BUILDERS

_NAMES = sorted(REGISTRY)
# Steps to draw; about two thirds of them are needed. Most of a program's time goes to LLVM and
# grows with the program's size, so small programs find more failures per hour.
_LENGTHS, _LENGTH_WEIGHTS = (5, 8, 12, 20, 30, 45, 60), (30, 27, 19, 12, 7, 3, 2)
_MOST_WITH_DIMS = 10
_SCALARS = ("2", "-1", "0.5", "3", "-1.5", "0", "1", "0.1", "True")
_KINDS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def draw(
    seed: int, gradient: bool = False, allows: Callable[[Graph], bool] | None = None
) -> Program:
    """Return the program of a `seed`. It has 5 to 60 steps, or 5 to 30 with `gradient`.

    A step is drawn again if `allows` rejects its graph."""
    return _drawn(Drawer(random.Random(f"{seed} {gradient}"), gradient, allows=allows))


def draw_with_dims(seed: int) -> Program:
    """Return a seed's program with extents that depend on dims; one in four has gradients."""
    rng = random.Random(f"{seed} dims")
    while True:
        program = _drawn(Drawer(rng, gradient=seed % 4 == 0, has_dims=True))
        if program.dims:
            return program


def _drawn(d: Drawer) -> Program:
    rng = d.rng
    length = rng.choices(_LENGTHS, _LENGTH_WEIGHTS)[0]
    if d.gradient:  # gradients add about twice as many ops
        length = max(_LENGTHS[0], length // 2)
    if d.dims is not None:  # LLVM also takes longer for code with symbolic sizes
        length = min(length, _MOST_WITH_DIMS)
    for _ in range(rng.randint(1, 3)):
        with contextlib.suppress(Unfit):
            d.leaf(d.shape(), kind=INPUT)
    while True:
        for _ in range(20 * length):
            if len(d.steps) >= length:
                break
            with contextlib.suppress(Unfit, TraceError):  # steps added by a layer stay
                _propose(d)
        drawn = d.needed_program()
        if len(drawn.steps) >= _LENGTHS[0]:
            return _with_gradient(drawn) if d.gradient else drawn
        length += _LENGTHS[0]


def _propose(d: Drawer) -> None:
    """Try to add an op, an index, an expression of Python operators, or one of `LAYERS`."""
    kind = d.rng.choices(["op", "getitem", "python", "layers"], [62, 12, 10, 16])[0]
    if kind == "op":
        _op(d, REGISTRY[d.rng.choice(_NAMES)])
    elif kind == "getitem":
        value = d.pick(lambda v: len(v.shape) > 0)
        if value is not None:
            d.add(f"{{0}}[{d.key(value.shape)}]", value)
    elif kind == "python":
        _python(d)
    else:
        d.rng.choice(LAYERS)(d)


def _op(d: Drawer, cls: type[Op]) -> None:
    builder = BUILDERS.get(cls.name)
    if builder is not None and d.rng.random() < 0.9:
        if builder(d, cls):
            return
    elif cls.arity in (1, 2, 3) and d.rng.random() < 0.9 and generic(d, cls):
        return
    _by_sample(d, cls)


def generic(d: Drawer, cls: type[Op]) -> bool:
    """Apply an op to operands that broadcast, with attributes drawn by their names."""
    assert cls.arity is not None
    low, high = _domain(cls)
    first = d.pick() or d.leaf(d.shape())
    if (low, high) != (-2.0, 2.0) and is_floating(first.dtype):
        moved = d.within(first, low, high)
        if moved is None:
            return False
        first = moved
    attributes = _attributes(d, cls, first.shape)
    if attributes is None:
        return False
    others = [d.like(first) for _ in range(cls.arity - 1)]
    return d.apply(cls, attributes, first, *others)


def _attributes(d: Drawer, cls: type[Op], shape: tuple[int, ...]) -> str | None:
    """Return the arguments of an op's class for a first operand of this shape.

    Returns None if an attribute's name is unknown.
    """
    found = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        drawn = _ATTRIBUTES.get(field.name)
        if drawn is None:
            return None
        found.append(f"{field.name}={drawn(d, shape)}")
    return ", ".join(found)


def _by_sample(d: Drawer, cls: type[Op]) -> None:
    """Apply an op as one of its own samples does, with the sample's attributes and leaves of its
    shapes. Skip ops with bodies: these cannot be written as text, so only recipes draw such ops."""
    if cls.has_bodies:
        return
    sample = d.rng.choice(list(cls.samples))
    dtype = d.dtype()
    texts: list[str] = []
    leaves: list[Made] = []

    def place(arg: Any) -> str:
        if isinstance(arg, list):
            return f"ops.make_tuple({', '.join(map(place, arg))})"
        assert isinstance(arg, Arg)
        leaves.append(d.leaf(arg.shape, arg.dtype or dtype, arg.low, arg.high))
        return f"{{{len(leaves) - 1}}}"

    before = len(d.values)
    texts = [place(arg) for arg in sample.inputs]
    attributes = ", ".join(f"{k}={v!r}" for k, v in sample.attributes.items())
    text = f"ops.{cls.__name__}({attributes})({', '.join(texts)})"
    for results in (1, 2, 3, 4):
        if d.add(text, *leaves, results=results):
            return
    del d.values[before:]


def _python(d: Drawer) -> None:
    """Add an expression of Python operators, as users write them."""
    a = d.pick() or d.leaf(d.shape())
    scalar = d.rng.choice(_SCALARS)
    text = d.rng.choice(_LINES).replace("S", scalar)
    operands = [a] if "{1}" not in text else [a, d.like(a)]
    d.add(text, *operands)


_LINES = (
    "{0} + S", "S - {0}", "{0} * S", "{0} / S", "S / ({0} * {0} + 1)", "-{0}", "{0} - {1}",
    "{0} + {1}", "{0} * {1}", "{0} / (ops.abs({1}) + 1)", "{0} > S", "{0} <= {1}", "{0} == {1}",
    "ops.where({0} > {1}, {0}, {1})", "(ops.abs({0}) + 0.5) ** S", "(ops.abs({0}) + 0.5) ** {1}",
    "{0}.sum()", "{0}.mean(-1)", "{0}.transpose()", "{0}.reshape(-1)", "{0}.astype('float32')",
    "{0}.astype('float64')", "{0}.astype('int32')", "{0}.astype('int8')", "ops.exp(ops.tanh({0}))",
    "ops.detach({0})",
    "ops.log(ops.exp(ops.tanh({0})) + S * S + 1)", "{0} * {0} + {0}", "1 - ops.tanh({0})",
)  # fmt: skip


def _domain(cls: type[Op]) -> tuple[float, float]:
    """Return the range of an op's first operand in its samples."""
    for sample in cls.samples:
        if sample.inputs and isinstance(sample.inputs[0], Arg):
            return sample.inputs[0].low, sample.inputs[0].high
    return -2.0, 2.0


def _with_gradient(program: Program) -> Program:
    """Add gradients for the leaves that a gradient reaches, if there are any."""
    floats = [
        i
        for i, leaf in enumerate(program.leaves)
        if is_floating(leaf.dtype) and leaf.kind != CONSTANT
    ]
    reached = []
    for i in floats:
        try:
            one = dataclasses.replace(program, gradient=(i,))
            model, inputs = one.load()
            model(*[ndl.Tensor(x) for x in inputs])
        except (AttributeError, *REFUSALS):  # grad is None, or nothing requires a gradient
            continue
        reached.append(i)
    return dataclasses.replace(program, gradient=tuple(reached))


# Attributes by name


_ATTRIBUTES: dict[str, Callable[[Drawer, tuple[int, ...]], Any]] = {
    "axis": lambda d, shape: d.axis(shape),
    "axes": lambda d, shape: d.axes(shape),
    "keepdims": lambda d, shape: d.rng.choice([True, False]),
    "eps": lambda d, shape: d.rng.choice([1e-5, 1e-3, 0.1]),
    "correction": lambda d, shape: d.rng.choice([0, 1]),
    "dtype": lambda d, shape: repr(d.rng.choice(DTYPES)),
    "scalar": lambda d, shape: d.rng.choice(_SCALARS[:-1]),
    "kind": lambda d, shape: repr(d.rng.choice(_KINDS)),
}
