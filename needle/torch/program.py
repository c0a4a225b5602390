"""A functional PyTorch program as plain Python objects, free of PyTorch: what converters read."""

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
    """The value of an input, a weight, a constant or a node, by its name."""

    name: str


class Result(NamedTuple):
    """What PyTorch says of a tensor: its extents (ints and expressions of dims) and its dtype."""

    shape: tuple[Any, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Node(NamedNode):
    """One call of an operator.

    `args` has a value for every argument of the operator's schema, in its order, with the defaults
    filled in: a Ref for a tensor, tuples in the place of lists, the names of needle's dtypes, and
    None for a layout, a device, a memory format and a generator. `given` are the positions of those
    that are not at their defaults, with their names. `results` are the tensors that it returns
    (None for one that is not a tensor), as a tuple if `several`. `path` is the module's.
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
            raise self.unsupported("its first result is no tensor")
        return first

    def result(self, index: int) -> Result:
        """What PyTorch says of the tensor result at `index`."""
        found = self.results[index]
        if found is None:
            raise self.unsupported(f"its result {index} is no tensor")
        return found


class Write(NamedTuple):
    """A value that the program writes to a weight or an input ("parameter", "buffer", "input")."""

    kind: str
    target: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Program:
    """Nodes in an order in which each comes after those whose results it takes. The bodies of loops
    and the branches of conditions are programs, too: arguments of nodes of a program.

    `inputs` are (name, Result) of the tensors of a call; `weights` the names in `state_dict` by the
    names of values; `constants` known values. `outputs` are Refs and constants of Python.
    `dims` are those in the extents of the inputs: each is the whole extent of one of their axes.
    `fixed` are the other tensors of the PyTorch model's `state_dict`: constants of the program by
    their values, and None for those that it does not read.
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
        """The extent that each dim has in a call with inputs of these shapes."""
        return sizes_in([spec.shape for _, spec in self.inputs], shapes)

    def fingerprint(self) -> str:
        """SHA-256 of everything but the values of weights."""
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
    """The names of the values that an argument refers to, also inside tuples."""
    if isinstance(value, Ref):
        return [value.name]
    if isinstance(value, tuple):
        return [name for part in value for name in refs(part)]
    return []
