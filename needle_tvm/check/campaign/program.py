"""Programs as data: leaves, steps and outputs, and the Python source that runs them.

The source is what is executed, so a failure's script runs exactly the failing code.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from needle.backend_ndarray.dtypes import is_floating
from needle_tvm.check.campaign.sizes import Size, names_in, tested

INPUT, PARAMETER, CONSTANT = "input", "parameter", "constant"

_HEAD = """\
from math import inf, nan
import ml_dtypes
import numpy as np
import needle as ndl
from needle import nn, ops
from needle.ops._keys import Range
"""


@dataclass(frozen=True)
class Leaf:
    """An array that the program starts with, drawn by `seed`.

    Numbers are uniform in [low, high), with some extreme values if `special`; both booleans are
    equally likely. An input's extent may be a string: an expression of the program's dims.
    """

    kind: str
    shape: tuple[int | str, ...]
    dtype: str
    seed: int
    low: float = -2.0
    high: float = 2.0
    special: bool = False

    def expression(self) -> str:
        """Return the NumPy expression that creates the array."""
        rng = f"np.random.default_rng({self.seed})"
        if self.dtype == "bool":
            return f"({rng}.random({self._shape}) < 0.5)"
        if not is_floating(self.dtype):  # negative numbers wrap around in unsigned dtypes
            drawn = f"{rng}.integers({self.low:.0f}, {self.high:.0f}, {self._shape})"
            if self.special:
                least = f'np.iinfo("{self.dtype}").min'
                drawn = self._with_some(f"[{least}, -1 - {least}, {least} + 1, -1, 0]", drawn)
            return f'{drawn}.astype("{self.dtype}")'
        drawn = f"{rng}.uniform({self.low:g}, {self.high:g}, {self._shape})"
        if self.special:
            drawn = self._with_some("[np.nan, np.inf, -np.inf, -0.0, 0.0]", drawn)
        return f'{drawn}.astype("{self.dtype}")'

    def _with_some(self, numbers: str, drawn: str) -> str:
        some = f"np.random.default_rng({self.seed}).random({self._shape}) < 0.2"
        return f"np.where({some}, np.resize({numbers}, {self._shape}), {drawn})"

    @property
    def _shape(self) -> str:
        return f"({''.join(f'{n}, ' for n in self.shape)})"

    def axes(self) -> dict[int, str]:
        """Return the extents that are strings, by axis."""
        return {axis: n for axis, n in enumerate(self.shape) if isinstance(n, str)}


@dataclass(frozen=True)
class Step:
    """An expression that computes `results` values.

    {0}, {1} ... stand for its operands, which are given as value numbers. Values are numbered in
    order, leaves first.
    """

    expression: str
    operands: tuple[int, ...]
    results: int = 1


@dataclass(frozen=True)
class Program:
    """Leaves, steps that each compute the next values, and the numbers of the returned values.

    With `gradient`, the gradients of the sum of all returned floating-point values with respect to
    these leaves are returned too. `dims` are the dims of the inputs' extents; steps use their
    names. `undrawn` holds the reasons why steps were refused because of dims.
    """

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    gradient: tuple[int, ...] = ()
    dims: tuple[Size, ...] = ()
    undrawn: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        fields = json.loads(text)
        return cls(
            tuple(Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in fields["leaves"]),
            tuple(
                Step(s["expression"], tuple(s["operands"]), s["results"]) for s in fields["steps"]
            ),
            tuple(fields["outputs"]),
            tuple(fields["gradient"]),
            tuple(Size(**size) for size in fields["dims"]),
            tuple(fields["undrawn"]),
        )

    def with_used_dims(self) -> Program:
        """Return the program without unused dims."""
        texts = [*(leaf.shape for leaf in self.leaves), *(s.expression for s in self.steps)]
        used = names_in(texts)
        return dataclasses.replace(self, dims=tuple(d for d in self.dims if d.name in used))

    def without_dim(self, size: Size) -> Program:
        """Return the program with a dim replaced by its size in the example."""

        def fixed(text: str) -> str:
            return re.sub(rf"\b{size.name}\b", str(size.example), text)

        def number(n: int | str) -> int | str:
            if isinstance(n, int) or names_in([fixed(n)]):
                return n if isinstance(n, int) else fixed(n)
            return int(eval(fixed(n)))

        return dataclasses.replace(
            self,
            leaves=tuple(
                dataclasses.replace(leaf, shape=tuple(map(number, leaf.shape)))
                for leaf in self.leaves
            ),
            steps=tuple(
                dataclasses.replace(step, expression=fixed(step.expression)) for step in self.steps
            ),
            dims=tuple(other for other in self.dims if other != size),
        )

    def source(self) -> str:
        """Return the source of a module that defines `model` and `inputs`; with dims, it also
        defines `dims`, in the form that `compile` takes, and `others`, inputs of other sizes."""
        names = self._names()
        leaves = list(zip(self.leaves, names, strict=False))
        inputs = [(leaf, name) for leaf, name in leaves if leaf.kind == INPUT]
        params = [(leaf, name) for leaf, name in leaves if leaf.kind == PARAMETER]
        lines = [_HEAD]
        for leaf, name in leaves:
            if leaf.kind == CONSTANT:
                lines.append(f"{name} = ndl.Tensor({leaf.expression()}, requires_grad=False)")
        lines += ["", "class Model(nn.Module):", "    def __init__(self):"]
        lines.append("        super().__init__()")
        for leaf, name in params:
            tensor = f"ndl.Tensor({leaf.expression()})"
            # It becomes a buffer if the dtype has no gradient.
            value = f"nn.Parameter({tensor})" if _is_float(leaf) else tensor
            lines.append(f"        {_attribute(name)} = {value}")
        lines.append(f"    def forward({', '.join(['self', *(name for _, name in inputs)])}):")
        body = [f"{name} = {_attribute(name)}" for _, name in params]
        body += self._sizes(inputs)
        body += self._statements(names)
        lines += [f"        {line}" for line in body]
        lines += ["", "model = Model().eval()"]
        if not self.dims:
            arrays = "".join(f"    {leaf.expression()},\n" for leaf, _ in inputs)
            lines.append(f"inputs = [\n{arrays}]")
            return "\n".join(lines) + "\n"
        names_of_dims = [size.name for size in self.dims]
        lines += ["", f"def inputs_at({', '.join(names_of_dims)}):", "    return ["]
        lines += [f"        {leaf.expression()}," for leaf, _ in inputs]
        lines += ["    ]", ""]
        lines += [f"{size.name} = {size.declaration()}" for size in self.dims]
        axes = {name: leaf.axes() for leaf, name in inputs if leaf.axes()}
        listed = (
            f"{name!r}: {{{', '.join(f'{axis}: {text}' for axis, text in found.items())}}}"
            for name, found in axes.items()
        )
        lines.append(f"dims = {{{', '.join(listed)}}}")
        example = {size.name: size.example for size in self.dims}
        lines.append(f"inputs = inputs_at(**{example})")
        lines.append(f"others = [inputs_at(**sizes) for sizes in {tested(self.dims)}]")
        return "\n".join(lines) + "\n"

    def _sizes(self, inputs: list[tuple[Leaf, str]]) -> Iterable[str]:
        """Yield lines that read the dims from the inputs, as a model does."""
        for size in self.dims:
            name, axis = next(
                (name, axis)
                for leaf, name in inputs
                for axis, text in leaf.axes().items()
                if text == size.name
            )
            yield f"{size.name} = {name}.shape[{axis}]"

    def _names(self) -> list[str]:
        prefix = {INPUT: "x", PARAMETER: "p", CONSTANT: "c"}
        names = [f"{prefix[leaf.kind]}{i}" for i, leaf in enumerate(self.leaves)]
        count = sum(step.results for step in self.steps)
        return names + [f"v{i}" for i in range(len(names), len(names) + count)]

    def _statements(self, names: list[str]) -> Iterable[str]:
        at = len(self.leaves)
        for step in self.steps:
            made = ", ".join(names[at : at + step.results])
            at += step.results
            value = step.expression.format(*(names[i] for i in step.operands))
            yield f"{made} = {value}"
        returned = [names[i] for i in self.outputs]
        if self.gradient:
            floats = (
                f"[v for v in ({', '.join(returned)},) if v.dtype.startswith(('float', 'bfloat'))]"
            )
            sums = f"(v.astype('float64').sum() for v in {floats})"
            yield f"total = sum({sums}, ndl.Tensor(np.zeros(())))"
            yield "total.backward()"
            for i in self.gradient:
                name = names[i]
                # None means that no gradient reaches the leaf, which is not a fault.
                yield f"g{i} = {name} * 0 if {name}.grad is None else {name}.grad"
                returned.append(f"g{i}")
        yield f"return {', '.join(returned)}"

    def load(self) -> tuple[Any, list[Any]]:
        """Return the model and its inputs, as defined by the source."""
        namespace = self._run()
        return namespace["model"], namespace["inputs"]

    def at_sizes(self) -> tuple[Any, list[Any]]:
        """Return the dims of the inputs, and inputs of other sizes; (None, []) without dims."""
        namespace = self._run() if self.dims else {}
        return namespace.get("dims"), namespace.get("others", [])

    def _run(self) -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.source(), "<program>", "exec"), namespace)
        return namespace


def _attribute(name: str) -> str:
    return f"self.{name}"


def _is_float(leaf: Leaf) -> bool:
    return leaf.dtype.startswith(("float", "bfloat"))
