"""Convert PyTorch tensors to NumPy arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend_ndarray.dtypes import DTYPES
from .complexes import real_dtype


def is_held(dtype: Any) -> bool:
    """Return whether needle has a `dtype`; for a complex dtype, whether needle has the dtype of its
    parts."""
    return real_dtype(dtype_name(dtype)) in DTYPES


def dtype_name(dtype: Any) -> str:
    """Return the name of a PyTorch `dtype`."""
    return str(dtype).partition(".")[2]


def array_of(tensor: Any) -> Any:
    """Copy a PyTorch `tensor` to a NumPy array; the shape is (..., 2) for a complex tensor. A tuple
    is copied part by part. Return None for a dtype that needle does not have."""
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
    """Copy a NumPy `array` to a PyTorch tensor."""
    import torch

    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
