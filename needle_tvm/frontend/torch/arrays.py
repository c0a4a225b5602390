"""Conversion of PyTorch tensors to NumPy arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle_tvm.artifact import arrays, bfloat16

Array = np.ndarray[Any, Any]


def array(value: Any) -> Array:
    """Copy a tensor of PyTorch or of the runtime to a NumPy array."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
    return np.array(arrays.as_numpy(value, "tensor"))


def tensor(array: Array) -> Any:
    """Copy an array to a PyTorch tensor."""
    import torch

    array = np.array(array)
    if bfloat16.is_bfloat16(array.dtype):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
