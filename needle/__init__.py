"""needle: a small deep-learning framework whose models compile."""

import builtins as _builtins
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import autograd, backend_ndarray, data, fft, init, linalg, nn, onnx, ops, optim
from . import methods as _methods  # noqa: F401  (which binds them to Tensor)
from . import model_summary as _model_summary  # noqa: F401  (which binds it to Module)
from ._state import enable_grad, is_grad_enabled, no_grad
from .autograd import Tensor, TensorTuple, from_dlpack
from .backend_ndarray import (
    all_devices,
    cpu,
    cpu_numpy,
    cuda,
    default_device,
    get_num_threads,
    set_num_threads,
)
from .dims import Dim
from .errors import DimError, ShapeError, TraceError
from .init import (
    bernoulli,
    empty,
    empty_like,
    full,
    full_like,
    multinomial,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from .loops import cond, scan, while_loop
from .rng import manual_seed
from .serialize import load, save

__version__ = "0.1.0"

__all__ = [
    "Dim",
    "DimError",
    "ShapeError",
    "Tensor",
    "TensorTuple",
    "TraceError",
    "all_devices",
    "autograd",
    "backend_ndarray",
    "bernoulli",
    "cond",
    "cpu",
    "cpu_numpy",
    "cuda",
    "data",
    "default_device",
    "empty",
    "empty_like",
    "enable_grad",
    "fft",
    "from_dlpack",
    "full",
    "full_like",
    "get_num_threads",
    "init",
    "is_grad_enabled",
    "linalg",
    "load",
    "manual_seed",
    "multinomial",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "onnx",
    "ops",
    "optim",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "save",
    "scan",
    "set_num_threads",
    "while_loop",
    "zeros",
    "zeros_like",
]

# Every function of an op, by its name; those that are made for other functions are in `ops` alone.
_INNER = {"slice", "unslice", "getitem", "make_tuple", "tuple_get_item"}
if _TYPE_CHECKING:
    from . import onnx as onnx
    from .ops import *  # noqa: F403
else:
    _functions = {n: f for n, f in ops.FUNCTIONS.items() if n not in _INNER}
    globals().update(_functions)
    # `import *` would hide Python's own functions of these names.
    __all__ += [n for n in _functions if not hasattr(_builtins, n)]


def __getattr__(name: str) -> object:
    """`needle.onnx`, which is imported when it is met."""
    if name == "onnx":
        import importlib

        return importlib.import_module(f"{__name__}.onnx")
    import sys

    from ._names import missing

    raise missing(sys.modules[__name__], f"module {__name__!r}", name)
