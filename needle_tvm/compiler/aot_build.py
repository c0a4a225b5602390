"""Compile a functional graph from AOTAutograd, for many sizes of its inputs or for one."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import needle as ndl
from needle import ops
from needle.errors import UnsupportedError
from needle.nn.module import Module
from needle.sizes.dims import LARGEST, Dim, Expression
from needle.torch.aot_graph import AotGraph, Part
from needle.torch.execute import Run
from needle.torch.symbols import Symbols
from needle.trace import trace
from needle_runtime import Program, weights
from needle_runtime.calls import Calls
from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.request import Request
from needle_tvm.frontend.model import source_of
from needle_tvm.frontend.source import Source

OPEN_BOUNDS = 4096, 1 << 24  # sizes that PyTorch does not bound get the smallest of these that fits


class Numbers:
    """The sizes of a call, by symbol. Calling it turns an extent of a fake tensor into an int."""

    def __init__(self, known: Mapping[Any, int]) -> None:
        import sympy  # type: ignore[import-untyped]

        self.known = known
        self._values = {symbol: sympy.Integer(number) for symbol, number in known.items()}

    def __call__(self, size: Any) -> Any:
        if isinstance(size, (int, float)):
            return size
        return self.of(size.node.expr)

    def of(self, expr: Any) -> Any:
        """Return a sympy expression as a number. Raises UnsupportedError for unknown symbols."""
        found = expr.xreplace(self._values)
        if found.free_symbols:
            raise UnsupportedError("it makes a tensor whose shape depends on values")
        if found.is_Boolean:
            return bool(found)
        return int(found) if found.is_integer else float(found)

    def layout(self, node: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Return the size, the strides and the offset of a node's tensor."""
        value = node.meta["val"]
        sizes = tuple(map(self, value.shape)), tuple(map(self, value.stride()))
        return *sizes, self(value.storage_offset())


class _Fixed(Symbols):
    """Symbols whose sizes are all known numbers."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__({})
        self._numbers = numbers

    def value(self, expr: Any) -> Any:
        return self._numbers.of(expr)

    def knows(self, size: Any) -> bool:
        return True


class Taken(NamedTuple):
    """An input of the code: an argument, or a tensor of random numbers ("drawn"), that is compact
    with its axes in this `order`. If `kind` is "memory", the input is the first `elements` elements
    of the argument's memory."""

    kind: str
    number: int
    elements: int
    order: tuple[int, ...] | None
    is_complex: bool  # the code takes its real and imaginary parts (..., 2)


