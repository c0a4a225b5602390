"""Trace a model: run it without data and record its ops.

While tracing, tensors have a shape and dtype but no value; an op infers its result's spec and does
not compute. Reading a value, drawing random numbers and writing to the model raise TraceError, so
the graph does not depend on data and the model stays unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ..autograd.dispatch import explain
from ..autograd.node import Node
from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, Value, handle
from ..backend_ndarray.dtypes import is_floating
from ..common import tree
from ..common.state import state
from ..common.user_code import user_line
from ..errors import TraceError
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..op import Op
from ..sizes.dims import Expression
from .captures import Surroundings, changed_links, found_in
from .graph import Graph, Leaf, flatten_call, flatten_outputs, positional_names
from .input_specs import symbolic_specs
from .weights import Baked, Weights, baked_in, tensors_of
from .writes import Variable, Writing

__all__ = ["Graph", "Leaf", "Node", "Trace", "trace", "trace_flat"]


class Trace(Writing):
    """The state of one trace. Ops, tensors and modules access it as `state.trace`.

    With `writes`, writes to tensors that outlive the traced function become results of the graph;
    otherwise such writes are refused.
    """

    def __init__(self, has_dims: bool = False, writes: bool = False) -> None:
        self._leaves: dict[int, Leaf] = {}  # by id of the tensor
        self._tensors: dict[int, Any] = {}  # the leaves' tensors, by id
        self._names: dict[int, str] = {}  # names of the models' parameters and buffers, by id
        self._others: dict[int, list[str]] = {}  # their other names, by id
        self._paths: dict[int, str] = {}  # paths of modules, by id
        self._held: list[Any] = []  # keeps ids from being reused
        self._stack: list[str] = []
        self._state: list[tuple[Module, dict[str, Any]]] = []
        self._closed_over = 0
        super().__init__(writes)
        self.has_dims = has_dims
        self.recorded = 0  # number of ops, including those that nothing reads

    def adopt(self, model: Module, prefix: str) -> None:
        """Turn the parameters and buffers of `model` into leaves whose names start with `prefix`,
        and record its modules' paths."""
        for path, module in model.named_modules():
            self._paths.setdefault(id(module), (prefix + path).rstrip("."))
            self._state.append((module, dict(vars(module))))
        for name, tensor in model.named_tensors():
            if self._names.setdefault(id(tensor), prefix + name) != prefix + name:
                self._others.setdefault(id(tensor), []).append(prefix + name)
        self._held.append(model)

    def adopt_tensor(self, tensor: Tensor, name: str) -> None:
        """Turn a `tensor` from outside the traced function into a leaf called `name`."""
        self._names.setdefault(id(tensor), name)
        self._held.append(tensor)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Trace on the calling thread inside the context. On exit, assignments to modules are
        undone."""
        state.trace = self
        try:
            yield
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise
        finally:
            state.trace = None
            for module, before in self._state:
                now = vars(module)
                for name in [n for n in now if n not in before]:
                    del now[name]
                now.update(before)

    # Called by ops, tensors and modules

    def apply(self, op: Op, inputs: tuple[Any, ...]) -> Any:
        """Record a call of `op` with `inputs` and return its result. Raises the errors of `infer`,
        and TraceError if an extent of the result can be 0 for some size of a dim."""
        if (op.arity not in (None, len(inputs))) or not all(isinstance(x, Value) for x in inputs):
            explain(op, inputs)
        nodes = tuple([x.node for x in inputs])
        self.check_current(nodes)
        specs = [n.spec for n in nodes]
        try:
            if self.has_dims:
                op = op.decided(*specs)
            spec = op.infer(*specs)
        except TraceError as error:  # the op needs a size as a number
            raise TraceError(f"{op.name}: {error}") from None
        self.recorded += 1
        node = Node(spec, False, self.where)
        if self.has_dims:
            for each in node.specs:
                self._check_extents(op, each)
        node.op = op
        node.made = self.recorded
        node.input_nodes = nodes
        node.requires_grad = (
            state.grad
            and any(n.requires_grad for n in nodes)
            and any(is_floating(s.dtype) for s in node.specs)
        )
        return handle(node, None)

    def _check_extents(self, op: Op, spec: Spec) -> None:
        """Raise TraceError if an extent may be below 1, because code for empty tensors differs."""
        for n in spec.shape:
            if isinstance(n, Expression) and n.bounds[0] < 1:
                dims = ", ".join(sorted(dim.described() for dim in n.dims))
                raise TraceError(
                    f"{op.name}: tracing: {self.here} makes a {spec} whose extent {n} can be "
                    f"{n.bounds[0]}, with {dims}; an extent must be 1 or more at every size, so "
                    "give the Dim a larger min"
                )

    def leaf(self, tensor: Value) -> Node:
        """Return the node that represents a `tensor` with a value."""
        now = self._now.get(id(tensor))
        return self._first(tensor).node if now is None else now

    def _first(self, tensor: Value) -> Leaf:
        """Return the leaf that represents a tensor as it was when the call began."""
        leaf = self._leaves.get(id(tensor))
        if leaf is None:
            own = tensor._node
            node = Variable(tensor.spec, own is not None and own.requires_grad)
            node.attached = None if own is None else own.attached
            name = self._name(tensor) or "const"
            others = tuple(self._others.get(id(tensor), ()))
            leaf = self._leaves[id(tensor)] = Leaf(name, node, tensor._data, others)
            self._tensors[id(tensor)] = tensor
        return leaf

    def check_read(self, tensor: Value) -> None:
        """Raise TraceError unless `tensor` is a constant."""
        name = self._name(tensor)
        if name is not None:
            what = f"{tensor.spec} parameter or buffer {name!r}"
        elif tensor._data is None:
            what = self._origin(tensor)
        else:
            return
        raise TraceError(
            f"tracing: {self.here} reads the value of the {what}; values are not known while "
            f"tracing, so nothing may depend on them{user_line()}"
        )

    def refuse_random(self, what: str) -> None:
        """Raise TraceError, because the random numbers of `what` would become constants."""
        raise TraceError(
            f"tracing: {self.here} draws random numbers ({what}); they would become constants. "
            f"Pass them in as an input{user_line()}"
        )

    def gradients(self) -> list[tuple[str, Node]]:
        """Return the gradients of parameters and buffers, each with its tensor's name."""
        named = [leaf for key, leaf in self._leaves.items() if key in self._names]
        nodes: list[tuple[str, Any]] = [(leaf.name, leaf.node) for leaf in named]
        grads = [(name, node.last_grad) for name, node in nodes]
        return [(name, grad.node) for name, grad in grads if grad is not None]

    @contextlib.contextmanager
    def entered(self, module: Module) -> Iterator[None]:
        """Inside the context, record ops with the path of `module`."""
        path = self._paths.get(id(module))
        if path is None:
            path = ".".join(filter(None, (self.where, type(module).__name__)))
        self._stack.append(path)
        try:
            yield
        finally:
            self._stack.pop()

    @contextlib.contextmanager
    def within(self, path: str) -> Iterator[None]:
        """Inside the context, record ops under `path`, below the path of the running module."""
        self._stack.append(".".join(filter(None, (self.where, path))))
        try:
            yield
        finally:
            self._stack.pop()

    @property
    def where(self) -> str:
        """The path of the running module."""
        return self._stack[-1] if self._stack else ""

    def _name(self, tensor: Value) -> str | None:
        name = self._names.get(id(tensor))
        if name is None and isinstance(tensor, Parameter):
            # A Parameter that the search did not reach.
            name = self._names[id(tensor)] = f"param_{self._closed_over}"
            self._closed_over += 1
            self._held.append(tensor)
        return name

    def _origin(self, tensor: Value) -> str:
        node = tensor._node
        assert node is not None
        if node.op is None:
            return f"{tensor.spec} input"
        scope = f" in module {node.scope!r}" if node.scope else ""
        return f"{tensor.spec} tensor made by op {node.op.name!r}{scope}"

    @property
    def here(self) -> str:
        return f"module {self.where!r}" if self.where else "the traced function"

    def leaves(self, params: bool) -> list[Leaf]:
        """If `params`, return the leaves that are parameters and buffers, in the models' order;
        otherwise return the constants, in order of use."""
        order = {key: i for i, key in enumerate(self._names)}
        found = [(key, leaf) for key, leaf in self._leaves.items() if (key in order) is params]
        if params:
            found.sort(key=lambda item: order[item[0]])
        return [leaf for _, leaf in found]

    def weights(
        self,
        graph: Graph,
        find: Callable[[], Surroundings],
        bake: Callable[[Surroundings], Baked] | None,
    ) -> Weights:
        """Return the weights of the traced `graph`. `find` and `bake` are the arguments of
        Weights."""
        tensor = {id(leaf): self._tensors[key] for key, leaf in self._leaves.items()}
        known = {name for name, _, _ in tensors_of(find())}
        unfound = {leaf.name: tensor[id(leaf)] for leaf in graph.params if leaf.name not in known}
        constants = [tensor[id(leaf)] for leaf in graph.constants]
        names = [leaf.name for leaf in graph.params]
        same = {name: each for name, each in self._written.items() if name in known}
        return Weights(find, names, unfound, constants, bake, same)


