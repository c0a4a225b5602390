"""What tracing gives: a graph of ops with named leaves, ready to be translated."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from typing import Any

from . import tree
from .autograd import Node
from .backend_ndarray import NDArray
from .engine import topological_order
from .errors import TraceError
from .op import Op


@dataclasses.dataclass(eq=False)
class Leaf:
    """An input, a parameter (or buffer), or a constant of a graph."""

    name: str
    node: Node
    value: NDArray | None = dataclasses.field(repr=False)  # None for inputs

    @property
    def spec(self) -> Any:
        """Shape, dtype and device."""
        return self.node.spec


@dataclasses.dataclass(eq=False)
class Graph:
    """Ops in topological order between named leaves and outputs.

    `nodes` holds every node that the outputs depend on, leaves (op None) included; `inputs` also
    those that nothing depends on. One node may be several outputs, or a leaf. `params` are called
    as in the model's state_dict and stand in its order; only those that are used.
    """

    inputs: list[Leaf]
    params: list[Leaf]
    constants: list[Leaf]
    outputs: list[Node]
    input_tree: dict[str, Any]
    output_tree: Any
    signature: inspect.Signature | None
    nodes: list[Node] = dataclasses.field(init=False)

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

    def flatten_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors among the arguments of a call, in the order of `inputs`.

        TypeError when they are nested otherwise than in the example, or when an argument that is
        no tensor has another value.
        """
        bound = bind(self.signature, args, kwargs)
        found, leaves = flatten_arguments(self.signature, bound)
        wrong = next(
            (d for n in found if (d := tree.difference(self.input_tree.get(n), found[n], n))), None
        )
        if wrong or list(found) != list(self.input_tree):
            wrong = wrong or f"got {list(found)}, expected {list(self.input_tree)}"
            raise TypeError(f"arguments differ from the traced ones: {wrong}")
        return [value for _, value in leaves]

    def unflatten_outputs(self, values: list[Any]) -> Any:
        """What the model returns, with `values` (in the order of `outputs`) for its tensors."""
        if len(values) != len(self.outputs):
            raise ValueError(f"{len(values)} values for {len(self.outputs)} outputs")
        return tree.unflatten(self.output_tree, iter(values))

    def fingerprint(self) -> str:
        """SHA-256 of all that determines the compiled program: ops, their attributes and rules,
        edges, shapes, dtypes, names, static arguments, constants. Not the parameters' values."""
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
                add(kind, number.get(id(leaf.node)), leaf.name, leaf.spec)
                if kind == "constant" and leaf.value is not None:
                    digest.update(leaf.value.numpy().tobytes())
        for node in self.nodes:
            if node.op is not None:
                edges = [number[id(source)] for source in node.input_nodes]
                add(node.op.name, _attributes(node.op), edges, *node.specs, rules_digest(node.op))
        add("outputs", [number[id(node)] for node in self.outputs])
        add(self.input_tree, self.output_tree)
        return digest.hexdigest()


def bind(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name. TypeError as for a call."""
    if signature is None:
        return {**{f"input_{i}": x for i, x in enumerate(args)}, **kwargs}
    return dict(signature.bind(*args, **kwargs).arguments)


def unbind(
    signature: inspect.Signature | None, arguments: dict[str, Any], positional: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) for a call with these arguments; the inverse of `bind`."""
    if signature is None:
        values = list(arguments.values())
        return tuple(values[:positional]), dict(list(arguments.items())[positional:])
    bound = signature.bind_partial()
    bound.arguments.update(arguments)
    return bound.args, bound.kwargs


def flatten_arguments(
    signature: inspect.Signature | None, arguments: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Trees by argument name, and the named tensors; **kwargs lend their own names."""
    trees: dict[str, Any] = {}
    leaves: list[tuple[str, Any]] = []
    for name, value in arguments.items():
        kind = None if signature is None else signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found: Any = {}
            for key, item in value.items():
                found[key], more = tree.flatten(item, key, is_tensor)
                leaves += more
        else:
            found, more = tree.flatten(value, name, is_tensor)
            leaves += more
        trees[name] = found
    return trees, leaves


def is_tensor(x: Any) -> bool:
    """Whether an argument is an input of the graph: a Tensor, NDArray, NumPy array or the like."""
    return hasattr(type(x), "__dlpack__")


def _distinct_names(leaves: list[Leaf], taken: set[str]) -> None:
    for leaf in leaves:
        name, i = leaf.name, 1
        while leaf.name in taken:
            i += 1
            leaf.name = f"{name}_{i}"
        taken.add(leaf.name)


def _attributes(op: Op) -> list[tuple[str, str]]:
    return [(f.name, repr(getattr(op, f.name))) for f in dataclasses.fields(op)]  # type: ignore


def rules_digest(op: Op) -> str:
    """SHA-256 of the code that says what `op` compiles to: an edited rule is another rule."""
    cls = type(op)
    rules = [getattr(cls, name) for name in ("infer", "emit_te", "emit")]
    return _rules_digest(cls, *(getattr(rule, "__code__", rule) for rule in rules))


@functools.lru_cache(maxsize=None)
def _rules_digest(cls: type[Op], *rules: Any) -> str:
    from .ops import _te

    digest = hashlib.sha256()
    for thing in (*rules, *cls.__mro__[:-1], _te):
        try:
            text = inspect.getsource(thing)
        except (OSError, TypeError):
            # No source (typed at a prompt, or frozen): the byte code stands for it.
            code = getattr(thing, "co_code", b"")
            text = f"{getattr(thing, '__qualname__', thing.__class__)}{code!r}"
        digest.update(text.encode())
    return digest.hexdigest()