class Code:
    """Compiled code, its inputs, and the orders of axes in which its results are compact."""

    def __init__(
        self,
        program: Program | None,
        inputs: Sequence[Taken],
        orders: Sequence[tuple[int, ...] | None],
        held: Mapping[str, int],
        sizes: Mapping[Any, Any],
    ) -> None:
        import torch

        self._inputs, self.orders, self._sizes = inputs, orders, sizes
        self.checked = 0
        self._packed: dict[tuple[int, ...], _Packed] = {}
        self._last: _Packed | None = None
        assert program is not None
        self._main, self._executor = program.artifact.main, program.executor
        self._held = [(spec.name, held[spec.name]) for spec in self._main.params]
        self._calls = Calls(program.executor, torch.Tensor, _as_torch)

    def takes(self, numbers: Numbers) -> bool:
        """Return whether the code accepts these sizes."""
        for symbol, extent in self._sizes.items():
            number = numbers.known[symbol]
            if isinstance(extent, Dim):
                if not extent.min <= number <= extent.max:
                    return False
            elif number != extent:
                return False
        return True

    def takers(self, first_drawn: int, numbers: Numbers) -> list[Callable[[list[Any]], Any]]:
        """Return functions that make the code's inputs from a list of arguments and drawn tensors.

        `first_drawn` is the position of the first drawn tensor in this list."""
        return [
            _taker(each, each.number + (first_drawn if each.kind == "drawn" else 0))
            for each in self._inputs
        ]

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """The results that the code can write over inputs, each with the number of its input."""
        return self._main.in_place

    def run(self, args: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Return the results for `inputs`, which are in the code's form, and the weights in
        `args`."""
        return self._calls.run_with(self._weights(args) if self._held else (), inputs)

    def run_in_place(self, args: Sequence[Any], inputs: Sequence[Any]) -> list[Any] | None:
        """Return the results, with None for each result written over an input. Returns None and
        writes nothing if the code cannot run in place."""
        return self._calls.run_in_place(inputs, self._weights(args) if self._held else ())

    def _weights(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the weights among the arguments in the code's form; pack them again if changed."""
        tensors = [args[number] for _, number in self._held]
        last = self._last
        try:
            versions = [each._version for each in tensors]
        except RuntimeError:  # made in inference mode
            return self._pack(tensors)
        addresses = tuple([each.data_ptr() for each in tensors])
        if last is not None and last.versions == versions and last.addresses == addresses:
            return last.tensors
        packed = self._packed.get(addresses)
        if packed is None or packed.versions != versions:
            for key, each in list(self._packed.items()):
                if key == addresses or not each.is_alive():
                    self._packed.pop(key, None)
            packed = _Packed(tensors, versions, addresses, self._pack(tensors))
            self._packed[addresses] = packed
        self._last = packed
        return packed.tensors

    def _pack(self, given: Sequence[Any]) -> tuple[Any, ...]:
        named = {name: each.detach() for (name, _), each in zip(self._held, given, strict=True)}
        executor = self._executor
        return executor.packed(executor.copied(weights.in_order(self._main, named)))


class _Packed:
    """Weights in the code's form. Aliases of the source tensors keep their memory from being reused
    for other tensors."""

    def __init__(
        self,
        given: Sequence[Any],
        versions: list[int],
        addresses: tuple[int, ...],
        tensors: tuple[Any, ...],
    ) -> None:
        self.versions, self.addresses, self.tensors = versions, addresses, tensors
        self._aliases = [each.detach() for each in given]
        self._given = [weakref.ref(each) for each in given]

    def is_alive(self) -> bool:
        """Return whether all source tensors still exist."""
        return all(each() is not None for each in self._given)


def _taker(taken: Taken, place: int) -> Callable[[list[Any]], Any]:
    """Return a function that makes an input in the code's form, without a copy if possible."""
    order = taken.order
    if taken.kind == "memory":
        return lambda given: given[place].detach().as_strided((taken.elements,), (1,), 0)
    if order is not None or taken.is_complex:
        return lambda given: _laid_out(given[place], order, taken.is_complex)

    def take(given: list[Any]) -> Any:
        found = given[place]
        if found.requires_grad or found.is_neg():
            found = found.detach().resolve_neg()
        return found if found.is_contiguous() else found.contiguous()

    return take


def _laid_out(found: Any, order: tuple[int, ...] | None, is_complex: bool) -> Any:
    import torch

    found = found.detach().resolve_neg()
    found = found if order is None else found.permute(order)
    found = torch.view_as_real(found.resolve_conj()) if is_complex else found
    return found if found.is_contiguous() else found.contiguous()


def _as_torch(array: Any) -> Any:
    import torch

    return torch.from_dlpack(ndl.Tensor(array, requires_grad=False))


def build(
    graph: AotGraph,
    numbers: Numbers,
    is_open: bool,
    held: Sequence[int],
    args: Sequence[Any],
    drawn: Sequence[Any],
    asked: Request,
) -> Code:
    """Compile needle's part of a graph for the sizes of these arguments or, if `is_open`, for all
    sizes that PyTorch allows up to a bound. `held` holds the numbers of the arguments that are
    weights.
    """
    part = graph.part(None if is_open else numbers)
    sizes = _dims(part, numbers) if is_open else dict(numbers.known)
    symbols = Symbols(sizes) if is_open else _Fixed(numbers)
    of_weights = {
        node.name: value.number
        for node, value in part.inputs
        if value.kind == "argument" and value.number in held
    }
    program = part.program(symbols, {name: name for name in of_weights})
    taken, examples, dims = [], [], {}
    for node, value in part.inputs:
        if node.name in of_weights:
            continue
        order = order_of(*numbers.layout(node)[:2])
        given = (drawn if value.kind == "drawn" else args)[value.number]
        count = numbers(node.meta["val"].numel())
        is_complex = node.meta["val"].is_complex()
        taken.append(Taken(value.kind, value.number, count, order, is_complex))
        examples.append(_shared(_taker(taken[-1], 0)([given])))
        shape = symbols.shape(node.meta["val"])
        extents = {
            axis: shape[at]
            for axis, at in enumerate(order or range(len(shape)))
            if isinstance(shape[at], Expression)
        }
        if extents:
            dims[program.inputs[len(taken) - 1][0]] = extents
    orders = [order_of(*numbers.layout(node)[:2]) for node in graph.computed]
    shared = {name: _shared(args[at].detach().contiguous()) for name, at in of_weights.items()}
    of_parts = [node.meta["val"].is_complex() for node in graph.computed]
    model = _Model(
        program,
        shared,
        [_of_parts(each.order, each.is_complex) for each in taken],
        list(map(_of_parts, orders, of_parts)),
    )
    traced = trace(model, *examples, dims=dims or None)
    source = _with_updates(source_of(traced, asked.variant), _updates(graph, taken, orders))
    compiled = compile_source(source, asked)
    return Code(compiled.program, taken, orders, of_weights, sizes)


def _updates(
    graph: AotGraph, taken: Sequence[Taken], orders: Sequence[tuple[int, ...] | None]
) -> list[tuple[int, int]]:
    """Return the results that are used only as an input's new value and have the input's order of
    axes, each with the number of its input."""
    places = {each.number: i for i, each in enumerate(taken) if each.kind == "argument"}
    every = [*graph.outputs, *(output for _, output in graph.writes)]
    used = Counter(
        each.value.number for each in every if each.value and each.value.kind == "computed"
    )
    return [
        (output.value.number, places[number])
        for (number, output), is_copied in zip(graph.writes, graph.copied, strict=True)
        if number in places
        and output.value is not None
        and output.value.kind == "computed"
        and used[output.value.number] == 1
        and orders[output.value.number] == taken[places[number]].order
        and not (output.is_view or is_copied)
    ]


def _with_updates(source: Source, updates: Sequence[tuple[int, int]]) -> Source:
    """Return the source, changed so that its code may write these results over inputs."""
    if not updates:
        return source

    def lower(target: Any) -> tuple[Any, dict[str, Any]]:
        from needle_tvm.lower.in_place import updating

        lowered, signature = source.lower(target)
        return updating(lowered, updates), signature

    fingerprint = source.fingerprint_with("updates", repr(updates))
    return replace(source, fingerprint=fingerprint, lower=lower)


def _of_parts(order: tuple[int, ...] | None, is_complex: bool) -> tuple[int, ...] | None:
    """Return the order of a tensor's axes; for a complex tensor, the axis of real and imaginary
    parts comes last."""
    return (*order, len(order)) if order is not None and is_complex else order


def _shared(tensor: Any) -> ndl.Tensor:
    return ndl.from_dlpack(tensor)


def _dims(part: Part, numbers: Numbers) -> dict[Any, Any]:
    """Return a dim for each symbol of a graph that by itself is the extent of some axis, and the
    size in this call for each other symbol."""
    import torch

    found = dict[Any, Any](numbers.known)
    for node, _ in part.inputs:
        value = node.meta["val"]
        for size in value.shape:
            if isinstance(size, torch.SymInt) and size.node.expr in numbers.known:
                symbol = size.node.expr
                least, most = _bounds(size.node.shape_env.var_to_range[symbol])
                number = numbers.known[symbol]
                bound = next((each for each in OPEN_BOUNDS if number <= each), LARGEST)
                found[symbol] = Dim(str(symbol), min=least, max=most if most else bound)
    return found


def _bounds(found: Any) -> tuple[int, int | None]:
    """Return the least size that PyTorch allows, and the largest size if it is known."""
    import torch

    upper = found.upper
    is_known = upper.is_Integer and upper < min(LARGEST, torch.iinfo(torch.int32).max)
    return max(1, int(found.lower)), int(upper) if is_known else None


def order_of(
    size: Sequence[int], stride: Sequence[int], order: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Return the order of axes in which a tensor of these sizes and strides is compact. Returns
    None if it is the axes' own order or if there is none. With `order`, only this order is tried,
    and it is returned even if it is the axes' own."""
    axes = list(range(len(size)))
    tried = [order or axes, axes, sorted(axes, key=lambda axis: (-stride[axis], axis))]
    for each in tried[:1] if order is not None else tried[1:]:
        step = 1
        for axis in reversed(each):
            if size[axis] != 1 and stride[axis] != step:
                break
            step *= size[axis]
        else:
            return tuple(each) if order is not None or each != axes else None
    return None


class _Model(Module):
    """A program as a Module. The axes of its inputs and results are in the order in which the
    tensors are compact."""

    def __init__(
        self,
        program: Any,
        held: Mapping[str, ndl.Tensor],
        inputs: Sequence[tuple[int, ...] | None],
        results: Sequence[tuple[int, ...] | None],
    ) -> None:
        super().__init__()
        self._program, self._inputs, self._results = program, inputs, results
        self._names = [name for name in held if name in program.weights]
        for name in self._names:
            setattr(self, name, held[name])
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.call_signature = inspect.Signature(
            [inspect.Parameter(name, kind) for name, _ in program.inputs]
        )
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        given = [
            x if order is None else ops.permute(x, _inverse(order))
            for x, order in zip(inputs, self._inputs, strict=True)
        ]
        names = [name for name, _ in self._program.inputs]
        values: dict[str, Any] = dict(zip(names, given, strict=True))
        values |= {name: getattr(self, name) for name in self._names}
        outputs, _ = Run(self._program, values).results([x.shape for x in given])
        return tuple(
            _tensor(x) if order is None else ops.permute(_tensor(x), order)
            for x, order in zip(outputs, self._results, strict=True)
        )


def _tensor(value: Any) -> ndl.Tensor:
    from needle.conversion.values import tensor

    return tensor(value)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
