"""Element types: ONNX's codes for needle's dtypes, and the dtypes of ONNX Runtime's CPU kernels.

ONNX often allows an operator more dtypes than any runtime implements. An operator without a kernel
for a dtype is therefore computed in a wider dtype, as in needle: float16 in float32, and small
integers in int32, keeping the low bits. `tests/needle/onnx` compares the table with the kernels
that ONNX Runtime registers.
"""

from __future__ import annotations

# onnx.TensorProto.DataType
NUMBER = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}

_FLOATS = frozenset({"float32", "float64"})
_WHOLE = frozenset({"int32", "int64"})
_COMPUTED = _FLOATS | _WHOLE
_BYTES = _COMPUTED | {"int8", "uint8"}
_NUMBERS = _BYTES | {"int16", "uint16"}
_INTEGERS = _NUMBERS - _FLOATS
_FLOAT32 = frozenset({"float32"})

# The dtypes of each operator's kernels. An operator that is not listed takes all dtypes.
KERNELS = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Less", "Greater", "Abs", "Sign", "Mod"), _NUMBERS
    ),
    **dict.fromkeys(("LessOrEqual", "GreaterOrEqual"), _NUMBERS),
    "Equal": _NUMBERS | {"bool"},
    "Neg": _COMPUTED | {"int8", "int16"},
    **dict.fromkeys(("Max", "Min", "Where", "Clip"), _BYTES),
    **dict.fromkeys(
        ("Pow", "ReduceSum", "ReduceMean", "ReduceProd", "CumSum", "MatMul"), _COMPUTED
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK"), _BYTES),
    "Relu": _FLOATS | {"int8", "int32"},
    **dict.fromkeys(("Exp", "Log", "Tanh", "Sigmoid", "Sqrt", "Sin", "Cos"), _FLOATS),
    **dict.fromkeys(("Floor", "Ceil", "Round", "IsNaN", "IsInf"), _FLOATS),
    **dict.fromkeys(("Softmax", "LogSoftmax", "ReduceLogSumExp", "Gemm"), _FLOATS),
    **dict.fromkeys(("BatchNormalization",), _FLOATS),
    **dict.fromkeys(("Asin", "Acos", "Atan", "Tan", "Sinh", "Cosh"), _FLOAT32),
    **dict.fromkeys(
        ("Asinh", "Acosh", "Atanh", "Erf", "Gelu", "Softplus", "LayerNormalization"), _FLOAT32
    ),
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "AveragePool", "LSTM", "GRU", "RNN", "InstanceNormalization"),
        _FLOAT32,
    ),
    "MaxPool": _FLOATS | {"int8", "uint8"},
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), _INTEGERS),
    "Pad": _BYTES | {"bool"},
    "Expand": _NUMBERS | {"bool", "float16"},
}

# For each dtype, the wider dtypes that hold all its values, the cheapest first.
_WIDER = {
    "float16": ("float32",),
    "bfloat16": ("float32",),
    "bool": ("int32",),
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), ("int32", "float32")),
    "int32": ("int64", "float64"),
}


def computed_in(op_type: str, dtype: str) -> str:
    """Return the dtype in which the operator `op_type` computes elements of `dtype`. It is the same
    dtype, unless only a wider dtype that holds all its values has a kernel."""
    known = KERNELS.get(op_type)
    if known is None or dtype in known:
        return dtype
    return next((wide for wide in _WIDER.get(dtype, ()) if wide in known), dtype)


def has_kernel(op_type: str, dtype: str) -> bool:
    """Return whether the operator `op_type` can compute elements of `dtype`, in this dtype or a
    wider one."""
    known = KERNELS.get(op_type)
    return known is None or computed_in(op_type, dtype) in known
