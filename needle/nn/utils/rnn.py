"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from collections.abc import Sequence

from ... import ops
from ...autograd.tensor import Tensor
from ...common.keywords import name_functions
from ...errors import ShapeError
from ...ops._arguments import check_tensors

__all__ = ["pad_sequence", "unpad_sequence"]


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Return sequences (L_i, ...) as one tensor (longest, N, ...), or (N, longest, ...) with
    `batch_first`. Shorter sequences are padded with `padding_value` on the `padding_side`, "right"
    or "left".
    Raises ShapeError if `sequences` is empty or extents after the first differ.

    >>> nn.utils.rnn.pad_sequence([ndl.tensor([1, 2, 3]), ndl.tensor([4])], True).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    sequences = list(sequences)
    check_tensors("pad_sequence", **{f"sequences[{i}]": x for i, x in enumerate(sequences)})
    if padding_side not in ("right", "left"):
        raise ValueError(f"pad_sequence: padding_side {padding_side!r} is not 'right' or 'left'")
    if not sequences or any(not x.ndim or x.shape[1:] != sequences[0].shape[1:] for x in sequences):
        shapes = [x.shape for x in sequences]
        raise ShapeError(f"pad_sequence: shapes {shapes} must be equal except for the first extent")
    longest = max(x.shape[0] for x in sequences)
    rows = []
    for x in sequences:
        missing = longest - x.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(ops.pad(x, (ends, *[(0, 0)] * (x.ndim - 1)), padding_value))
    return ops.stack(rows, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """Return the sequences in `padded_sequences`, each cut to its length in `lengths`.
    `padded_sequences` is a result of `pad_sequence`: (longest, N, ...), or (N, longest, ...) with
    `batch_first`. Raises ShapeError unless there are N lengths."""
    given = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    rows = padded_sequences if batch_first else ops.swapaxes(padded_sequences, 0, 1)
    if len(given) != rows.shape[0]:
        raise ShapeError(f"unpad_sequence: {len(given)} lengths for {rows.shape[0]} sequences")
    return [row[:length] for row, length in zip(rows, given, strict=True)]


globals().update(name_functions((name, globals()[name]) for name in __all__))
