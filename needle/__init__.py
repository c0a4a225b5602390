"""needle: a small deep-learning framework whose models compile.

For those who change this package:

- The folders, each of which imports only those before it: `common`, `backend_ndarray`, `sizes`,
  `autograd` (tensors, the nodes behind them, gradients), `op` (the base of all ops), `ops`, `init`,
  `nn`, `linalg`, `methods` (which binds the methods of tensors, once all ops are defined), `trace`,
  `loops`. `pyproject.toml` has the whole order, and a linter checks it.
- A `Tensor` is a light handle to a value and to the node that made it. A node keeps only the values
  that its op's gradient reads, and a backward pass releases them as soon as it has read them,
  unless asked to retain the graph. Nothing recurses, so the depth of a model does not matter.
- Each buffer counts in-place writes. A kept value that was overwritten, through whatever view, is
  therefore an error and not a wrong gradient. Writes by other libraries to shared memory (DLPack)
  are not seen.
- `trace` runs a model on shapes instead of values and records a `Graph`. Parameters keep their
  `state_dict` names. Reading a value while tracing is an error that names the module and op.
- `sizes` has sizes that the call of compiled code decides. Before an op is recorded, `Op.decided`
  settles its attributes for all sizes. `Graph.at` is the graph with numbers for its dims.
- `linalg` and `fft` have functions that NumPy computes, for eager code alone (`matrix_power` and
  most norms are made of ops, and compile). Their ops (`ops._numpy_op`) have gradients made of
  tensor ops, so of any order, but no compiled form. They are in no registry, and a trace refuses
  them by name.
- `common.keywords` checks the keywords of public functions, methods and constructors: every name of
  an axis works, and the error for another keyword names the right one. `autograd.destination` reads
  the arguments of `to`.
- `serialize` writes safetensors files whole or not at all.
- needle does not import TVM. Ops receive TVM's namespaces as an argument when they are translated.
"""

import builtins as _builtins
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import autograd, backend_ndarray, data, fft, init, linalg, nn, onnx, ops, optim
from . import methods as _methods  # noqa: F401  (which binds them to Tensor)
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
from .common.state import enable_grad, is_grad_enabled, no_grad
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
from .sizes.dims import Dim
from .trace import summary as _summary  # noqa: F401  (which binds it to Module)

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

    from .common.framework_names import missing

    raise missing(sys.modules[__name__], f"module {__name__!r}", name)
