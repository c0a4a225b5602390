"""needle: a small deep-learning framework whose models compile."""

from . import autograd, backend_ndarray, data, init, nn, ops, optim
from . import methods as _methods  # noqa: F401  (which binds them to Tensor)
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
    "cpu",
    "cpu_numpy",
    "cuda",
    "data",
    "default_device",
    "enable_grad",
    "from_dlpack",
    "get_num_threads",
    "init",
    "is_grad_enabled",
    "load",
    "manual_seed",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "save",
    "set_num_threads",
]
