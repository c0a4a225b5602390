"""Read a functional PyTorch graph (`torch.fx`) into a `Program`. Imports PyTorch when called."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UnsupportedError
from ..sizes.extents import same
from . import complexes, registry
from .arrays import array_of, dtype_name, is_held
from .complexes import OF_PARTS, TO_PARTS, real_dtype
from .execute import GETITEM
from .loops import WHILE_LOOP, known_trips
from .nodes import (
    extents_of,
    is_complex,
    is_constant,
    is_number,
    is_random,
    live_nodes,
    name_of,
    number_dtype,
    path_of,
)
from .program import Node, Program, Ref, Result, Write
from .symbols import Symbols

_LARGEST_FOLDED = 1 << 24  # most elements of a constant that is computed at load time


def program_of(exported: Any, symbols: Symbols) -> Program:
    """Return the program of a functional `ExportedProgram`.

    Raises UnsupportedError for operators without a converter, which it lists, and for inputs or
    outputs that are not tensors.
    """
    from torch.export.graph_signature import InputKind, OutputKind

    signature = exported.graph_signature
    weights, constants = {}, {}
    written = {each.target for each in signature.output_specs if each.target is not None}
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            continue
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            held = exported.state_dict.get(spec.target)
            held = exported.constants[spec.target] if held is None else held
            if spec.target in written or spec.kind is InputKind.PARAMETER or is_weight(held):
                weights[name] = spec.target
                continue
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            held = exported.constants[spec.target]
        else:
            raise UnsupportedError(f"the program takes {name!r}, which is not a tensor")
        constants[name] = held
    reader = _Reader(exported.graph, symbols, constants)
    kinds = {
        OutputKind.BUFFER_MUTATION: "buffer",
        OutputKind.PARAMETER_MUTATION: "parameter",
        OutputKind.USER_INPUT_MUTATION: "input",
    }
    values, outputs, writes = reader.returned(), [], []
    for spec, value in zip(signature.output_specs, values, strict=True):
        if spec.kind in kinds:
            writes.append(Write(kinds[spec.kind], str(spec.target), value))
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(value)
        else:
            raise UnsupportedError(f"the program returns a {spec.kind.name.lower()}")
    program = reader.program(weights, outputs, writes)
    return dataclasses.replace(program, fixed=_fixed(exported, program))


def _fixed(exported: Any, program: Program) -> dict[str, Any]:
    """Return the tensors of a model's `state_dict` that are not weights of its program."""
    read = {node.name for node in exported.graph.nodes if node.op == "placeholder" and node.users}
    names = {spec.target: spec.arg.name for spec in exported.graph_signature.input_specs}
    weights = set(program.weights.values())
    return {
        target: array_of(value) if names[target] in read and not is_weight(value) else None
        for target, value in exported.state_dict.items()
        if target not in weights
    }


def graph_program(
    graph: Any, symbols: Symbols, weights: Mapping[str, str], known: Mapping[str, Any]
) -> Program:
    """Return the program of a functional `torch.fx` graph that returns a tuple. The graph's
    placeholders are the inputs, except placeholders named in `weights` and placeholders whose
    tensors are `known`.

    Raises UnsupportedError, which lists the operators without a converter.
    """
    reader = _Reader(graph, symbols, known)
    return reader.program(weights, reader.returned(), ())


def is_weight(tensor: Any) -> bool:
    """Return whether a buffer is a weight. Buffers of integers, booleans and single numbers are
    constants, because operators may need their values."""
    return bool(tensor.is_floating_point() and tensor.ndim)


