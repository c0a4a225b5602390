"""Names that PyTorch, NumPy or MLX have for what is called otherwise here."""

from __future__ import annotations

_CALLED = {
    **dict.fromkeys(("cat", "concatenate"), "ndl.concat"),
    **dict.fromkeys(("mm", "mv"), "ndl.matmul"),
    **dict.fromkeys(("array", "asarray", "as_tensor"), "ndl.Tensor"),
    "absolute": "ndl.abs",
    "arccos": "ndl.acos",
    "arccosh": "ndl.acosh",
    "arcsin": "ndl.asin",
    "arcsinh": "ndl.asinh",
    "arctan": "ndl.atan",
    "arctan2": "ndl.atan2",
    "arctanh": "ndl.atanh",
    "clamp": "ndl.clip",
    "expand_dims": "ndl.unsqueeze",
    "fix": "ndl.trunc",
    "from_numpy": "ndl.from_dlpack",
    "index_select": "ndl.take",
    "invert": "ndl.bitwise_not",
    "jit": "needle_tvm.jit",
    "log_softmax": "ndl.logsoftmax",
    "mod": "ndl.remainder",
    "movedim": "ndl.moveaxis",
    "negative": "ndl.negate",
    "permute_dims": "ndl.permute",
    "rint": "ndl.round",
    "seed": "ndl.manual_seed",
    "split_with_sizes": "ndl.split_sizes",
    "swapdims": "ndl.swapaxes",
    "take_along_dim": "ndl.take_along_axis",
    "true_divide": "ndl.divide",
}


def missing(owner: object, what: str, name: str) -> AttributeError:
    """The error for a name that `owner`, which is `what`, does not have; it gives the one of
    needle's, if there is one, and lets Python look for others that are written alike."""
    text = f"{what} has no attribute {name!r}"
    if name in _CALLED:
        text += f": needle has {_CALLED[name]}"
    elif name.endswith("_") and hasattr(type(owner), name[:-1]):
        text += f": no method changes one in place; {name[:-1]!r} returns a new one"
    return AttributeError(text, name=name, obj=owner)
