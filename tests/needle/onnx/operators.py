"""Applications of operators at several opsets, beyond onnx's own node cases, as one model each."""

import numpy as np
from onnx import ValueInfoProto, helper, numpy_helper, shape_inference

F = "float32"


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def ints(*values):
    return np.array(values, "int64")


X = floats(2, 4, 6, 5)

REDUCED = ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare")
UNARY = {
    "Elu": {"alpha": 2.0}, "HardSigmoid": {"alpha": 0.3, "beta": 0.6},
    "HardSwish": {}, "LeakyRelu": {"alpha": -0.5}, "Selu": {"alpha": 1.5, "gamma": 0.7},
    "Shrink": {"lambd": 0.3, "bias": 0.1}, "Softsign": {}, "ThresholdedRelu": {"alpha": 0.3},
    "Erf": {}, "Softplus": {}, "Sign": {}, "Round": {}, "Floor": {}, "Ceil": {}, "Relu": {},
    "Mish": {}, "Exp": {}, "Sin": {}, "Cos": {}, "Tan": {}, "Sinh": {}, "Cosh": {}, "Asinh": {},
    "Atan": {}, "Tanh": {},
}  # fmt: skip

# (opset, operator, inputs, attributes, number of outputs). Floats are inputs of the model, integers
# initialisers.
CASES = [
    (7, "Add", [X, floats(6, 1)], {}, 1),
    (7, "Div", [floats(3, 4), floats(4, seed=1)], {}, 1),
    (7, "Div", [ints(-7, 7, 5, -8), ints(2, -2, 3, 4)], {}, 1),
    (9, "Softmax", [X], {"axis": 1}, 1),
    (9, "Softmax", [X], {}, 1),
    (9, "LogSoftmax", [X], {"axis": 2}, 1),
    (9, "Slice", [X], {"starts": [1, -3], "ends": [2, 2**63 - 1], "axes": [0, 2]}, 1),
    (9, "Clip", [X], {"min": -0.5, "max": 0.25}, 1),
    (9, "Unsqueeze", [X], {"axes": [0, 3]}, 1),
    (9, "Squeeze", [floats(1, 3, 1)], {"axes": [0]}, 1),
    (9, "Split", [X], {"axis": 1, "split": [1, 3]}, 2),
    (9, "ReduceSum", [X], {"axes": [1, -1], "keepdims": 0}, 1),
    (9, "Pad", [X], {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}, 1),
    (9, "AveragePool", [X], {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"}, 1),
    (11, "MaxPool", [X], {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]}, 1),
    (11, "Conv", [X, floats(4, 2, 3, 3)], {"group": 2, "pads": [0, 1, 2, 1]}, 1),
    (11, "Conv", [floats(1, 2, 9), floats(3, 2, 3)], {"dilations": [2], "strides": [2]}, 1),
    (11, "Conv", [floats(1, 2, 5, 4, 4), floats(3, 2, 2, 2, 2)], {"auto_pad": "SAME_LOWER"}, 1),
    (11, "Conv", [X, floats(3, 4, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 1]}, 1),
    (11, "Conv", [X, floats(3, 4, 2, 2)], {"auto_pad": "VALID"}, 1),
    (11, "ConvTranspose", [X, floats(4, 3, 2, 2)], {"auto_pad": "VALID", "strides": [2, 2]}, 1),
    (11, "MaxPool", [X], {"kernel_shape": [2, 3], "auto_pad": "VALID"}, 1),
    (11, "LpPool", [X], {"kernel_shape": [2, 3], "auto_pad": "VALID"}, 1),
    (11, "Gemm", [floats(4, 3), floats(5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}, 1),
    (11, "ScatterElements", [floats(3, 4), ints([1, 0, 2, 0]), floats(1, 4)], {"axis": 0}, 1),
    (11, "OneHot", [ints(1, -1, 7), np.array(4), np.array([2, 5], F)], {"axis": 0}, 1),
    (11, "CumSum", [X, ints(-2)], {"exclusive": 1, "reverse": 1}, 1),
    (11, "Gather", [X, ints([0, -1], [2, 1])], {"axis": 2}, 1),
    (11, "DepthToSpace", [X], {"blocksize": 2, "mode": "CRD"}, 1),
    (13, "Softmax", [X], {"axis": 1}, 1),
    (13, "Slice", [X, ints(-1), ints(-(2**63)), ints(3), ints(-2)], {}, 1),
    (13, "Squeeze", [floats(1, 3, 1), ints(-1)], {}, 1),
    (13, "Pad", [X, ints(0, 0, -1, 2, 0, 0, 1, -1), np.array(0.5, F)], {}, 1),
    (13, "Pad", [floats(2, 3), ints(1, 2, 0, 1)], {"mode": "reflect"}, 1),
    (13, "Pad", [floats(2, 3), ints(1, 2, 0, 1)], {"mode": "edge"}, 1),
    (13, "Mod", [floats(3, 4), floats(4, seed=1)], {"fmod": 1}, 1),
    (13, "Pow", [np.abs(X), np.array(1.5, F)], {}, 1),
    (13, "Pow", [np.array([-1, -1, 1, 3, 2, 2]), np.array([65, -3, -2, 39, 62, -1])], {}, 1),
    (13, "Tile", [floats(2, 3), ints(2, 2)], {}, 1),
    (13, "Expand", [floats(3, 1), ints(2, 1, 4)], {}, 1),
    (13, "ArgMax", [X], {"axis": 2, "keepdims": 0, "select_last_index": 1}, 1),
    (13, "GatherND", [X, ints([[0], [2]], [[1], [3]])], {"batch_dims": 1}, 1),
    (13, "LRN", [X], {"size": 3}, 1),
    *((13, f"Reduce{of}", [X], {"axes": [1, -1], "keepdims": 0}, 1) for of in REDUCED),
    *((13, f"Reduce{of}", [X], {}, 1) for of in REDUCED),
    (13, "ReduceLogSum", [np.abs(X)], {"axes": [0]}, 1),
    (13, "ReduceSum", [X, ints(1, -1)], {"keepdims": 0}, 1),
    (13, "ReduceSum", [X], {"noop_with_empty_axes": 1}, 1),
    *((13, f"Reduce{of}", [ints([3, -1, 2], [1, 0, 4])], {"axes": [1]}, 1) for of in REDUCED),
    (13, "PRelu", [X, floats(4, 1, 1)], {}, 1),
    (13, "GatherElements", [X, ints([[[0], [-1]]])], {"axis": -2}, 1),
    (17, "LayerNormalization", [X, floats(6, 5), floats(6, 5, seed=1)], {"axis": 2}, 3),
    (17, "ConvTranspose", [floats(1, 4, 3, 5), floats(4, 2, 3, 3)], {"strides": [2, 1]}, 1),
    (17, "Einsum", [floats(2, 3, 4), floats(2, 4, 5)], {"equation": "bij,bjk->bik"}, 1),
    (17, "Trilu", [floats(4, 5), ints(1)], {"upper": 0}, 1),
    (17, "Hardmax", [X], {"axis": 1}, 1),
    (18, "Split", [floats(7, 2)], {"num_outputs": 3}, 3),
    (18, "ReduceMean", [X, ints(0, 3)], {"keepdims": 0}, 1),
    *((18, f"Reduce{of}", [X], {"noop_with_empty_axes": 1}, 1) for of in REDUCED),
    (18, "Pad", [X, ints(1, 0, 0, 2), None, ints(-1, 1)], {"mode": "edge"}, 1),
    *((18, operator, [X], attributes, 1) for operator, attributes in UNARY.items()),
    (18, "GroupNormalization", [X, floats(2), floats(2, seed=1)], {"num_groups": 2}, 1),
    (18, "LpPool", [X], {"kernel_shape": [2, 2], "p": 3, "strides": [2, 1]}, 1),
    (18, "CenterCropPad", [X, ints(4, 9)], {"axes": [2, 3]}, 1),
    (19, "AveragePool", [X], {"kernel_shape": [2, 2], "dilations": [2, 1]}, 1),
    (21, "GroupNormalization", [X, floats(4), floats(4, seed=1)], {"num_groups": 2}, 1),
    (21, "QuantizeLinear", [X, np.full(5, 0.1, F), np.full(5, 3, "int8")], {"axis": 3}, 1),
    (23, "RMSNormalization", [X, floats(5)], {}, 1),
]
OPSETS = sorted({case[0] for case in CASES})


def joined(opset, dtype=F):
    """(a model with every case of an opset, floats of the dtype, and its inputs by name)."""
    nodes, weights, inputs, outputs, given = [], [], [], [], {}
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for i, (_, operator, arrays, attributes, count) in enumerate(c for c in CASES if c[0] == opset):
        names = []
        for j, array in enumerate(arrays):
            if array is None:
                names.append("")
                continue
            names.append(f"x{i}_{j}")
            value = array.astype(dtype) if array.dtype == F else array
            if array.dtype == F and array.ndim:
                given[names[-1]] = value
                inputs.append(helper.make_tensor_value_info(names[-1], code, array.shape))
            else:
                weights.append(numpy_helper.from_array(value, names[-1]))
        made = [f"y{i}_{j}" for j in range(count)]
        nodes.append(helper.make_node(operator, names, made, name=f"{operator}{i}", **attributes))
        outputs += [ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model = shape_inference.infer_shapes(model)
    for info in model.graph.output:
        if not info.type.HasField("tensor_type"):  # onnx infers none of GroupNormalization
            info.type.tensor_type.elem_type = code
    return model, given
