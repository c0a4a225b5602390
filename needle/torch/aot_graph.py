"""Split an AOTAutograd graph into the random numbers that PyTorch draws and the tensors that needle
computes, and record how the results and the written inputs are built from both. The graph is
functional, except for copies into inputs at its end.

Views of one tensor share a storage in the fake tensors of `node.meta["val"]`; this shows which
results are views of an input or of each other. Imports PyTorch when called.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from ..backend_ndarray.dtypes import DTYPES
from ..errors import UnsupportedError
from . import strided
from .aot_nodes import check, is_dense, is_number, needed, source_of, takes_only_like
from .complexes import real_dtype
from .nodes import is_draw, name_of
from .reading import graph_program
from .symbols import Symbols

_MOST_PLACES = 1 << 22  # most elements that an as_strided view may select


class Value(NamedTuple):
    """The source of a tensor: the `number`-th tensor of the `kind` "argument", "drawn", "constant"
    or "computed"; `node` is the graph's node for it. The kind "memory" is an argument's whole
    storage, flat."""

    kind: str
    number: int
    node: Any


class Output(NamedTuple):
    """A result of the graph. Without a `value`, `node` is None, a number, or a node that computes a
    size.

    The result has the size, strides and offset of `node`; if `is_view`, it is a view of the value's
    storage.
    """

    value: Value | None
    node: Any
    is_view: bool

    @property
    def computed(self) -> int | None:
        """The number of the "computed" value that the result is built from, or None."""
        if self.value is None or self.value.kind != "computed":
            return None
        return self.value.number


class Part(NamedTuple):
    """The part of a graph that needle computes, its inputs (each a node and the value that it
    stands for), and its known tensors by name."""

    graph: Any
    inputs: list[tuple[Any, Value]]
    known: dict[str, Any]

    def program(self, symbols: Symbols, weights: Mapping[str, str]) -> Any:
        """Return the `Program` of this part; `weights` are names of placeholders."""
        return graph_program(self.graph, symbols, weights, self.known)


class AotGraph:
    """The parts of a graph. Raises UnsupportedError if the graph does anything other than compute
    tensors and write inputs.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        nodes = list(module.graph.nodes)
        self.arguments = [node for node in nodes if node.op == "placeholder"]
        self._position = {node: number for number, node in enumerate(self.arguments)}
        self.writes: list[tuple[int, Output]] = []
        self._drawn: dict[Any, int] = {}
        self._constants: dict[Any, int] = {}
        self.computed: dict[Any, int] = {}
        writes = [node for node in nodes if self._is_write(node)]
        for node in nodes:
            if node.op == "call_function" and node not in writes:
                check(node)
        self._drawing = {node for node in nodes if is_draw(node)}
        (returned,) = [node for node in nodes if node.op == "output"]
        self.outputs = self._outputs(returned.args[0], writes)
        self.copied = _copied(self)
        for node in self._reached():
            if self._is_drawn(node):
                self._value(node)

    @property
    def constants(self) -> list[Any]:
        """The tensors of the "constant" values."""
        return [getattr(self.module, node.target) for node in self._constants]

    @property
    def draws(self) -> bool:
        """Whether the graph draws random numbers."""
        return bool(self._drawing)

    @property
    def drawn(self) -> list[Any]:
        """The nodes of the "drawn" values."""
        return list(self._drawn)

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the arguments that the graph writes."""
        return frozenset(number for number, _ in self.writes)

    def _is_write(self, node: Any) -> bool:
        return (
            node.op == "call_function"
            and name_of(node.target) == "aten.copy_.default"
            and node.args[0] in self._position
        )

    def _outputs(self, returned: Sequence[Any], writes: Sequence[Any]) -> list[Output]:
        import torch

        given = [node.args[0] if node in writes else node for node in returned]
        tensors = [
            node
            for node in given
            if isinstance(node, torch.fx.Node) and isinstance(node.meta["val"], torch.Tensor)
        ]
        sources = [source_of(node) for node in tensors]
        outputs = []
        for node in given:
            if not isinstance(node, torch.fx.Node) or node not in tensors:
                outputs.append(Output(None, node, False))
                continue
            source = source_of(node)
            shared = sum(each is source for each in sources) > 1
            outputs.append(self._output(node, source, shared))
        for write in writes:
            _, node, *_ = write.args
            source = source_of(node)
            is_argument = source in self._position
            place = self._position[write.args[0]]
            self.writes.append((place, self._output(node, source if is_argument else node, False)))
        return outputs

    def _output(self, node: Any, source: Any, shared: bool) -> Output:
        """Return a result with a storage of its own if possible, otherwise as a view of the storage
        of `source`."""
        own = source in self._position or source in self._drawing or source.op == "get_attr"
        alone = type(offset := node.meta["val"].storage_offset()) is int and offset == 0
        is_view = node is not source and (own or shared or not alone or not is_dense(node))
        return Output(self._value(source if is_view or own else node), node, is_view)

    def _value(self, node: Any) -> Value:
        if node in self._position:
            return Value("argument", self._position[node], node)
        kinds = {"drawn": self._drawn, "constant": self._constants, "computed": self.computed}
        kind = "computed"
        if self._is_drawn(node):
            kind = "drawn"
        elif node.op == "get_attr":
            kind = "constant"
        found = kinds[kind]
        return Value(kind, found.setdefault(node, len(found)), node)

    def _is_drawn(self, node: Any) -> bool:
        return node in self._drawing or (
            node.target is operator.getitem and node.args[0] in self._drawing
        )

    def _reached(self) -> set[Any]:
        """Return the nodes that needle computes, and the nodes whose values they use."""
        return needed(list(self.computed), self._is_drawn)

    def part(self, sizes: Callable[[Any], Any] | None) -> Part:
        """Return the part that needle computes. `sizes` maps extents of fake tensors to ints, if
        they are known.

        Raises UnsupportedError if the part needs sizes that are not known.
        """
        import torch

        made = Part(torch.fx.Graph(), [], {})
        copies: dict[Any, Any] = {}
        wanted = self._reached()
        for node in self.module.graph.nodes:
            if node not in wanted:
                continue
            if node.op == "call_function" and not self._is_drawn(node):
                if node.target is torch.ops.aten.as_strided.default:
                    copies[node] = self._as_strided(made, copies, node, sizes)
                else:
                    copies[node] = made.graph.node_copy(node, copies.__getitem__)
                continue
            copies[node] = made.graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
            if node.op == "get_attr":
                made.known[copies[node].name] = getattr(self.module, node.target)
            elif isinstance(node.meta["val"], torch.Tensor):
                made.inputs.append((copies[node], self._value(node)))
        made.graph.output(tuple(copies[node] for node in self.computed))
        return made

    def _as_strided(
        self, made: Part, copies: Mapping[Any, Any], node: Any, sizes: Callable[[Any], Any] | None
    ) -> Any:
        """Return a node for an as_strided view: the elements that strides select from a source's
        memory."""
        import torch

        aten = torch.ops.aten
        source = source_of(node)
        base, value = source.meta["val"], node.meta["val"]

        def numbers(*given: Any) -> tuple[int, ...]:
            if sizes is not None:
                return tuple(map(sizes, given))
            if not all(type(n) is int for n in given):
                raise UnsupportedError("it reads memory by strides that are not known")
            return given

        def emitted(operator: Any, meta: Any, *args: Any) -> Any:
            made_node = made.graph.call_function(operator, args)
            made_node.meta["val"] = meta
            return made_node

        if source in self._position:
            reached = zip(numbers(*value.shape), numbers(*value.stride()), strict=True)
            count = sum((n - 1) * step for n, step in reached) + 1
            count = max(1, count + numbers(value.storage_offset())[0])
            elements, start = made.graph.placeholder(f"memory_{len(made.inputs)}"), 0
            elements.meta["val"] = base.new_empty(count)
            made.inputs.append((elements, Value("memory", self._position[source], elements)))
        else:
            stride = numbers(*base.stride())
            order = sorted(range(base.ndim), key=lambda axis: (-stride[axis], axis))
            if not is_dense(source):
                raise UnsupportedError("it reads memory by strides, and a tensor leaves gaps in it")
            count, start = numbers(base.numel(), base.storage_offset())
            elements = emitted(aten.permute.default, base.permute(order), copies[source], order)
            elements = emitted(aten.reshape.default, base.new_empty(count), elements, [count])
        size, first = numbers(*value.shape), numbers(value.storage_offset())[0] - start
        if prod(size) > _MOST_PLACES:
            raise UnsupportedError(f"it reads {prod(size)} elements of memory by strides")
        places = strided.places_of(size, numbers(*value.stride()), first)
        known = made.graph.placeholder(f"places_{len(made.known)}")
        known.meta["val"] = made.known[known.name] = places
        elements = emitted(
            aten.index_select.default, base.new_empty(len(places)), elements, 0, known
        )
        return emitted(aten.reshape.default, value, elements, list(size))

    # In PyTorch

    def draw(self, args: Sequence[Any], sizes: Callable[[Any], Any]) -> list[Any]:
        """Draw the random values of a call with `args`, in the graph's order. `sizes` maps extents
        of fake tensors to ints."""
        if not self._drawing:
            return []
        wanted = needed(list(self._drawing), lambda node: False, only_like=True)
        env = dict(zip(self.arguments, args, strict=True))
        self._run(wanted, env, sizes)
        return [env[node] for node in self._drawn_ready(env)]

    def _drawn_ready(self, env: dict[Any, Any]) -> list[Any]:
        for node in self._drawn:
            if node not in env:  # an item of a drawn tuple
                env[node] = env[node.args[0]][node.args[1]]
        return list(self._drawn)

    def compute(
        self, args: Sequence[Any], drawn: Sequence[Any], sizes: Callable[[Any], Any]
    ) -> list[Any]:
        """Compute the "computed" values in PyTorch, from `args` and the `drawn` numbers; `sizes`
        maps extents of fake tensors to ints."""
        env = {**zip_dict(self.arguments, args), **zip_dict(list(self._drawn), drawn)}
        wanted = needed(list(self.computed), lambda node: node in env)
        self._run(wanted, env, sizes)
        return [env[node] for node in self.computed]

    def _run(self, wanted: Collection[Any], env: dict[Any, Any], sizes: Any) -> None:
        """Run nodes in PyTorch."""
        import torch

        def argument(node: Any, like: bool) -> Any:
            if node in env:
                return env[node]
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                return sizes(value)
            assert like, node
            return torch.empty_strided(
                tuple(map(sizes, value.shape)),
                tuple(map(sizes, value.stride())),
                dtype=value.dtype,
            )

        for node in self.module.graph.nodes:
            if node not in wanted or node in env:
                continue
            if node.op == "get_attr":
                env[node] = getattr(self.module, node.target)
            elif node.op == "call_function" and not is_number(node):
                like = takes_only_like(node)
                given = torch.fx.node.map_arg(
                    (node.args, node.kwargs), functools.partial(argument, like=like)
                )
                env[node] = node.target(*given[0], **given[1])


def zip_dict(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """Return a dict of `keys` and `values`; raises ValueError if their counts differ."""
    return dict(zip(keys, values, strict=True))


def _copied(graph: AotGraph) -> list[bool]:
    """Return, for each write, whether its value must be copied before the writes begin, because an
    earlier write changes the argument that holds it."""
    found = []
    changed: set[int] = set()
    for number, output in graph.writes:
        value = output.value
        found.append(value is not None and value.kind == "argument" and value.number in changed)
        changed.add(number)
    return found


def unsupported_dtype(values: Iterator[Any]) -> str | None:
    """Return the first dtype among the tensors `values` that needle does not have, or None."""
    names = [str(each.dtype).partition(".")[2] for each in values]
    return next((name for name in names if real_dtype(name) not in DTYPES), None)
