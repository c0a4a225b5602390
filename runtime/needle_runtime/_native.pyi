"""The native module (runtime/src/python/caller.cc), for type checkers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Input = tuple[Sequence[int], np.dtype[Any], int, int, tuple[int, int] | None, int]

def adopt(path: str, /) -> None:
    """Let the library that is loaded from `path` use needle's threads instead of TVM's."""

def use_threads(count: int, /) -> None:
    """Let adopted code use `count` threads when this thread calls it; a Caller does this itself."""

class Caller:
    """A native call of compiled code: `caller(weights, *arrays)`.

    Returns the results, or NotImplemented if `weights` is None or the code cannot take an array
    without conversion. `function` is the entry of a virtual machine that no other Caller uses,
    since only one thread may use a machine. `inputs` has (shape, dtype, DLPack's code, bits, range
    of an index, alignment in bytes) for each input. If the code fails, `raise_error` is called with
    the kind and message of the error. The last `written` inputs are memory for results; if there
    are any, a call returns None. `dims` has (min, max, multiple_of) for each size that is left to
    the call. `axes` has (input, axis, dim, factor, added) for each axis whose extent is factor *
    size + added; it overrides `inputs`.
    """

    def __new__(
        cls,
        function: Any,
        inputs: tuple[_Input, ...],
        outputs: tuple[np.dtype[Any], ...],
        raise_error: Callable[[str, str], None],
        result: type | None,
        bare: bool,
        tuple: bool,
        threads: int,
        written: int = 0,
        dims: tuple[tuple[int, int, int], ...] = (),
        axes: tuple[tuple[int, int, int, int, int], ...] = (),
    ) -> Caller: ...
    def __call__(self, weights: Any, /, *arrays: Any) -> Any: ...
