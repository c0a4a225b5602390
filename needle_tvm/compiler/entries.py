"""The entries that a jit function keeps: compiled code, or a mark to run a signature eagerly."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from needle import Tensor
from needle.autograd.node import Node
from needle.backend_ndarray import NDArray
from needle.backend_ndarray.dtypes import ITEMSIZE
from needle.common import tree
from needle.errors import ChangedError, TraceError
from needle.op import Op
from needle.trace.captures import Surroundings
from needle.trace.tracer import as_tensor
from needle.trace.weights import Weights, baked_in, differences
from needle.trace.writes import Effects
from needle_runtime import Program
from needle_runtime.errors import InputError, ParameterError, UsageError
from needle_runtime.memory import HostMemory
from needle_tvm.compiler.executable import calls_of
from needle_tvm.compiler.step_export import Traced

_ticks = itertools.count()


class Entry:
    """A function, ready for calls of one signature.

    `baked` holds the outer values that are fixed in the entry. `facts` holds, by name, these values
    and those that determine the signature. `outdated` says why the entry is no longer current.
    """

    def __init__(self, baked: dict[str, Any]) -> None:
        self.baked = baked
        self.key: tuple[Any, ...] = ()
        self.facts: dict[str, Any] = {}
        self.outdated = ""
        self.used = 0

    def use(self) -> None:
        """Mark the entry as used now: its `used` becomes larger than that of any other entry."""
        self.used = next(_ticks)

    def is_current(self) -> bool:
        """Load the current weights; return whether all fixed values are unchanged."""
        raise NotImplementedError

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Return the function's result for these inputs."""
        raise NotImplementedError


class Compiled(Entry):
    """Compiled code that returns a flat tuple, or one tensor if `output_tree` is a single leaf.

    `with_gradient` says for each result whether the function's own result would require a gradient:
    `backward` on such a compiled result raises an error. `traced` is the trace that the code was
    compiled from.
    """

    traced: Traced

    def __init__(
        self,
        name: str,
        program: Program,
        weights: Weights,
        output_tree: Any,
        with_gradient: Sequence[bool],
    ) -> None:
        super().__init__(weights.baked)
        program.set_weights(weights.values())
        self._program, self._weights, self._use = program, weights, program.set_weights
        self._calls = calls_of(program)
        self._tree = None if output_tree == tree.LEAF else output_tree
        self._single = len(with_gradient) == 1
        op = _Call(name)
        self._nodes = [(n, op) for n, required in enumerate(with_gradient) if required]

    def is_current(self) -> bool:
        """See Entry."""
        try:
            self._weights.follow(self._use)
        except (ChangedError, ParameterError) as error:
            self.outdated = str(error)
            return False
        return True

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """See Entry."""
        self.use()
        return self._returned(self._calls(tuple(leaves), {}))

    def _returned(self, results: Any) -> Any:
        """Return the function's result, built from the code's results (a tensor or a tuple)."""
        for number, op in self._nodes:
            result = results if self._single else results[number]
            result._node = node = Node(result.spec, True)
            node.op = op
        if self._tree is None:
            return results
        return tree.unflatten(self._tree, iter([results] if self._single else results))


