"""A functional PyTorch program as plain Python objects without PyTorch; converters read it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..conversion.node import NamedNode
from ..sizes.dims import Dim
from ..sizes.extents import sizes_in


class Ref(NamedTuple):
    """A reference, by name, to the value of an input, a weight, a constant or a node."""

    name: str


class Result(NamedTuple):
    """A tensor's extents (ints and expressions of dims) and dtype, as PyTorch recorded them."""

    shape: tuple[Any, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Node(NamedNode):
    """One call of an operator.

    `args` has a value for every argument of the operator's schema, in the schema's order and with
    defaults filled in: a Ref for a tensor, a tuple for a list, the name of needle's dtype for a
    dtype, and None for a layout, a device, a memory format or a generator. `given` has the position
    and name of each argument that is not at its default. `results` describes the returned tensors,
    with None for a result that is not a tensor; if `several`, the operator returns a tuple. `path`
    is the path of the module that made the call.
    """

    name: str
    operator: str
    args: tuple[Any, ...]
    results: tuple[Result | None, ...]
    several: bool
    path: str = ""
    given: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        where = f" in module {self.path!r}" if self.path else ""
        return f"node {self.name!r} ({self.operator}){where}"

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of the first result."""
        return self._first.shape

    @property
    def dtype(self) -> str:
        """The dtype of the first result."""
        return self._first.dtype

    @property
    def _first(self) -> Result:
        first = self.results[0]
        if first is None:
            raise self.unsupported("its first result is not a tensor")
        return first

    def result(self, index: int) -> Result:
        """Return the shape and dtype of the tensor result at `index`."""
        found = self.results[index]
        if found is None:
            raise self.unsupported(f"its result {index} is not a tensor")
        return found


class Write(NamedTuple):
    """A value that the program writes to a weight or an input ("parameter", "buffer", "input")."""

    kind: str
    target: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Program:
    """A list of nodes in which each node comes after the nodes whose results it uses. Loop bodies
    and condition branches are programs, too; they are arguments of a node.

    `inputs` are (name, Result) pairs of a call's tensors. `weights` maps the names of values to
    names in `state_dict`, and `constants` maps names to known values. `outputs` are Refs and Python
    constants. `dims` are the dims in the inputs' extents; each is the whole extent of at least one
    axis. `fixed` has the other tensors of the PyTorch model's `state_dict`: the value of each
    tensor that became a constant, and None for a tensor that the program does not read.
    """

    inputs: tuple[tuple[str, Result], ...]
    weights: Mapping[str, str]
    constants: Mapping[str, np.ndarray]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    writes: tuple[Write, ...] = ()
    dims: tuple[Dim, ...] = ()
    fixed: Mapping[str, np.ndarray | None] = dataclasses.field(default_factory=dict)

    @property
    def live(self) -> Program:
        """The program without nodes, constants and weights that nothing uses."""
        used = {name for each in self.outputs for name in refs(each)}
        used |= {name for write in self.writes for name in refs(write.value)}
        written = {write.target for write in self.writes}
        nodes = []
        for node in reversed(self.nodes):
            if node.name in used:
                nodes.append(node)
                used.update(refs(node.args))
        return dataclasses.replace(
            self,
            nodes=tuple(reversed(nodes)),
            constants={name: each for name, each in self.constants.items() if name in used},
            weights={
                name: target
                for name, target in self.weights.items()
                if name in used or target in written
            },
        )

    def sizes(self, shapes: list[tuple[Any, ...]]) -> dict[Dim, Any]:
        """Return the size of each dim in a call whose inputs have these `shapes`."""
        return sizes_in([spec.shape for _, spec in self.inputs], shapes)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything but the values of weights."""
        digest = hashlib.sha256()
        for name, array in self.constants.items():
            digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
        for dim in self.dims:
            digest.update(dim.described().encode())
        for node in self.nodes:
            digest.update(repr((node.name, node.operator, node.args, node.results)).encode())
        rest = self.inputs, dict(self.weights), self.outputs, self.writes
        digest.update(repr(rest).encode())
        return digest.hexdigest()


def refs(value: Any) -> list[str]:
    """Return the names of the values that an argument refers to, including those inside tuples."""
    if isinstance(value, Ref):
        return [value.name]
    if isinstance(value, tuple):
        return [name for part in value for name in refs(part)]
    return []
