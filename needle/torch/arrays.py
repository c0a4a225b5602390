"""PyTorch's tensors as NumPy arrays, and the reverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend_ndarray.dtypes import DTYPES
from .complexes import real_dtype


def is_held(dtype: Any) -> bool:
    """Whether needle has a dtype, or that of the parts of a complex one."""
    return real_dtype(dtype_name(dtype)) in DTYPES


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of PyTorch's."""
    return str(dtype).partition(".")[2]


def array_of(tensor: Any) -> Any:
    """A copy of a PyTorch tensor as a NumPy array, (..., 2) for a complex one; tuples by their
    parts, and None for a dtype that needle does not have."""
    import torch

    if isinstance(tensor, (tuple, list)):
        return tuple(map(array_of, tensor))
    if not is_held(tensor.dtype):
        return None
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    tensor = tensor.contiguous().clone()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def tensor_of(array: np.ndarray) -> Any:
    """A copy of a NumPy array as a PyTorch tensor."""
    import torch

    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