def trace(
    fn: Module | Callable[..., Any],
    /,
    *args: Any,
    training: bool = False,
    dims: Mapping[Any, Any] | None = None,
    **kwargs: Any,
) -> Graph:
    """Return the graph of `fn(*args, **kwargs)`. Nothing is computed and no module is changed.

    Tensors, NumPy arrays, NDArrays and objects with DLPack become inputs named after the arguments,
    even if they are nested in lists, tuples and dicts; other arguments are static. If `fn` or an
    argument is a Module, its parameters and buffers are named as in state_dict. A Module whose
    `forward` does not name its inputs and outputs can name them in `call_signature`, an
    inspect.Signature, and in `result_names`.

    `dims` makes sizes of input axes symbolic: {"x": {0: Dim("n", max=64)}}. A key is an argument's
    name or position; for a tensor in a list, tuple or dict, it is the tensor's name in
    `Graph.inputs` ("xs_0", "batch_image"). An expression of dims may replace a Dim. Extents that
    depend on dims are expressions of dims (`needle.sizes.dims`).

    Raises DimError for `dims` that do not fit the inputs; ValueError for a module in train mode,
    unless `training`; TraceError if the model reads a value, draws random numbers, writes to
    itself, or needs a symbolic size as a number; and the errors of `infer` for shapes and dtypes.
    """
    owner = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    signature = _signature(fn)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"trace: {getattr(fn, '__name__', type(fn).__name__)}: {error}") from None
    modules = dict(_modules(signature, args, kwargs))
    for module in ([owner] if isinstance(owner, Module) else []) + list(modules.values()):
        _check_mode(module, training)
    input_tree, inputs = flatten_call(signature, args, kwargs)

    def call(tensors: Sequence[Tensor]) -> Any:
        abstract = iter(tensors)
        call_args = [tree.unflatten(t, abstract) for t in input_tree["args"]]
        call_kwargs = {n: tree.unflatten(t, abstract) for n, t in input_tree["kwargs"].items()}
        return fn(*call_args, **call_kwargs)

    positions = positional_names(signature, len(args))
    graph = trace_flat(call, inputs, lambda: found_in(fn, modules), dims=dims, positions=positions)
    graph.input_tree, graph.signature = input_tree, signature
    graph.output_names = getattr(fn, "result_names", ())
    return graph


