"""Run a functional graph from AOTAutograd, which is compiled at its first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle.backend_ndarray.locks import lock_of_one_object
from needle.torch.aot_graph import AotGraph, Output, unsupported_dtype
from needle.torch.arrays import array_of
from needle.torch.oracle import is_close
from needle.torch.shared_state import was_written
from needle_tvm.compiler.aot_build import Code, Numbers, build, order_of
from needle_tvm.compiler.request import Request

_MOST_SIZES = 8  # most sizes of a graph that get code of their own
_AS_NEAR = 4  # allowed error, in multiples of PyTorch's error; the order of sums may differ
_MOST_BOUND = 256  # most sizes of one graph whose layouts are kept
_CHECKED = 3  # number of sizes at which code is compared with PyTorch


class LeftToPyTorchError(Exception):
    """A graph runs in PyTorch for this `reason`: in all calls if `always`, else in this call
    only."""

    def __init__(self, reason: str, always: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.always = reason, always


def reason_of(error: BaseException) -> str:
    """Return why a graph cannot be compiled, in one line."""
    if isinstance(error, LeftToPyTorchError):
        return error.reason
    line = f"{error}".strip().partition("\n")[0]
    return (
        line if type(error).__module__.startswith("needle") else f"{type(error).__name__}: {line}"
    )


class Compiled:
    """A functional graph and its code. Call it with a list of the graph's arguments."""

    _boxed_call = True  # AOTAutograd's convention: arguments come as one list

    def __init__(self, module: Any, static: Sequence[int], asked: Request, check: bool) -> None:
        import torch

        self._graph = graph = AotGraph(module)
        self._static = [number for number in static if number not in graph.written]
        self._asked, self._check = asked, check
        values = [node.meta["val"] for node in graph.arguments]
        dtype = unsupported_dtype(each for each in values if isinstance(each, torch.Tensor))
        if dtype is not None:
            raise LeftToPyTorchError(f"a tensor of dtype {dtype}, which needle does not have")
        self._sizes = [i for i, each in enumerate(values) if isinstance(each, torch.SymInt)]
        self._symbols = [values[i].node.expr for i in self._sizes]
        self._lock = lock_of_one_object()
        self._codes: list[Code] = []
        self._has_open = bool(self._sizes)  # whether code for many sizes may be compiled
        self._bound: dict[tuple[int, ...], Bound] = {}

    def __call__(self, args: list[Any]) -> list[Any]:
        key = tuple([args[i] for i in self._sizes])
        bound = self._bound.get(key)
        if bound is None:
            bound = self._prepared(key, args)
        return bound(args)

    def _prepared(self, key: tuple[int, ...], args: list[Any]) -> Bound:
        """Return the graph at these sizes, compiled and checked with the arguments of a first
        call."""
        with self._lock:  # a thread that waited here finds the code that another thread compiled
            bound = self._bound.get(key)
            if bound is not None:
                return bound
            try:
                bound = self._made(key, args)
            except LeftToPyTorchError:
                raise
            except Exception as error:  # TVM and PyTorch raise many types of errors
                raise LeftToPyTorchError(reason_of(error)) from error
            if len(self._bound) >= _MOST_BOUND:
                self._bound.clear()
            self._bound[key] = bound
            return bound

    def _made(self, key: tuple[int, ...], args: list[Any]) -> Bound:
        import torch

        if any(isinstance(each, torch._subclasses.FakeTensor) for each in args):
            raise LeftToPyTorchError("", always=False)
        numbers = Numbers(dict(zip(self._symbols, key, strict=True)))
        state = torch.get_rng_state() if self._graph.draws else None
        try:
            drawn = self._graph.draw(args, numbers)
            code = next((each for each in self._codes if each.takes(numbers)), None)
            if code is None and self._graph.computed:
                code = self._compiled(numbers, args, drawn)
            found = Bound(self._graph, code, numbers)
            if code is not None:
                found.prepare(args, drawn, self._check and code.checked < _CHECKED)
                code.checked += 1
                if code not in self._codes:
                    self._codes.append(code)
        finally:
            if state is not None:
                torch.set_rng_state(state)
        return found

    def _compiled(self, numbers: Numbers, args: list[Any], drawn: list[Any]) -> Code:
        weights = [i for i in self._static if _is_weight(args[i])]

        def built(is_open: bool) -> Code:
            return build(self._graph, numbers, is_open, weights, args, drawn, self._asked)

        if self._has_open:
            try:
                return built(True)
            except Exception:  # code for one size has fewer requirements
                self._has_open = False
        if len(self._codes) >= _MOST_SIZES:
            raise LeftToPyTorchError(f"more than {_MOST_SIZES} sizes of its inputs", always=False)
        return built(False)


