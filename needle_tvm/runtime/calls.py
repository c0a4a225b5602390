"""Calls of compiled code with arrays in the structure that a model takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from needle_tvm._tvm.ffi import load_ffi, native
from needle_tvm.artifact.trees import LEAF
from needle_tvm.runtime.executor import Executor
from needle_tvm.runtime.memory import HostMemory

Arrays = list[np.ndarray[Any, Any]]


class Calls:
    """Calls of an executor's code that return NumPy arrays, or objects of the class `result`, which
    offers DLPack's C exchange table; `wrap` makes one of a NumPy array. `wrap` without `result`
    makes all of them, of what Python's way returns.

    The native module serves arrays that fit, without a copy unless they are not aligned. All else,
    and everything where it is not built, takes the way through `Executor.run`, which does the same
    and raises the errors.
    """

    def __init__(
        self,
        executor: Executor,
        result: type | None = None,
        wrap: Callable[[np.ndarray[Any, Any]], Any] | None = None,
    ) -> None:
        self._executor, self._result, self._wrap = executor, result, wrap
        self._main = main = executor.main
        self._flat = all(argument["tree"] == LEAF for argument in main.arguments)
        tree = main.output_tree
        self._single = tree == LEAF
        self._whole = self._single or tree == {"tuple": [LEAF] * len(main.outputs)}
        self._local = threading.local()

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the code on a call's arguments; results in the structure that the model returns.

        Raises InputError for arguments that do not fit, ParameterError without weights.
        """
        flat = self._flat and not kwargs
        values = args if flat else self._main.flatten(args, kwargs)
        results = self._caller(self._executor.bound, *values)
        if results is not NotImplemented and self._whole:
            return results
        if results is NotImplemented:
            results = self._run(self._main.flatten(args, kwargs) if flat else values)
        return self._main.unflatten(results)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The same on a flat list of arrays, one per input; a flat list of results."""
        if not isinstance(values, (list, tuple)):
            return self._run(values)
        results = self._caller(self._executor.bound, *values)
        if results is NotImplemented:
            return self._run(values)
        return [results] if self._single else list(results)

    def _run(self, values: Sequence[Any]) -> list[Any]:
        arrays = self._executor.run(values)
        return arrays if self._wrap is None else list(map(self._wrap, arrays))

    @property
    def _caller(self) -> Any:
        """This thread's native caller, which has a virtual machine of its own."""
        caller = getattr(self._local, "caller", None)
        if caller is None:
            caller = self._local.caller = self._new_caller()
        return caller

    def _new_caller(self) -> Any:
        executor = self._executor
        wrapped = self._wrap is not None and self._result is None
        if wrapped or not isinstance(executor.memory, HostMemory):
            return _no_caller
        module = native()
        if module is None:
            return _no_caller
        ffi = load_ffi()
        dtypes = [ffi.dtype(str(spec.dtype)) for spec in executor.inputs]
        return module.Caller(
            executor.entry(),
            tuple(
                (spec.shape, spec.dtype, dtype.type_code, dtype.bits, spec.range, spec.alignment)
                for spec, dtype in zip(executor.inputs, dtypes, strict=True)
            ),
            tuple(executor.result_dtypes),
            _raise,
            self._result,
            self._main.bare_output,
            not self._single,
            executor.threads,
        )


def _no_caller(*_: Any) -> Any:
    return NotImplemented


def _raise(kind: str, message: str) -> None:
    """Raise the exception that stands for an error of TVM's."""
    raise load_ffi().core.ERROR_NAME_TO_TYPE.get(kind, RuntimeError)(message)