def trace_flat(
    call: Callable[[Sequence[Tensor]], Any],
    inputs: Sequence[tuple[str, Any]],
    find: Callable[[], Surroundings],
    follow_all: bool = False,
    dims: Mapping[Any, Any] | None = None,
    positions: Sequence[str] = (),
    writes: bool = False,
) -> Graph:
    """Return the graph of `call`, a function of a list of tensors, for the named examples `inputs`.
    `dims` has the form that `trace` takes; `positions` are the names of positional arguments.

    `find`, like `found_in`, returns the outer values that `call` can read. With `follow_all`,
    `Graph.weights` follows all Tensors among them, not only Parameters and buffers, and its
    `follow` also refuses changes to outer Python values that the trace has read. Raises TraceError
    if the gradient of such a Tensor is computed but not returned. With `writes`, `Graph.effects`
    describes what calls write.
    """
    if state.trace is not None:
        raise TraceError("trace: already tracing on this thread")
    run = Trace(bool(dims), writes)
    surroundings = find()
    for name, (item, _) in surroundings.items():
        run.labels[id(item)] = name
        if isinstance(item, Module):
            run.adopt(item, f"{name}." if name else "")
        elif isinstance(item, Parameter):
            run.adopt_tensor(item, name)
    if follow_all:
        for name, tensor, _ in tensors_of(surroundings):
            run.adopt_tensor(tensor, name)

    tensors = [(name, as_tensor(example)) for name, example in inputs]
    specs = symbolic_specs([(name, t.spec) for name, t in tensors], positions, dims or {})
    leaves = []
    for (name, tensor), spec in zip(tensors, specs, strict=True):
        node = Node(spec, tensor.requires_grad, "")
        leaves.append(Leaf(name, node, tensor.realize_cached_data()))
    with run.running():
        output_tree, outputs = flatten_outputs(call([handle(leaf.node, None) for leaf in leaves]))
        _check_outputs(output_tree)
        nodes = [as_tensor(value).node for _, value in outputs]
        gradients = run.gradients()
        leaves, nodes = run.end(leaves, nodes)
        count = len(leaves) - len(run.effects.kept)
        flat = {"args": [tree.LEAF] * count, "kwargs": {}}
    graph = Graph(leaves, run.leaves(True), run.leaves(False), nodes, flat, output_tree, None)
    graph.effects = run.effects
    if run.effects.kept:
        # Keep the order in which the function computes: it computes the gradients of a layer's
        # weights and inputs one after the other. In the order of the results, values of the
        # forward pass would live longer.
        graph.nodes.sort(key=lambda node: node.made)
    if follow_all:
        _check_gradients(gradients, graph, run.stepped)
    written = changed_links(surroundings) if follow_all else {}
    bake = functools.partial(baked_in, written=written) if follow_all else None
    graph.weights = run.weights(graph, find, bake)
    return graph


