"""Element types: ONNX's numbers for needle's names, and what ONNX Runtime's CPU kernels take.

ONNX's types of an operator are often more than any program computes. So an operator that has no
kernel for a dtype is computed in a wider one, which needle does as well: halves in float32, small
integers in int32, of which the low bits are kept. `tests/needle/onnx` compares the table with the
kernels that ONNX Runtime registers.
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

# The dtypes of an operator's elements; one that is not here takes all.
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

# The dtypes that hold every value of another, the cheapest first.
_WIDER = {
    "float16": ("float32",),
    "bfloat16": ("float32",),
    "bool": ("int32",),
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), ("int32", "float32")),
    "int32": ("int64", "float64"),
}


def computed_in(op_type: str, dtype: str) -> str:
    """The dtype in which an operator computes elements of `dtype`: the same, unless there is no
    kernel for it but one for a dtype that holds all of its values."""
    known = KERNELS.get(op_type)
    if known is None or dtype in known:
        return dtype
    return next((wide for wide in _WIDER.get(dtype, ()) if wide in known), dtype)


def has_kernel(op_type: str, dtype: str) -> bool:
    """Whether an operator can compute elements of `dtype`, in it or in a wider one."""
    known = KERNELS.get(op_type)
    return known is None or computed_in(op_type, dtype) in known
