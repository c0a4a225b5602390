"""Calls compiled code with arguments and results in the model's structure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from needle_runtime._tvm.ffi import native
from needle_runtime.artifact.bfloat16 import dlpack_type
from needle_runtime.artifact.sizes import Dim, Extent
from needle_runtime.artifact.trees import LEAF, flatten
from needle_runtime.executor import Executor
from needle_runtime.inputs import Input, destinations
from needle_runtime.memory import HostMemory

Arrays = list[np.ndarray[Any, Any]]


class Calls:
    """Calls an executor's code and returns NumPy arrays or other objects.

    With a class `result`, which must offer DLPack's C exchange table, native calls return instances
    of this class, and `wrap` makes an instance from a NumPy array. With only `wrap`, `wrap` makes
    all results from NumPy arrays. If all arrays of a call are on the code's GPU, results stay
    there: `share` makes an object that shares the memory of a tvm_ffi tensor.

    The native module handles arrays that fit, and copies only arrays that are not aligned. Other
    calls go through `Executor.run`, which does the same work and raises the errors.
    """

    def __init__(
        self,
        executor: Executor,
        result: type | None = None,
        wrap: Callable[[np.ndarray[Any, Any]], Any] | None = None,
        share: Callable[[Any], Any] | None = None,
    ) -> None:
        self._executor, self._result, self._wrap, self._share = executor, result, wrap, share
        self._main = main = executor.main
        self._flat = all(
            argument["tree"] == LEAF and not argument.get("keyword") for argument in main.arguments
        )
        tree = main.output_tree
        self._single = tree == LEAF and not main.state
        self._whole = self._single or tree == {"tuple": [LEAF] * len(main.outputs)}
        self._local = threading.local()
        self._takes_out = any(argument["name"] == "out" for argument in main.arguments)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the code on a call's arguments; return results in the model's structure. `into`
        handles the keyword `out`, unless the model has an argument of that name.

        Raises InputError for arguments that do not fit, and ParameterError if there are no weights.
        """
        if kwargs and "out" in kwargs and not self._takes_out:
            others = dict(kwargs)
            return self.into(others.pop("out"), args, others)
        flat = self._flat and not kwargs
        values = args if flat else self._main.flatten(args, kwargs)
        results = self._caller(self._executor.bound, *values)
        if results is not NotImplemented and self._whole:
            return results
        if results is NotImplemented:
            results = self._run(self._main.flatten(args, kwargs) if flat else values)
        return self._main.unflatten(results)

    def into(self, out: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the code and write the results to the arrays in `out`, which has the structure of the
        model's result; return `out`.

        Raises InputError, and writes nothing, if arguments do not fit or if an array in `out` does
        not fit, cannot be written to, or overlaps an input or another array in `out`.
        """
        values = self._main.flatten(args, kwargs)
        outputs = list(flatten(self._main.output_tree, out, "out"))
        caller = getattr(self._local, "into", None)
        if caller is None:
            caller = self._local.into = self._new_caller(into=True)
        if caller(self._executor.bound, *values, *outputs) is NotImplemented:
            found = destinations(outputs, self._executor.results_for(values), values)
            results = self._executor.run(values)
            for array, result in zip(found, results, strict=True):
                array[...] = result
        return out

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run the code on a flat list of arrays, one per input; return a flat list of results."""
        if not isinstance(values, (list, tuple)):
            return self._run(values)
        results = self._caller(self._executor.bound, *values)
        if results is NotImplemented:
            return self._run(values)
        return [results] if self._single else list(results)

    def run_with(self, weights: tuple[Any, ...], values: Sequence[Any]) -> list[Any]:
        """Run like `run`, but with weights from `Executor.packed` instead of the current ones."""
        results = self._caller(weights, *values)
        if results is NotImplemented:
            arrays = self._executor.run_with(weights, values)
            return arrays if self._wrap is None else list(map(self._wrap, arrays))
        return [results] if self._single else list(results)

    def run_in_place(
        self, values: Sequence[Any], weights: tuple[Any, ...] | None = None
    ) -> list[Any] | None:
        """Run like `run` (or like `run_with`, if `weights` are given), but write the results of
        `main.in_place` over the inputs that they replace; the returned list has None for these
        results. Returns None and writes nothing if the code cannot do this with these arrays: they
        must be writeable and need no conversion."""
        caller = getattr(self._local, "in_place", None)
        if caller is None:
            caller = self._local.in_place = self._new_caller(in_place=True)
        results = caller(self._executor.bound if weights is None else weights, *values)
        if results is NotImplemented:
            return None
        over, rest = {output for output, _ in self._main.in_place}, iter(results)
        return [None if number in over else next(rest) for number in range(len(self._main.outputs))]

    def run_bound(self, bound: tuple[Any, ...], values: Sequence[Any]) -> Any:
        """Run `main_in_place`; return a tuple of the results that are not written over inputs.

        `values` are the first inputs; `bound` has tensors for the other inputs and the weights, and
        the code may write to their memory. Returns NotImplemented and writes nothing if `values`
        would have to be converted."""
        caller = getattr(self._local, "bound", None)
        if caller is None:
            caller = self._local.bound = self._new_caller(in_place=True, own=len(values))
        return caller(bound, *values)

    def _run(self, values: Sequence[Any]) -> list[Any]:
        executor = self._executor
        if self._share is not None and executor.holds(values):
            return list(map(self._share, executor.call(executor.convert(values))))
        arrays = executor.run(values)
        return arrays if self._wrap is None else list(map(self._wrap, arrays))

    @property
    def _caller(self) -> Any:
        """This thread's native caller, which has its own virtual machine."""
        caller = getattr(self._local, "caller", None)
        if caller is None:
            caller = self._local.caller = self._new_caller()
        return caller

    def _new_caller(
        self, into: bool = False, in_place: bool = False, own: int | None = None
    ) -> Any:
        executor = self._executor
        wrapped = self._wrap is not None and self._result is None and not into
        if wrapped or not isinstance(executor.memory, HostMemory):
            return _no_caller
        if in_place:
            function = executor.in_place()
        else:
            function = executor.into() if into else executor.entry()
        if function is None:
            return _no_caller
        over = {output for output, _ in self._main.in_place} if in_place else ()
        results = [spec for number, spec in enumerate(executor.results) if number not in over]
        specs = [*executor.inputs[:own], *(executor.results if into else ())]
        sizes = _sizes(specs, self._main.dims)
        if sizes is None:
            return _no_caller
        shapes = [tuple(n if isinstance(n, int) else 1 for n in spec.shape) for spec in specs]
        return native().Caller(
            function,
            tuple(
                (shape, spec.dtype, *dlpack_type(spec.dtype), spec.range, spec.alignment)
                for spec, shape in zip(specs, shapes, strict=True)
            ),
            tuple(spec.dtype for spec in results),
            self._result,
            self._main.bare_output and not in_place,
            in_place or not self._single,
            executor.threads,
            len(executor.results) if into else 0,
            tuple(number for _, number in self._main.in_place) if in_place and own is None else (),
            **sizes,
        )


def _sizes(specs: Sequence[Input], dims: Sequence[Dim]) -> dict[str, Any] | None:
    """Return the native caller's arguments about sizes that are left to the call. Returns None if
    it does not support an extent (a product or quotient of sizes), or if the range of an index
    depends on a size."""
    if not dims:
        return {}
    axes = []
    for number, spec in enumerate(specs):
        if not all(isinstance(end, int) for end in spec.range or ()):
            return None
        for axis, extent in enumerate(spec.shape):
            if isinstance(extent, Extent):
                linear = extent.linear(dims)
                if linear is None:
                    return None
                axes.append((number, axis, *linear))
    return {
        "dims": tuple((dim.min, dim.max, dim.multiple_of) for dim in dims),
        "axes": tuple(axes),
    }


def _no_caller(*_: Any) -> Any:
    return NotImplemented