def as_tensor(value: Any) -> Tensor:
    """Return `value` as a Tensor. `is_tensor` must be true for it."""
    return value if isinstance(value, Tensor) else Tensor(value, requires_grad=False)


def _modules(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Module]]:
    names = [*positional_names(signature, len(args)), *kwargs]
    both = zip(names, (*args, *kwargs.values()), strict=True)
    return [(name, value) for name, value in both if isinstance(value, Module)]


def _signature(fn: Any) -> inspect.Signature | None:
    if isinstance(fn, Module):
        given = getattr(fn, "call_signature", None)
        if given is not None:
            return given
        fn = fn.forward
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None


def _check_mode(model: Module, training: bool) -> None:
    if training:
        return
    for path, module in model.named_modules():
        if module.training:
            what = f"module {path!r}" if path else "the model"
            raise ValueError(
                f"trace: {what} ({type(module).__name__}) is in train mode; call model.eval() "
                "first, or pass training=True"
            )


def _check_outputs(output_tree: Any) -> None:
    if output_tree == tree.LEAF:
        return
    ((kind, inside),) = output_tree.items()
    if kind == "static":
        if inside is not None:
            raise TypeError(
                f"trace: the output holds a {type(inside).__name__}; tensors, None and lists, "
                "tuples and dicts of them can be returned"
            )
        return
    for item in inside.values() if kind == "dict" else inside:
        _check_outputs(item)


def _check_gradients(
    gradients: Sequence[tuple[str, Node]], graph: Graph, stepped: Collection[str]
) -> None:
    """Raise TraceError for a gradient that no output depends on, because it would be lost."""
    used = {id(node) for node in graph.nodes}
    for name, node in gradients:
        if id(node) not in used and name not in stepped:
            raise TraceError(
                f"tracing: the gradient in {name}.grad would be lost, because compiled code "
                "returns gradients and sets none: return it (as in `return loss, [p.grad for p in "
                "model.parameters()]`), or compute only what you return (needle.autograd.grad)"
            )
