"""Record what a traced function writes to tensors that outlive the call.

A write changes nothing while tracing. The trace records the tensor's new value, so that later reads
see it; the last value is a result of the graph. `Effects` describes what a call of compiled code
does with these results, and lists the Python actions around it. For example, a learning rate is
read before each call and passed to the code as an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..autograd.node import Node
from ..autograd.tensor import Tensor, Value
from ..backend_ndarray import NDArray
from ..common.state import last_gradient
from ..common.user_code import user_line
from ..errors import TraceError
from ..nn.module import Module
from ..ops.elementwise import Detach
from .leaf import Leaf

_grad: Any = Node.grad  # type: ignore[misc]  # the slot, which properties of the classes below hide


class Variable(Node):
    """A leaf of a trace. `begins` is the function's first use of the leaf's gradient: "read" (for
    example, to add to it), "set", or None."""

    __slots__ = ("begins",)

    def __init__(self, spec: Any, requires_grad: bool) -> None:
        self.begins: str | None = None
        super().__init__(spec, requires_grad, "")
        self.begins = None  # the constructor has set the gradient

    @property
    def grad(self) -> Any:
        if self.begins is None:
            self.begins = "read"
        return _grad.__get__(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        if self.begins is None:
            self.begins = "set"
        _grad.__set__(self, value)

    @property
    def last_grad(self) -> Any:
        """The gradient, read without setting `begins`."""
        return _grad.__get__(self)


class Rewritten(Node):
    """A tensor after a write. For gradients, it is a leaf that has the gradient of the tensor's
    `first` node. It stands for the node of the written `value`, whose memory it may share."""

    __slots__ = ("first", "shares", "value")

    def __init__(self, first: Node, value: Node, shares: bool = False) -> None:
        # Does not call Node's constructor, which would set the gradient of `first`.
        self.first, self.value, self.op, self.input_nodes = first, value, None, ()
        self.shares = shares
        self.saved = self.output = None
        self.spec, self.scope, self.requires_grad = first.spec, first.scope, first.requires_grad
        self.made, self.freed, self.attached = 0, False, first.attached

    @property
    def grad(self) -> Any:
        return self.first.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self.first.grad = value


def resolve(roots: Sequence[Node]) -> list[Node]:
    """Return the nodes that `roots` represent. Throughout the graph that these depend on, replace
    each input that is a Rewritten by the node of its value."""
    nodes = [_behind(root) for root in roots]
    seen: set[int] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if any(type(source) is Rewritten for source in node.input_nodes):
            node.input_nodes = tuple([_behind(source) for source in node.input_nodes])
        pending += node.input_nodes
    return nodes


def _is_same(node: Node, leaf: Node) -> bool:
    """Return whether a node has the value that a leaf had when the call began."""
    node = _behind(node)
    while isinstance(node.op, Detach):
        node = _behind(node.input_nodes[0])
    return node is leaf


def _behind(node: Node) -> Node:
    while type(node) is Rewritten:
        node = node.value
    return node


class Slot(NamedTuple):
    """An array that outlives the call. `find` returns it, and `put` replaces it; without `put`, new
    values are written to its memory."""

    name: str
    find: Callable[[], NDArray]
    put: Callable[[NDArray], None] | None = None


class Effects:
    """The reads and writes of a traced function's call, apart from its arguments and weights.

    The last inputs of the graph are the arrays in `fed`, which it only reads, and in `kept`, whose
    new values are its last results. Each call runs all `actions` in order: the actions up to the
    last one that feeds an array run before the code, the others after it. Each of the `guards` and
    `checks` tells whether a condition of the trace still holds; the conditions of `checks` can
    change only if code other than these calls writes. `clean` are the tensors whose gradient must
    be None when a call begins; `cleared` are the tensors whose gradient a call drops.
    """

    def __init__(self) -> None:
        self.fed: list[Slot] = []
        self.kept: list[Slot] = []
        self.actions: list[Callable[[], None]] = []
        self.feeding = 0  # number of actions up to the last that feeds an array
        self.guards: list[Callable[[], bool]] = []
        self.checks: list[Callable[[], bool]] = []
        self.clean: list[tuple[str, Tensor]] = []
        self.cleared: list[Tensor] = []
        self._gradients = -1  # the count of gradients at the last check

    def __bool__(self) -> bool:
        """Return whether a call does more than compute results from its arguments and weights."""
        return any((self.kept, self.fed, self.actions, self.guards, self.checks))

    def begin(self) -> None:
        """Start a call: check and drop gradients, and run the actions that feed arrays. Raises
        TraceError if a tensor still has a gradient that compiled code would not add to."""
        if self._gradients != last_gradient[0]:
            for name, tensor in self.clean:
                if tensor.grad is not None:
                    raise TraceError(
                        f"{name}.grad is not None when the call begins, but compiled code does not "
                        "add to earlier gradients: call zero_grad() before"
                    )
            for tensor in self.cleared:
                tensor.grad = None
            self._gradients = last_gradient[0]
        for each in self.actions[: self.feeding]:
            each()

    def end(self) -> None:
        """Run the actions that follow the code of a call."""
        for each in self.actions[self.feeding :]:
            each()


class Writing:
    """The part of a trace that records writes and other side effects of a call."""

    # Attributes that the trace defines:
    _leaves: dict[int, Leaf]
    _tensors: dict[int, Any]
    _names: dict[int, str]
    _paths: dict[int, str]
    _held: list[Any]
    _name: Callable[[Value], str | None]
    _first: Callable[[Value], Leaf]
    _origin: Callable[[Value], str]
    adopt_tensor: Callable[[Tensor, str], None]

    def __init__(self, writes: bool) -> None:
        self.records_writes = writes
        self._now: dict[int, Node] = {}  # the current nodes of written tensors, by id
        self._replaced: set[int] = set()  # written tensors that get new memory, by id
        self._stale: dict[int, tuple[Node, str]] = {}  # nodes whose memory was written, by id
        self._assigned: dict[tuple[int, str], tuple[Module, str, Tensor]] = {}
        self._undo: list[Callable[[], object]] = []
        # Names of written tensors whose gradient the call sets before it reads it.
        self.stepped: set[str] = set()
        self._written: dict[str, Tensor] = {}  # the tensors of the function's effects, by name
        self._arrays: dict[tuple[int, str], Tensor] = {}  # arrays of objects that are not Modules
        self._slots: dict[int, Slot] = {}  # slots of the tensors in `_arrays`, by id
        self.labels: dict[int, str] = {}  # names of objects outside the function, by id
        self.effects = Effects()

    def write(self, tensor: Tensor, value: Tensor, replaces: bool = False) -> bool:
        """Record that `tensor` has this `value` from now on, in its own memory, or in new memory if
        the write `replaces` it. If the tensor is a constant that no op has used, the caller may
        write to it: return False and record nothing. Raises TraceError if writes are refused."""
        is_local = self._name(tensor) is None and tensor._data is not None
        if not self.records_writes or tensor._data is None:
            self.refuse_write(tensor)
            return False
        if is_local and id(tensor) not in self._leaves and value._data is not None:
            return False
        self.check_current([value.node])
        first = self._first(tensor).node
        if replaces:
            self._replaced.add(id(tensor))
        else:
            self.overwritten(self._now.get(id(tensor), first), self._name(tensor) or "a constant")
        self._now[id(tensor)] = Rewritten(first, value.node, replaces)
        return True

    def overwritten(self, node: Node, name: str) -> None:
        """Record that a write to the tensor `name` overwrites the memory of the value of `node`."""
        self._stale[id(node)] = node, name

    def check_current(self, nodes: Iterable[Node]) -> None:
        """Raise TraceError if the value of one of `nodes` may be in memory that was overwritten.
        Eager code would read the new values, compiled code the old ones."""
        pending, seen = list(nodes) if self._stale else [], set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if id(node) in self._stale:
                raise TraceError(
                    f"tracing: {self.here} reads a tensor made before a write to "
                    f"{self._stale[id(node)][1]}, whose memory it may share: take it after the "
                    f"write, or a clone() before{user_line()}"
                )
            if isinstance(node, Rewritten) and node.shares:
                pending.append(node.value)
            elif node.op is not None and node.op.may_share:
                pending += node.input_nodes

    @property
    def here(self) -> str:
        """A description of the running module or function, for error messages."""
        raise NotImplementedError

    def set_requires_grad(self, tensor: Tensor, value: bool) -> None:
        """Make a `tensor` of the trace a leaf that gets a gradient. Raises TraceError for a tensor
        that outlives the traced function, and if `value` is False."""
        node = tensor._node
        if tensor._data is not None or node is None or not value:
            self.refuse_write(tensor)
            raise TraceError(
                f"tracing: {self.here} changes whether a tensor requires a gradient{user_line()}"
            )
        tensor._node = Rewritten(Variable(node.spec, True), node, shares=True)

    def refuse_write(self, tensor: Value) -> None:
        """Raise TraceError unless `tensor` is a constant that no op has used."""
        name = self._name(tensor)
        if name is not None:
            what = f"{name!r}"
        elif tensor._data is None:
            what = f"the {self._origin(tensor)}"
        elif id(tensor) in self._leaves:
            what = "a constant that is in use"
        else:
            return
        raise TraceError(f"tracing: {self.here} writes to {what}{self._unwritten()}")

    def owner(self, tensor: Tensor) -> Tensor | None:
        """If `tensor` is a leaf or a leaf's gradient, or is detached from one, return that leaf or
        gradient. Return None for any other result of an op. Raises TraceError for an argument, for
        a leaf that has been written since, and for a gradient that several leaves share."""
        node = tensor.node
        while isinstance(node.op, Detach):
            (node,) = node.input_nodes
        if node.op is not None:
            gradients = [
                grad
                for leaf in self._leaves.values()
                if isinstance(leaf.node, Variable) and (grad := leaf.node.last_grad) is not None
                if grad is tensor or (node is not tensor.node and grad.node is node)
            ]
            if len(gradients) > 1:
                self.refuse_write(tensor)
            return gradients[0] if gradients else None
        for key, leaf in self._leaves.items():
            if self._now.get(key, leaf.node) is node:
                found: Tensor = self._tensors[key]
                return found
        self.refuse_write(tensor)
        return None

    def assign(self, module: Module, name: str, value: Any) -> None:
        """Record that a tensor `value` is assigned to the attribute `name` of a traced `module`.
        Raises TraceError if the assignment is refused."""
        if id(module) not in self._paths or not isinstance(value, Value):
            return
        before = vars(module).get(name)
        known = self._assigned.get((id(module), name))
        was = known[2] if known else before
        if self.records_writes and isinstance(was, Tensor) and isinstance(value, Tensor):
            if was._data is not None and was.spec == value.spec:
                self._assigned[id(module), name] = module, name, was
                return
        path = self._paths[id(module)]
        raise TraceError(
            f"tracing: {self.here} assigns to {f'{path}.{name}' if path else name!r} "
            f"(of {type(module).__name__}){self._unwritten()}"
        )

    def _unwritten(self) -> str:
        if not self.records_writes:
            return f"; a trace changes nothing{user_line()}"
        return (
            "; compiled code writes to Parameters, to buffers and to other tensors that existed "
            f"before the call, in their shape and dtype{user_line()}"
        )

    def array(self, owner: Any, name: str, find: Callable[[], NDArray]) -> Tensor:
        """Return a Tensor that represents the array `name` of `owner`, an object that is not a
        Module. `find` returns the array at each call. Raises TraceError if writes are refused."""
        key = id(owner), name
        tensor = self._arrays.get(key)
        if tensor is None:
            kind = type(owner).__name__
            label = self.labels.setdefault(id(owner), getattr(owner, "trace_name", kind.lower()))
            if not self.records_writes:
                raise TraceError(
                    f"tracing: {self.here} changes {label!r} ({kind}){self._unwritten()}"
                )
            tensor = self._arrays[key] = Tensor(find(), requires_grad=False)
            self.adopt_tensor(tensor, f"{label}.{name}")
            self._held.append(owner)
            self._slots[id(tensor)] = Slot(f"{label}.{name}", find)
        return tensor

    def name_of(self, tensor: Tensor) -> str | None:
        """Return the name of a `tensor` outside the function, such as a Parameter or buffer; None
        if it has none."""
        return self._name(tensor)

    def on_failure(self, undo: Callable[[], object]) -> None:
        """Call `undo` if the trace fails."""
        self._undo.append(undo)

    def at_each_call(self, do: Callable[[], None], feeds: bool = False) -> int:
        """Register `do` to run at each call of the compiled code: before the code if it `feeds` an
        array that the code reads, otherwise after it. Return the number of actions so far. Raises
        TraceError if writes are refused."""
        if not self.records_writes:
            kind = type(getattr(do, "__self__", do)).__name__
            raise TraceError(f"tracing: {self.here} changes a {kind}{self._unwritten()}")
        self.effects.actions.append(do)
        if feeds:
            self.effects.feeding = len(self.effects.actions)
        return len(self.effects.actions)

    def guard(self, holds: Callable[[], bool], always: bool = False) -> None:
        """Recompile the function if `holds` returns False before a call. It is checked before each
        call if `always`, else only after a write or replacement since the last call."""
        (self.effects.guards if always else self.effects.checks).append(holds)

    def end(self, inputs: list[Leaf], outputs: list[Node]) -> tuple[list[Leaf], list[Node]]:
        """Return the leaves and results of the whole graph: the function's `inputs` and `outputs`,
        then the arrays that `effects` feeds and keeps. Call it before the assignments to modules
        are undone."""
        self.check_current(outputs)
        changes: list[tuple[Slot, Leaf, Node]] = []
        for key, node in self._now.items():
            tensor = self._tensors[key]
            leaf = self._first(tensor)
            if key in self._names and not _is_same(node, leaf.node):
                changes.append((self._slot(tensor), leaf, node))
        for module, name, before in self._assigned.values():
            value = vars(module)[name]
            if value is not before:
                changes.append((_attribute(module, name), self._first(before), value.node))
        self.check_current([node for *_, node in changes])
        assigned = {id(before) for _, _, before in self._assigned.values()}
        written = {id(leaf) for _, leaf, _ in changes}
        fed = [
            (self._slots[key], leaf)
            for key, leaf in self._leaves.items()
            if key in self._slots and id(leaf) not in written
        ]
        effects = self.effects
        effects.kept, effects.fed = [slot for slot, *_ in changes], [slot for slot, _ in fed]
        if changes:
            self._check_gradients()
        own = [leaf for _, leaf in fed] + [leaf for _, leaf, _ in changes]
        for key in [key for key, leaf in self._leaves.items() if leaf in own]:
            if key not in assigned and key not in self._slots:
                self._written[self._names[key]] = self._tensors[key]
            del self._leaves[key]
        return [*inputs, *own], resolve([*outputs, *[node for *_, node in changes]])

    def _slot(self, tensor: Tensor) -> Slot:
        name = self._names[id(tensor)]
        put = tensor._replace if id(tensor) in self._replaced else None
        return self._slots.get(id(tensor)) or Slot(name, lambda: _compact(tensor), put)

    def _check_gradients(self) -> None:
        """Record which gradients must be None when a call begins, and which ones a call drops.
        Raises TraceError if the function adds to gradients from earlier calls."""
        for key, leaf in self._leaves.items():
            node: Any = leaf.node
            tensor = self._tensors[key]
            if key not in self._names or node.begins is None:
                continue
            if node.begins == "set":
                self.effects.cleared.append(tensor)
                if key in self._now:
                    self.stepped.add(leaf.name)
            elif node.last_grad is None:
                self.effects.clean.append((leaf.name, tensor))
            elif key in self._now:  # otherwise the gradient is returned, or lost
                raise TraceError(
                    f"tracing: the function adds to the gradient that {leaf.name}.grad has from "
                    "earlier calls: call optimizer.zero_grad() in it, before backward() or at its "
                    "end"
                )


def _compact(tensor: Tensor) -> NDArray:
    """Return the array of a tensor, made compact in memory."""
    data: NDArray = tensor._data
    if not data.is_compact:
        data = data.compact()
        tensor._replace(data)
    return data


def _attribute(module: Module, name: str) -> Slot:
    """Return a slot for the tensor in an attribute. New values replace the tensor."""
    path = f"{type(module).__name__}.{name}"

    def put(value: NDArray) -> None:
        setattr(module, name, Tensor(value, requires_grad=False))

    return Slot(path, lambda: _compact(getattr(module, name)), put)