def _is_weight(tensor: Any) -> bool:
    """Return whether a parameter or buffer can be packed once. Tensors made in inference mode have
    no version counter, so they cannot."""
    return bool(tensor.is_floating_point() and tensor.ndim and not tensor.is_inference())


def _is_as_near(have: Any, want: Any, exact: Any) -> bool:
    """Return whether a result is about as close to the exact result as PyTorch's result is."""
    if not (have.is_floating_point() and have.shape == exact.shape and exact.isfinite().all()):
        return False
    off, allowed = ((each - exact).abs().max() for each in (have, want))
    return bool(off <= _AS_NEAR * allowed)


class Bound:
    """A graph at fixed sizes of its arguments: its code, and functions that compute its outputs."""

    def __init__(self, graph: AotGraph, code: Code | None, numbers: Numbers) -> None:
        self._graph, self._code, self._numbers = graph, code, numbers
        self._draws = bool(graph.draws)
        self._copied: list[int] = []  # results that share memory with others
        self._complex = [
            i for i, node in enumerate(graph.computed) if node.meta["val"].is_complex()
        ]
        first_drawn = len(graph.arguments)
        self._takes = [] if code is None else code.takers(first_drawn, numbers)
        self._constants = graph.constants
        self._outputs = [self._maker(each) for each in graph.outputs]
        over = dict(() if code is None else code.in_place)
        self._over = [
            (number, over[each.value.number])
            for number, each in graph.writes
            if each.value is not None
            and each.value.kind == "computed"
            and each.value.number in over
        ]
        written = {number for number, _ in self._over}
        self._writes = [
            (number, self._maker(each), is_copied, number in written)
            for (number, each), is_copied in zip(graph.writes, graph.copied, strict=True)
        ]

    def __call__(self, args: list[Any]) -> list[Any]:
        import torch

        tensors = [*args, *self._drawn(args)] if self._draws else args
        results: list[Any] = []
        is_over = False
        if self._code is not None:
            try:
                inputs = [take(tensors) for take in self._takes]
                results, is_over = self._run(args, inputs)
            except Exception as error:  # such as an index out of range: PyTorch reports it
                raise LeftToPyTorchError("", always=False) from error
            for number in self._copied:
                if results[number] is not None:
                    results[number] = results[number].clone()
            for number in self._complex:
                results[number] = torch.view_as_complex(results[number])
        outputs = [make(tensors, results) for make in self._outputs]
        if self._writes:
            values = [
                (args[number], make(tensors, results).clone() if copied else make(tensors, results))
                for number, make, copied, can_be_over in self._writes
                if not (is_over and can_be_over)
            ]
            for argument, value in values:
                argument.copy_(value)
        return outputs

    def _run(self, args: list[Any], inputs: list[Any]) -> tuple[list[Any], bool]:
        """Return the code's results, and whether it wrote some of them over arguments."""
        assert self._code is not None, "there is code to run"
        if self._over and all(
            args[number].data_ptr() == inputs[place].data_ptr() for number, place in self._over
        ):
            results = self._code.run_in_place(args, inputs)
            if results is not None:
                for number, _ in self._over:
                    was_written(args[number])
                return results, True
        return self._code.run(args, inputs), False

    def _drawn(self, args: list[Any]) -> list[Any]:
        return self._graph.draw(args, self._numbers)

    def prepare(self, args: list[Any], drawn: list[Any], check: bool) -> None:
        """Find results that share memory with other results or with the code's own memory, and, if
        `check`, compare the results with PyTorch's. Raises LeftToPyTorchError if one differs."""
        import torch

        assert self._code is not None, "there is code to prepare"
        given = [*args, *drawn]
        inputs = [take(given) for take in self._takes]
        results, again = self._code.run(args, inputs), self._code.run(args, inputs)
        seen: list[tuple[int, int]] = []
        for number, (one, other) in enumerate(zip(results, again, strict=True)):
            start, size = one.data_ptr(), one.numel() * one.element_size()
            overlaps = any(a < start + size and start < b for a, b in seen)
            if size and (overlaps or start == other.data_ptr()):
                self._copied.append(number)
            seen.append((start, start + size))
        if not check:
            return
        self._check_over(args, inputs, results)
        wanted = self._graph.compute(args, drawn, self._numbers)
        for number in self._complex:
            results[number] = torch.view_as_complex(results[number])
        exact: list[Any] | None = None
        for number, (node, have, want, order) in enumerate(
            zip(self._graph.computed, results, wanted, self._code.orders, strict=True)
        ):
            logical = have if order is None else have.permute(_inverse(order))
            if tuple(logical.shape) == tuple(want.shape):
                if is_close(array_of(logical), array_of(want)):
                    continue
                # A gradient may consist of rounding errors only, such as that of a bias before a
                # norm.
                exact = self._in_float64(args, drawn) if exact is None else exact
                if exact and _is_as_near(logical, want, exact[number]):
                    continue
            raise LeftToPyTorchError(f"needle's result of {node.target} differs from PyTorch's")

    def _in_float64(self, args: list[Any], drawn: list[Any]) -> list[Any]:
        """Return PyTorch's results in float64; an empty list if it cannot compute them."""
        import torch
        from torch.utils import _pytree
        from torch.utils._python_dispatch import TorchDispatchMode

        def wide(each: Any) -> Any:
            if isinstance(each, torch.Tensor) and each.dtype == torch.float32:
                return each.double()
            return torch.float64 if each is torch.float32 else each

        class Wide(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return func(*_pytree.tree_map(wide, args), **_pytree.tree_map(wide, kwargs or {}))

        try:
            with Wide():
                found: list[Any] = self._graph.compute(args, drawn, self._numbers)
        except Exception:  # PyTorch raises many types of errors
            return []
        return found

    def _check_over(self, args: list[Any], inputs: list[Any], results: list[Any]) -> None:
        """Raise LeftToPyTorchError if the code's results differ when it writes over inputs."""
        if not self._over:
            return
        assert self._code is not None, "there is code to check"
        over = dict(self._code.in_place)
        given = [each.clone() if i in over.values() else each for i, each in enumerate(inputs)]
        found = self._code.run_in_place(args, given)
        for number, each in enumerate(found or ()):
            have = given[over[number]] if each is None else each
            if not is_close(array_of(have), array_of(results[number])):
                raise LeftToPyTorchError("needle's results differ when it writes them in place")

    def _maker(self, output: Output) -> Callable[[list[Any], list[Any]], Any]:
        """Return a function that makes an output from the given tensors and the code's results."""
        import torch

        node, value, numbers = output.node, output.value, self._numbers
        if value is None:
            known = numbers(node.meta["val"]) if isinstance(node, torch.fx.Node) else node
            return lambda given, results: known
        place = value.number
        if value.kind == "constant":
            constant = self._constants[place]
            make: Callable[..., Any] = lambda given, results: constant.clone()  # noqa: E731
        elif value.kind == "computed":
            make = self._computed(place, value.node)
        else:
            if value.kind == "drawn":
                place += len(self._graph.arguments)
            make = lambda given, results: given[place]  # noqa: E731
        if not output.is_view:
            return make
        size, stride, offset = numbers.layout(node)
        whole = value.node.meta["val"]
        start, dtype = numbers(whole.storage_offset()), node.meta["val"].dtype
        if dtype != whole.dtype:  # such as the real parts of complex numbers
            return _of_other_dtype(
                make, dtype, size, stride, offset - start * whole.itemsize // dtype.itemsize
            )

        def view(given: list[Any], results: list[Any]) -> Any:
            whole = make(given, results)
            return whole.as_strided(size, stride, whole.storage_offset() + offset - start)

        return view

    def _computed(self, place: int, node: Any) -> Callable[..., Any]:
        """Return a function that returns a result of the code in the layout that PyTorch
        expects."""
        import torch

        assert self._code is not None, "code computes it"
        size, stride, _ = self._numbers.layout(node)
        order = self._code.orders[place]
        axes = None if order is None else _inverse(order)
        physical = size if order is None else tuple(size[axis] for axis in order)
        made = torch.empty(physical, device="meta")
        made = made if axes is None else made.permute(axes)
        if made.stride() == stride:
            if axes is None:
                return lambda given, results: results[place]
            return lambda given, results: results[place].permute(axes)
        if order_of(size, stride, order) is not None:  # only strides of 1-element axes differ
            return lambda given, results: results[place].as_strided(size, stride)

        def laid_out(given: list[Any], results: list[Any]) -> Any:
            found = results[place] if axes is None else results[place].permute(axes)
            return torch.empty_strided(size, stride, dtype=found.dtype).copy_(found)

        return laid_out


def _of_other_dtype(
    make: Callable[..., Any], dtype: Any, size: Any, stride: Any, offset: int
) -> Callable[[list[Any], list[Any]], Any]:
    """Return a function that views the memory of the tensor from `make` as elements of `dtype`."""
    import torch

    def view(given: list[Any], results: list[Any]) -> Any:
        whole = make(given, results).detach()
        first = whole.storage_offset() * whole.itemsize // dtype.itemsize + offset
        return torch.empty(0, dtype=dtype).set_(whole.untyped_storage(), first, size, stride)

    return view


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