class _Reader:
    """A reader of a graph's nodes. It immediately computes nodes that depend only on constants."""

    def __init__(self, graph: Any, symbols: Symbols, constants: Mapping[str, Any]) -> None:
        self._graph, self._symbols = graph, symbols
        self._known: dict[str, Any] = dict(constants)  # PyTorch tensors
        self._nodes: list[Node] = []
        self._bodies: dict[str, Program] = {}
        self._live = live_nodes(graph)
        self._check_operators()
        for node in self._live:
            if node.op == "call_function":
                self._read(node)
            elif node.op == "get_attr":
                self._take(node)
            elif node.op not in ("placeholder", "output"):
                raise UnsupportedError(f"the program has a node of kind {node.op}")

    def _take(self, node: Any) -> None:
        """Read an attribute of the graph's module: a graph that another node runs, or a
        constant."""
        held = operator.attrgetter(node.target)(self._graph.owning_module)
        if hasattr(held, "graph"):
            self._bodies[node.name] = _Reader(held.graph, self._symbols, {}).body()
        else:
            self._known[node.name] = held

    def returned(self) -> list[Any]:
        """Return the values that the graph returns."""
        (node,) = [each for each in self._graph.nodes if each.op == "output"]
        return [self._left(each) for each in node.args[0]]

    def _left(self, value: Any) -> Any:
        """Return the output for a value: a complex tensor is returned as its parts (..., 2)."""
        import torch

        ref = self._argument(value)
        meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
        if not isinstance(meta, torch.Tensor) or not meta.is_complex():
            return ref
        name = f"{value.name}__returned"
        if all(each.name != name for each in self._nodes):
            self._nodes.append(Node(name, TO_PARTS, (ref,), (self._parts(meta),), False))
        return Ref(name)

    def _parts(self, value: Any) -> Result:
        """Return the shape and dtype of the parts (..., 2) of a complex tensor."""
        whole = self._result(value)
        assert whole is not None, "it is a tensor"
        return Result((*whole.shape, 2), real_dtype(whole.dtype))

    def _entering(self, weights: Mapping[str, str]) -> dict[str, Node]:
        """Return the nodes that assemble complex tensors from the parts that enter the program, by
        name."""
        import torch

        values = {
            each.name: each.meta["val"] for each in self._graph.nodes if each.op == "placeholder"
        }
        values.update(self._known)
        return {
            name: Node(name, OF_PARTS, (Ref(_entry(name)),), (result,), False)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
            and value.is_complex()
            and (result := self._result(value)) is not None
        }

    def program(
        self, weights: Mapping[str, str], outputs: Iterable[Any], writes: Iterable[Write]
    ) -> Program:
        """Return the program with these outputs."""
        entering = self._entering(weights)

        def entry(name: str) -> str:
            return _entry(name) if name in entering else name

        inputs = [
            (entry(node.name), self._parts(value) if node.name in entering else result)
            for node in self._graph.nodes
            if node.op == "placeholder"
            and node.name not in weights
            and node.name not in self._known
            and (result := self._result(value := node.meta["val"])) is not None
        ]
        return Program(
            tuple(inputs),
            {entry(name): target for name, target in weights.items()},
            {entry(name): array_of(value) for name, value in self._known.items()},
            (*entering.values(), *self._nodes),
            tuple(outputs),
            tuple(writes),
            tuple(self._symbols.dims),
        ).live

    def body(self) -> Program:
        """Return the program of a graph that a node runs, with its tensor inputs in their order."""
        (node,) = [each for each in self._graph.nodes if each.op == "output"]
        (given,) = node.args
        returned = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        inputs = [
            (each.name, result)
            for each in self._graph.nodes
            if each.op == "placeholder" and (result := self._input(each)) is not None
        ]
        constants = {name: array_of(value) for name, value in self._known.items()}
        outputs = tuple(map(self._argument, returned))
        return Program(tuple(inputs), {}, constants, tuple(self._nodes), outputs).live

    def _input(self, node: Any) -> Result | None:
        """Return the shape and dtype of a body's placeholder. A number that a loop carries is a
        tensor, too."""
        if is_number(node) and not self._is_size(node):
            return Result((), number_dtype(node.meta["val"]))
        return self._result(node.meta["val"])

    def _check_operators(self) -> None:
        missing = dict.fromkeys(
            name_of(node.target) + (" of complex numbers" if is_complex(node) else "")
            for node in self._live
            if node.op == "call_function" and not self._is_known_kind(node)
        )
        if missing:
            kind = "operators" if len(missing) > 1 else "operator"
            raise UnsupportedError(f"needle does not have the {kind} {', '.join(missing)}")

    def _is_known_kind(self, node: Any) -> bool:
        if node.target is operator.getitem or self._is_size(node):
            return True
        found = complexes.knows if is_complex(node) else registry.find
        return bool(found(name_of(node.target))) or is_constant(node)

    def _read(self, node: Any) -> None:
        if self._is_size(node):
            return
        inputs = [each for each in node.all_input_nodes if not self._is_size(each)]
        if all(each.name in self._known for each in inputs) and self._fold(node):
            return
        if name_of(node.target) == WHILE_LOOP:
            return self._read_loop(node)
        value = node.meta.get("val")
        several = isinstance(value, (tuple, list))
        results = tuple(self._result(each) for each in (value if several else [value]))
        if is_number(node):
            results = (Result((), number_dtype(value)),)
        name, (args, given) = name_of(node.target), self._bound(node)
        if node.target is operator.getitem:
            name = GETITEM
        self._nodes.append(Node(node.name, name, args, results, several, path_of(node), given))

    def _read_loop(self, node: Any) -> None:
        """Read a while_loop. Its last argument is its number of iterations, if constants determine
        it."""
        condition, body, carried, extra = map(self._argument, node.args)
        values = [
            self._known.get(each.name) if isinstance(each, Ref) else each
            for each in (*carried, *extra)
        ]
        operands = [array_of(each) if hasattr(each, "dtype") else each for each in values]
        args = (condition, body, carried, extra, known_trips(condition, body, operands))
        results = tuple(map(self._result, node.meta["val"]))
        self._nodes.append(Node(node.name, WHILE_LOOP, args, results, True, path_of(node)))

    def _fold(self, node: Any) -> bool:
        """Compute a node whose inputs are known. Return False if the value cannot be kept."""
        import torch

        if is_random(node.target) or any(
            not isinstance(each, int) for each in extents_of(node.meta.get("val"))
        ):
            return False
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda each: self._value(each)
        )
        if any(isinstance(each, torch.SymInt) for each in torch.utils._pytree.tree_leaves(args)):
            return False
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        leaves = [each for each in torch.utils._pytree.tree_leaves(value)]
        if not all(isinstance(each, torch.Tensor) for each in leaves):
            return False
        if not all(is_held(each.dtype) for each in leaves):
            self._known[node.name] = value  # only other folded nodes can use it
            return True
        if sum(each.numel() for each in leaves) > _LARGEST_FOLDED:
            return False
        self._known[node.name] = value
        return True

    def _value(self, node: Any) -> Any:
        """Return the known value of a node, which is a tensor or a size."""
        return self._known[node.name] if node.name in self._known else node.meta["val"]

    def _bound(self, node: Any) -> tuple[tuple[Any, ...], tuple[tuple[int, str], ...]]:
        """Return the arguments of a node's operator, and the (position, name) of each argument that
        is not at its default."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return tuple(map(self._argument, node.args)), ()
        args, given = [], []
        for position, each in enumerate(schema.arguments):
            if position < len(node.args) and not each.kwarg_only:
                value, is_given = node.args[position], True
            else:
                is_given = each.name in node.kwargs
                value = node.kwargs[each.name] if is_given else each.default_value
            read = self._argument(value)
            args.append(read)
            if is_given and not same(read, self._argument(each.default_value)):
                given.append((position, each.name))
        return tuple(args), tuple(given)

    def _argument(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node) and value.name in self._bodies:
            return self._bodies[value.name]
        if isinstance(value, torch.fx.Node):
            is_size = self._is_size(value)
            return self._symbols.size(value.meta["val"]) if is_size else Ref(value.name)
        if isinstance(value, (tuple, list)):
            return tuple(map(self._argument, value))
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._symbols.size(value)
        if isinstance(value, (torch.layout, torch.device, torch.memory_format, torch.Generator)):
            return None
        return value

    def _is_size(self, node: Any) -> bool:
        """Return whether a node computes a number from sizes alone. A number computed from values
        is read as a 0-d tensor."""
        if not is_number(node):
            return False
        value = node.meta["val"]
        return not hasattr(value, "node") or self._symbols.knows(value)

    def _result(self, value: Any) -> Result | None:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        return Result(self._symbols.shape(value), dtype_name(value.dtype))


def _entry(name: str) -> str:
    """Return the name of the parts of a complex tensor that enters a program."""
    return f"{name}__parts"
