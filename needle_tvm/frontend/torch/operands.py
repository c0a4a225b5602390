"""The dtypes in which PyTorch's operators compute, and the operands that they take as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle.backend_ndarray.dtypes import HALVES

# Operators that move, select or compare elements; and matmuls, whose converters sum in float32 and
# keep operands in a dtype that tensor cores take.
_EXACT = frozenset(
    "linear matmul _to_copy alias amax amin arange argmax argmin as_strided abs broadcast_to cat "
    "clamp clone "
    "constant_pad_nd copy cummax cummin "
    "diagonal embedding eq expand flip full full_like gather ge getitem gt "
    "index index_put index_select le lift_fresh_copy lt masked_fill max max_pool1d "
    "max_pool2d_with_indices maximum min minimum ne neg new_zeros ones_like permute relu repeat "
    "reshape roll scalar_tensor scatter select slice slice_scatter sort split split_with_sizes "
    "squeeze stack sym_size t take to topk tril triu unbind _unsafe_index unsqueeze "
    "upsample_nearest2d view where zeros_like".split()
)
ARITHMETIC = frozenset(
    "add sub mul div rsub pow eq ne lt le gt ge remainder fmod maximum minimum clamp floor_divide "
    "atan2 where".split()
)
_COMPARING = frozenset("eq ne lt le gt ge".split())


def computed_in(node: Any, dtype: str, given: Sequence[str]) -> str:
    """The dtype to which an operator's floating-point operands, and integers beside them, are cast
    first; empty for no cast. PyTorch computes on halves in float32 and rounds once, and the front
    end would turn floating-point numbers beside integers into integers."""
    name = operator_of(node)
    if name in ARITHMETIC:
        common = _promoted(node) if name in _COMPARING else dtype
        if name in _COMPARING and common == "bool":
            return "int8"  # TVM cannot compare bool
        if common in HALVES and name not in _EXACT:
            return "float32"
        if set(given) != {common} or any(map(_whole, given)):
            return common
    if name in _EXACT:
        return ""
    if any(each in ("float16", "bfloat16") for each in given):
        return "float64" if dtype == "float64" else "float32"
    return dtype if len(given) == 1 and "float" in dtype and _whole(given[0]) else ""


def _promoted(node: Any) -> str:
    """The dtype in which PyTorch compares, which 0-d tensors and numbers seldom widen."""
    import torch

    one, other = (getattr(each, "meta", {}).get("val", each) for each in node.args[:2])
    return str(torch.result_type(one, other)).partition(".")[2]


def in_range(node: Any, dtype: str) -> tuple[Any, ...]:
    """An operator's arguments; if it computes on integers, numbers wrap around to their dtype."""
    import torch

    if operator_of(node) in _COMPARING:
        dtype = _promoted(node)
    if not isinstance(node.target, torch._ops.OpOverload) or not dtype.startswith(("int", "uint")):
        return node.args
    kinds = [str(argument.type) for argument in node.target._schema.arguments]
    return tuple(
        torch.tensor(value).to(getattr(torch, dtype)).item()
        if kind in ("Tensor", "number", "Optional[number]") and type(value) is int
        else value
        for value, kind in zip(node.args, kinds, strict=False)
    )


def operator_of(node: Any) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def is_number(node: Any, operand: Any) -> bool:
    """Whether a boolean operand stands for numbers and is not a mask."""
    name = operator_of(node)
    return name in ARITHMETIC and not (name == "where" and operand is node.args[0])


def _whole(dtype: str) -> bool:
    return dtype == "bool" or "int" in dtype
