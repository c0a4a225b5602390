"""needle: a small deep-learning framework whose models compile.

For developers of this package:

- The folders have an order, and each imports only earlier ones: `common`, `backend_ndarray`,
  `sizes`, `autograd` (tensors, the nodes behind them, gradients), `op` (the base of all ops),
  `ops`, `init`, `nn`, `linalg`, `tensors` (functions that are not ops), `methods` (binds the
  methods of tensors, once all ops are defined), `trace`, `loops`. `pyproject.toml` has the whole
  order, and a linter checks it.
- A `Tensor` is a light handle to a value and to the node that made it. A node keeps only the values
  that its op's gradient reads. A backward pass releases these values as soon as it has read them,
  unless asked to retain the graph. Nothing recurses, so the depth of a model does not matter.
- Each buffer counts in-place writes. So if a kept value was overwritten, through any view, backward
  raises an error instead of computing a wrong gradient. Writes by other libraries to shared memory
  (DLPack) are not counted.
- `trace` runs a model on shapes instead of values and records a `Graph`. Parameters keep their
  `state_dict` names. Reading a value while tracing raises an error that names the module and op.
- `sizes` has dims: sizes that stay open until compiled code is called. Before an op is recorded,
  `Op.decided` fixes its attributes for all sizes. `Graph.at` returns the graph with numbers in
  place of its dims.
- NumPy computes the functions of `linalg` and `fft`, so they run only in eager code. `matrix_power`
  and most norms consist of ops, and compile. The NumPy ops (`ops._numpy_op`) have gradients made of
  tensor ops, so there are gradients of any order, but they have no compiled form. They are in no
  registry, and a trace raises an error that names them.
- `common.keywords` checks the keywords of public functions, methods and constructors: every name
  for an axis works (`axis`, `dim`), and the error for an unknown keyword names the right one.
  `autograd.destination` reads the arguments of `to`.
- `func` has function transforms, such as gradients; they use only the engine's `vector_jacobian`.
- `serialize` writes a safetensors file whole or not at all. `training_state` writes a whole
  training state into one such file.
- `distributed` trains one model in several processes. Hooks on the parameters sum the gradients
  over the processes, and `rng` draws the numbers for the whole batch in each process.
- needle does not import TVM. Ops receive TVM's namespaces as an argument when they are translated.
"""

import builtins as _builtins
import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import (
    accelerator,
    autograd,
    backend_ndarray,
    data,
    distributed,
    fft,
    func,
    init,
    linalg,
    nn,
    onnx,
    ops,
    optim,
)
from . import methods as _methods  # noqa: F401  (the import binds the methods to Tensor)
from .autograd import Tensor, TensorTuple, checkpoint, from_dlpack
from .backend_ndarray import (
    all_devices,
    cpu,
    cpu_numpy,
    cuda,
    default_device,
    get_num_threads,
    set_num_threads,
)
from .common.state import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from .errors import DimError, ShapeError, TraceError
from .init import (
    bernoulli,
    empty,
    empty_like,
    full,
    full_like,
    multinomial,
    normal,
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
from .ops import abs as absolute
from .ops import acos as arccos
from .ops import acosh as arccosh
from .ops import asin as arcsin
from .ops import asinh as arcsinh
from .ops import atan as arctan
from .ops import atan2 as arctan2
from .ops import atanh as arctanh
from .ops import clip as clamp
from .ops import concat as cat
from .ops import concat as concatenate
from .ops import divide as div
from .ops import divide as true_divide
from .ops import equal as eq
from .ops import greater as gt
from .ops import greater_equal as ge
from .ops import less as lt
from .ops import less_equal as le
from .ops import logsoftmax as log_softmax
from .ops import matmul as mm
from .ops import matmul as mv
from .ops import moveaxis as movedim
from .ops import multiply as mul
from .ops import negate as neg
from .ops import negate as negative
from .ops import not_equal as ne
from .ops import subtract as sub
from .ops import swapaxes as swapdims
from .ops import trunc as fix
from .ops._autocast import autocast
from .rng import manual_seed
from .serialize import load, save
from .sizes.dims import Dim
from .tensors import (
    allclose,
    as_tensor,
    device,
    finfo,
    from_numpy,
    iinfo,
    is_floating_point,
    is_tensor,
    isclose,
    numel,
    tensor,
)
from .trace import summary as _summary  # noqa: F401  (the import binds it to Module)
from .training_state import Checkpoint

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "Dim",
    "DimError",
    "ShapeError",
    "Tensor",
    "TensorTuple",
    "TraceError",
    "absolute",
    "accelerator",
    "all_devices",
    "allclose",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "as_tensor",
    "autocast",
    "autograd",
    "backend_ndarray",
    "bernoulli",
    "cat",
    "checkpoint",
    "clamp",
    "concatenate",
    "cond",
    "cpu",
    "cpu_numpy",
    "cuda",
    "data",
    "default_device",
    "device",
    "distributed",
    "div",
    "empty",
    "empty_like",
    "enable_grad",
    "eq",
    "fft",
    "finfo",
    "fix",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "ge",
    "get_num_threads",
    "gt",
    "iinfo",
    "inference_mode",
    "init",
    "is_floating_point",
    "is_grad_enabled",
    "is_tensor",
    "isclose",
    "le",
    "linalg",
    "load",
    "log_softmax",
    "lt",
    "manual_seed",
    "mm",
    "movedim",
    "mul",
    "multinomial",
    "mv",
    "ne",
    "neg",
    "negative",
    "nn",
    "no_grad",
    "normal",
    "numel",
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
    "set_grad_enabled",
    "set_num_threads",
    "sub",
    "swapdims",
    "tensor",
    "true_divide",
    "while_loop",
    "zeros",
    "zeros_like",
]

# A dtype is a string with its name.
bfloat16, float16, float32, float64 = "bfloat16", "float16", "float32", "float64"
int8, int16, int32, int64, uint8, uint16 = "int8", "int16", "int32", "int64", "uint8", "uint16"
half, float, double = float16, float32, float64
short, int, long, bool = int16, int32, int64, "bool"
Size = tuple  # a shape's type
inf, nan, pi = _math.inf, _math.nan, _math.pi

pow = ops.power

# Every op's function is also in needle, under its name; these inner functions are only in `ops`.
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
    """Return the module `needle.onnx`, which is imported at its first use."""
    if name == "onnx":
        import importlib

        return importlib.import_module(f"{__name__}.onnx")
    import sys

    from .common.framework_names import missing

    raise missing(sys.modules[__name__], f"module {__name__!r}", name)
