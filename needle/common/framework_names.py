"""PyTorch, NumPy and MLX names, and needle's names for the same things."""

from __future__ import annotations

_CALLED = {
    **dict.fromkeys(("array", "asarray"), "ndl.Tensor"),
    "compile": "needle_tvm.compile",
    "expand_dims": "ndl.unsqueeze",
    "invert": "ndl.bitwise_not",
    "jit": "needle_tvm.jit",
    "mod": "ndl.remainder",
    "permute_dims": "ndl.permute",
    "rint": "ndl.round",
    "seed": "ndl.manual_seed",
    "split_with_sizes": "ndl.split_sizes",
    "take_along_dim": "ndl.take_along_axis",
}


def missing(owner: object, what: str, name: str) -> AttributeError:
    """Return the error for a `name` that `owner` lacks; messages call the owner `what`. The error
    gives needle's name, if there is one, and lets Python suggest similar names."""
    text = f"{what} has no attribute {name!r}"
    if name in _CALLED:
        text += f": needle has {_CALLED[name]}"
    elif name.endswith("_") and hasattr(type(owner), name[:-1]):
        text += f": no such in-place method; {name[:-1]!r} returns a new one"
    return AttributeError(text, name=name, obj=owner)