class Stepped(Compiled):
    """Compiled code whose calls have `effects`, such as writes to tensors and arrays outside the
    function, or steps of a schedule. `parts` are the arguments of Compiled.

    Only one thread may call it at a time: `turn()` returns the lock."""

    def __init__(
        self, effects: Effects, turn: Callable[[], AbstractContextManager[Any]], *parts: Any
    ) -> None:
        super().__init__(*parts)
        self._effects, self._turn = effects, turn
        self._executor = executor = self._program.executor
        main = executor.main
        self._in_place = bool(main.in_place)
        self._count = len(main.outputs) - len(effects.kept)
        self._replaced = [slot for slot in effects.kept if slot.put is not None]
        # The arrays of `effects`, and the other values below, are valid while the weights have this
        # stamp.
        self._stamp = -1
        self._arrays: list[NDArray] = []
        # The arrays and weights as tensors for the code, if it writes all of the arrays in place.
        self._bound: tuple[Any, ...] | None = None
        self._packed: Any = None  # the weights among them
        self._ranges: list[_Range] = []  # the written memory, by address
        self._marks: list[tuple[Any, list[Any]]] = []

    def is_current(self) -> bool:
        """See Entry."""
        if not super().is_current():
            return False
        effects = self._effects
        if self._weights.stamp == self._stamp:
            holds = all([guard() for guard in effects.guards])
        else:
            holds = all([guard() for guard in (*effects.guards, *effects.checks)])
            self._stamp = -1
        if not holds:
            self.outdated = "an optimizer's options or its number of steps have changed"
        return holds

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """See Entry."""
        self.use()
        effects, calls, weights = self._effects, self._calls, self._weights
        with self._turn():
            effects.begin()
            bound_to = self._executor.bound
            if self._stamp != weights.stamp or self._replaced or self._packed is not bound_to:
                self._find_arrays()
            if self._ranges:
                self._check_apart(leaves)
            results: Any = NotImplemented
            if self._bound is not None:
                results = calls.run_bound(self._bound, leaves)
            if results is NotImplemented:
                results = self._at_length(leaves)
            for mark, views in self._marks:
                mark(*views)
            count = len(self._replaced)
            weights.advance(len(effects.kept) - count, count)
            self._stamp = weights.stamp
            effects.end()
        return self._returned(results[0] if self._single else results)

    def _at_length(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results of a call whose inputs `run_bound` does not accept."""
        given = (*leaves, *self._arrays)
        results = self._calls.run_in_place(given) if self._in_place else None
        if results is None:
            results = self._calls.run(given)
        self._keep(results[self._count :])
        return tuple(results[: self._count])

    def _keep(self, values: Sequence[Any]) -> None:
        """Keep new values; None stands for a value that the code wrote over its array."""
        for slot, array, value in zip(
            self._effects.kept, self._arrays[len(self._effects.fed) :], values, strict=True
        ):
            if value is not None:
                new = value.realize_cached_data() if isinstance(value, Tensor) else value
                if slot.put is None:
                    array[...] = new
                else:
                    array = new
            if slot.put is not None:
                slot.put(array)

    def _find_arrays(self) -> None:
        effects = self._effects
        kept = [
            # The old array may still be read after the call.
            slot.find() if slot.put is None else slot.find().copy()
            for slot in effects.kept
        ]
        self._arrays = [*[slot.find() for slot in effects.fed], *kept]
        by_device: dict[Any, list[Any]] = {}
        for slot, array in zip(effects.kept, kept, strict=True):
            if slot.put is None:
                by_device.setdefault(array.device, []).append(array.view)
        self._marks = [(device.kernels.mark_written, each) for device, each in by_device.items()]
        self._ranges = self._own_ranges(kept)
        self._bind(kept)

    def _own_ranges(self, kept: Sequence[NDArray]) -> list[_Range]:
        """Return the memory of the written arrays, in order. Raises UsageError if two of them, or
        one and a weight that is only read, overlap: a write to one would change the other."""
        slots = self._effects.kept
        ranges = sorted(
            (*_range(array), slot.name)
            for slot, array in zip(slots, kept, strict=True)
            if slot.put is None and array.size
        )
        pairs = [(one[2], two[2]) for one, two in pairwise(ranges) if one[1] > two[0]]
        for name, array in self._weights.found().items():
            shared = _shared(ranges, *_range(array))
            if shared is not None:
                pairs.append((name, shared))
        if pairs:
            raise UsageError(
                f"{pairs[0][0]!r} and {pairs[0][1]!r} share memory, and the function writes to one "
                "of them only: give one a copy (x.data = y.data.clone())"
            )
        return ranges

    def _bind(self, kept: Sequence[NDArray]) -> None:
        """If the code can use the arrays' own memory, prepare the arrays as tensors for calls that
        skip all checks."""
        executor, self._bound = self._executor, None
        self._packed = executor.bound
        main, count = executor.main, len(self._arrays)
        is_whole = 0 < len(kept) == len(main.in_place) and not self._replaced
        if not is_whole or executor.bound is None or not isinstance(executor.memory, HostMemory):
            return
        tensors = []
        for array, spec in zip(self._arrays, executor.inputs[-count:], strict=True):
            if array.dtype == "bfloat16" or array.device.name == "cuda":
                return
            tensor = executor.memory.shared(np.from_dlpack(array), spec.alignment)
            if tensor.data_ptr() != array.view.data_ptr:
                return
            tensors.append(tensor)
        self._bound = (*tensors, *executor.bound)

    def _check_apart(self, leaves: Sequence[Any]) -> None:
        """Raise InputError if an argument shares memory that the code writes: the function would
        see the change."""
        for leaf in leaves:
            is_tensor = isinstance(leaf, Tensor)
            start, end = _range(leaf._data) if is_tensor else byte_bounds(leaf)
            name = _shared(self._ranges, start, end)
            if name is not None:
                raise InputError(
                    f"an argument shares memory with {name}, which the function writes: give it a "
                    "copy"
                )


_Range = tuple[int, int, str]  # addresses of the first byte and of the byte past the last; a name


def _range(array: NDArray) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte past its last."""
    start, size = array.view.data_ptr, ITEMSIZE[array.dtype]
    if array.is_compact or array.size == 0:
        return start, start + array.size * size
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    return start + low * size, start + (high + 1) * size


def _shared(ranges: Sequence[_Range], start: int, end: int) -> str | None:
    """Return the name of a range that overlaps the bytes from `start` to `end`, or None. The ranges
    are sorted and disjoint."""
    at = bisect.bisect_left(ranges, (end,))
    is_shared = at > 0 and ranges[at - 1][1] > start and start < end
    return ranges[at - 1][2] if is_shared else None


class _Call(Op):
    """A call of compiled code; no gradient passes through it."""

    name = "jit"

    def __init__(self, function: str) -> None:
        self._function = function

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        """Raise RuntimeError, which says where gradients can be taken."""
        raise RuntimeError(
            f"backward: no gradient passes through a call of the jit function {self._function}: "
            "take the gradient inside the function and return it, or call it under needle.no_grad()"
        )


class Eager(Entry):
    """A function that cannot be traced. `call` takes its inputs as Tensors."""

    def __init__(
        self, call: Callable[[Sequence[Tensor]], Any], find: Callable[[], Surroundings]
    ) -> None:
        self._call, self._find = call, find
        super().__init__(self._around())

    def _around(self) -> dict[str, Any]:
        try:
            return baked_in(self._find())[0]
        except TraceError:  # it reads values that cannot be watched, so it is never traced
            return {}

    def is_current(self) -> bool:
        """See Entry. If an outer value has changed, tracing may now succeed."""
        changes = differences(self._around(), self.baked)
        self.outdated = "; ".join(changes)
        return not changes

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """See Entry."""
        self.use()
        result = self._call([as_tensor(each) for each in leaves])
        self.baked = self._around()  # writes of the call itself do not count
        return result
