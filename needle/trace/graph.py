"""The result of tracing: a graph of ops with named leaves, ready to be translated."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..autograd.engine import topological_order
from ..autograd.node import Node
from ..autograd.tensor import TensorTuple
from ..common import tree
from ..errors import TraceError
from ..op.subgraph import Body
from ..sizes.dims import Dim, Expression, dims_of
from ..sizes.extents import at_sizes
from . import library_code
from .leaf import Leaf
from .weights import Weights
from .writes import Effects


@dataclasses.dataclass(eq=False)
class Graph:
    """Ops in topological order between named leaves and outputs.

    `nodes` has every node that the outputs depend on, including leaves (op None); `inputs` also has
    unused inputs. A node may be several outputs, and an output may be a leaf. `params` are the used
    parameters and buffers, with the names and the order of the model's state_dict. `input_tree` is
    {"args": [tree, ...], "kwargs": {name: tree}} of the traced call; needle.common.tree defines a
    tree.
    """

    inputs: list[Leaf]
    params: list[Leaf]
    constants: list[Leaf]
    outputs: list[Node]
    input_tree: dict[str, Any]
    output_tree: Any
    signature: inspect.Signature | None
    output_names: tuple[str, ...] = ()  # if the model names its outputs
    nodes: list[Node] = dataclasses.field(init=False)
    weights: Weights = dataclasses.field(init=False)  # the current `params`
    # The meaning of the last inputs and outputs, and the side effects of a call.
    effects: Effects = dataclasses.field(init=False, default_factory=Effects)

    def __post_init__(self) -> None:
        self.nodes = topological_order(self.outputs)
        used = {id(node) for node in self.nodes}
        self.params = [leaf for leaf in self.params if id(leaf.node) in used]
        self.constants = [leaf for leaf in self.constants if id(leaf.node) in used]
        for i, leaf in enumerate(self.constants):
            leaf.name = f"const_{i}"
        _distinct_names(self.inputs, {leaf.name for leaf in (*self.params, *self.constants)})
        known = {id(leaf.node) for leaf in (*self.inputs, *self.params, *self.constants)}
        for node in self.nodes:
            if node.op is None and id(node) not in known:
                raise TraceError(f"tracing: a tensor {node.spec} comes from another trace")

    @property
    def dims(self) -> list[Dim]:
        """The dims that extents of inputs depend on, sorted by name."""
        found = dims_of(n for leaf in self.inputs for n in leaf.spec.shape)
        return sorted(found, key=lambda dim: dim.name)

    def at(self, sizes: Mapping[Dim, Any]) -> Graph:
        """Return the graph with each of its dims replaced by a number or an expression of other
        dims from `sizes`. The new graph has the same nodes, one for one, with other shapes and
        attributes. A graph without dims is returned unchanged. Raises the errors of `infer`."""
        if not self.dims:
            return self
        new_nodes = {leaf.node: leaf.node for leaf in (*self.params, *self.constants)}
        inputs = []
        for leaf in self.inputs:
            new_nodes[leaf.node] = node = Node(
                at_sizes(leaf.spec, sizes), leaf.node.requires_grad, ""
            )
            inputs.append(dataclasses.replace(leaf, node=node))
        for node in self.nodes:
            if node.op is None:
                continue
            op = at_sizes(node.op, sizes)
            sources = tuple(new_nodes[source] for source in node.input_nodes)
            spec = op.infer(*[source.spec for source in sources])
            new_nodes[node] = new = Node(spec, node.requires_grad, node.scope)
            new.op, new.input_nodes = op, sources
        params, constants = list(self.params), [dataclasses.replace(c) for c in self.constants]
        outputs = [new_nodes[node] for node in self.outputs]
        trees = self.input_tree, self.output_tree, self.signature
        graph = Graph(inputs, params, constants, outputs, *trees, self.output_names)
        graph.weights, graph.effects = self.weights, self.effects
        return graph

    def flatten_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the tensors among the arguments `args` and `kwargs` of a call, in the order of
        `inputs`.

        Arguments may be given by position or by name. Raises TypeError if their nesting differs
        from the nesting of the traced call, or if a static argument has another value.
        """
        args, kwargs = respell(self.signature, args, kwargs, len(self.input_tree["args"]))
        found, leaves = flatten_call(self.signature, args, kwargs)
        for kind in ("args", "kwargs"):
            tag = "tuple" if kind == "args" else "dict"
            wrong = tree.difference({tag: self.input_tree[kind]}, {tag: found[kind]}, kind)
            if wrong:
                raise TypeError(
                    f"the arguments differ from the arguments of the traced call: {wrong}"
                )
        return [value for _, value in leaves]

    def unflatten_outputs(self, values: Sequence[Any]) -> Any:
        """Build the model's return value with `values` (in the order of `outputs`) as its tensors.
        Raises ValueError for any other number of values."""
        if len(values) != len(self.outputs):
            raise ValueError(f"{len(values)} values for {len(self.outputs)} outputs")
        return tree.unflatten(self.output_tree, iter(values))

    def flatten_outputs(self, value: Any) -> list[Any]:
        """Return the tensors in the model's return value `value`, in the order of `outputs`."""
        _, leaves = flatten_outputs(value)
        return [leaf for _, leaf in leaves]

    def fingerprint(self) -> str | None:
        """Return the SHA-256 of everything that determines the compiled program: ops, their
        attributes, edges, shapes, dtypes, names, static arguments and constants. Parameter values
        are not included, nor are the rules of needle's own ops, which needle's sources determine.

        Return None if the SHA-256 would not identify the program: an op, possibly in a loop's body,
        has a class or a rule outside needle, or an attribute whose text may not be unique."""
        if not _Known().ops([node.op for node in self.nodes if node.op is not None]):
            return None
        digest = hashlib.sha256()

        def add(*parts: Any) -> None:
            digest.update("\x1f".join(map(str, parts)).encode() + b"\x1e")

        number = {id(node): i for i, node in enumerate(self.nodes)}
        for kind, leaves in (
            ("input", self.inputs),
            ("param", self.params),
            ("constant", self.constants),
        ):
            for leaf in leaves:
                add(kind, number.get(id(leaf.node)), leaf.name, *leaf.others, leaf.spec)
                if kind == "constant":
                    digest.update(leaf.value.numpy().tobytes())
        for dim in self.dims:
            add("dim", dim.described())
        for node in self.nodes:
            if node.op is not None:
                edges = [number[id(source)] for source in node.input_nodes]
                add(type(node.op).__module__, repr(node.op), edges, *node.specs)
        add("outputs", [number[id(node)] for node in self.outputs], *self.output_names)
        if self.effects.kept or self.effects.fed:
            add("effects", len(self.effects.fed), *[slot.name for slot in self.effects.kept])
        for part in (*self.input_tree["args"], self.output_tree):
            add(tree.text(part))
        for name, part in self.input_tree["kwargs"].items():
            add(name, tree.text(part))
        return digest.hexdigest()


