"""The native module (src/runtime/caller.cc), for type checkers; it may not be built."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Input = tuple[Sequence[int], np.dtype[Any], int, int, tuple[int, int] | None, int]

def adopt(path: str, /) -> None:
    """Let the library that is loaded from `path` use needle's threads instead of TVM's."""

def use_threads(count: int, /) -> None:
    """Let this thread's calls of adopted code use `count` threads; a Caller does so itself."""

class Caller:
    """A call of compiled code: `caller(weights, *arrays)`.

    Returns the results, or NotImplemented if `weights` is None or an array is not one that the code
    can take as it is. `function` is the entry of a virtual machine of its own, as one thread may
    use it; `inputs` has (shape, dtype, DLPack's code, bits, range of an index, alignment in bytes)
    for each; `raise_error` is called with kind and message of an error of the code. The last
    `written` inputs are memory for results; if there are any, a call returns None. `dims` has
    (min, max, multiple_of) for each size that a call decides, and `axes` (input, axis, dim, factor,
    added) for each axis whose extent is factor * size + added, whatever `inputs` has there.
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
