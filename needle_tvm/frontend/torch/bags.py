"""Bags of embeddings: sums, means and maxima of rows of a table."""

from __future__ import annotations

import math
from typing import Any

_SUM, _MEAN, _MAX = range(3)
_MODES = {"sum": _SUM, "mean": _MEAN, "max": _MAX}


def called(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """`torch.nn.functional.embedding_bag` of bags of one size (B, L), which are rows of indices;
    NotImplemented for others."""
    import torch

    if input.dim() != 2 or max_norm is not None or mode not in _MODES or offsets is not None:
        return NotImplemented
    rows = torch.nn.functional.embedding(input, weight)
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    counted = None if padding_idx is None else input != padding_idx
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if counted is None and input.shape[1] > 0:
        how = {_SUM: rows.sum, _MEAN: rows.mean, _MAX: rows.amax}
        return how[_MODES[mode]](1)
    counted = torch.ones_like(input, dtype=torch.bool) if counted is None else counted
    return _reduced(rows, counted, _MODES[mode])


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, ...]:
    """`aten._embedding_bag`: bags (B, D) that begin at `offsets`, and three results that only a
    gradient reads."""
    import torch

    rows = torch.nn.functional.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    places = torch.arange(indices.shape[0], dtype=offsets.dtype)
    first = offsets[:-1] if include_last_offset else offsets
    end = torch.cat(
        [first[1:], offsets[-1:] if include_last_offset else places.shape[0] + 0 * first[:1]]
    )
    within = (places >= first.unsqueeze(-1)) & (places < end.unsqueeze(-1))
    if padding_idx >= 0:
        within = within & (indices != padding_idx)
    nothing = offsets.new_empty((0,))
    if mode == _MAX:
        bags = _reduced(rows.unsqueeze(0), within, mode)
    else:
        bags = within.to(rows.dtype) @ rows
        if mode == _MEAN:
            bags = bags / within.sum(-1, keepdim=True).clamp(min=1).to(rows.dtype)
    return bags, nothing, nothing.clone(), nothing.clone()


# By the names of the operators.
DECOMPOSITIONS = dict.fromkeys(
    ("_embedding_bag.default", "_embedding_bag_forward_only.default"), embedding_bag
)


def _reduced(rows: Any, counted: Any, mode: int) -> Any:
    """Reduce rows (B, L, D) along L where they are counted (B, L); 0 where none is."""
    import torch

    mask = counted.unsqueeze(-1)
    if mode == _MAX:
        largest = torch.where(mask, rows, -math.inf).amax(1)
        return torch.where(counted.any(-1, keepdim=True), largest, 0.0).to(rows.dtype)
    total = torch.where(mask, rows, 0.0).to(rows.dtype).sum(1)
    if mode == _SUM:
        return total
    return total / counted.sum(-1, keepdim=True).clamp(min=1).to(rows.dtype)