def respell(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same call with `count` of the arguments `args` and `kwargs` given by position, as
    far as the `signature` allows.

    Raises TypeError for arguments that the signature does not accept.
    """
    if signature is None:
        return args, kwargs
    signature.bind(*args, **kwargs)
    names = list(signature.parameters)
    while len(args) < count and len(args) < len(names) and names[len(args)] in kwargs:
        args, kwargs = (
            (*args, kwargs[names[len(args)]]),
            {k: v for k, v in kwargs.items() if k != names[len(args)]},
        )
    if len(args) > count and not any(
        p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()
    ):
        kwargs = {**dict(zip(names[count:], args[count:], strict=False)), **kwargs}
        args = args[:count]
    return args, kwargs


def flatten_call(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return ({"args": trees, "kwargs": trees by name}, named tensors) of a call with `args` and
    `kwargs`.

    An argument is named after its parameter in the `signature`; for *xs the names are xs_0, xs_1,
    ...
    """
    leaves: list[tuple[str, Any]] = []

    def flat(value: Any, name: str) -> Any:
        found, more = tree.flatten(value, name, is_tensor)
        leaves.extend(more)
        return found

    names = positional_names(signature, len(args))
    return {
        "args": [flat(value, name) for name, value in zip(names, args, strict=True)],
        "kwargs": {name: flat(value, name) for name, value in kwargs.items()},
    }, leaves


def positional_names(signature: inspect.Signature | None, count: int) -> list[str]:
    """Return the names of the parameters that take the first `count` positional arguments."""
    names: list[str] = []
    for parameter in signature.parameters.values() if signature else ():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return names[:count] + [f"{parameter.name}_{i}" for i in range(count - len(names))]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count] + [f"input_{i}" for i in range(len(names), count)]


def flatten_outputs(value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Return (tree, named tensors) of a model's return value `value`. A TensorTuple counts as a
    tuple."""
    return tree.flatten(_untuple(value), "output", is_tensor)


def _untuple(value: Any) -> Any:
    if isinstance(value, TensorTuple):
        return value.tuple()
    if isinstance(value, dict):
        return {key: _untuple(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(_untuple(item) for item in value)
    return value


def is_tensor(x: Any) -> bool:
    """Return whether an argument `x` becomes an input of the graph, as Tensors, NDArrays and NumPy
    arrays do."""
    return hasattr(type(x), "__dlpack__")


def _distinct_names(leaves: list[Leaf], taken: set[str]) -> None:
    for leaf in leaves:
        name, i = leaf.name, 1
        while leaf.name in taken:
            i += 1
            leaf.name = f"{name}_{i}"
        taken.add(leaf.name)


class _Known:
    """A check that needle's sources and an op's text determine the op."""

    def __init__(self) -> None:
        self._classes: dict[type, bool] = {}

    def ops(self, ops: Iterable[Any]) -> bool:
        """Return whether needle's sources and the ops' texts determine the classes and attributes
        of `ops`."""
        return all(
            self._class(type(op))
            and all(self._attribute(getattr(op, f.name)) for f in dataclasses.fields(op))
            for op in ops
        )

    def _class(self, cls: type) -> bool:
        """Return whether a class and its methods are needle's. Other code may have replaced
        methods."""
        if cls not in self._classes:
            self._classes[cls] = all(
                library_code.is_ours(base.__module__)
                and all(
                    library_code.is_ours(value.__globals__.get("__name__"))
                    for name, value in vars(base).items()
                    if isinstance(value, types.FunctionType) and not name.startswith("__")
                )
                for base in cls.__mro__[:-1]
            )
        return self._classes[cls]

    def _attribute(self, value: Any) -> bool:
        if isinstance(value, Body):
            return self.ops(step.op for step in value.steps)
        if isinstance(value, tuple):
            is_needles = type(value) is tuple or library_code.is_ours(type(value).__module__)
            return is_needles and all(map(self._attribute, value))
        return type(value) in _PLAIN or isinstance(value, Expression)


_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
