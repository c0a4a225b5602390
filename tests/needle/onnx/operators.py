"""Applications of operators at several opsets, beyond onnx's own node cases, as one model each."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F = "float32"


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def ints(*values):
    return np.array(values, "int64")


X = floats(2, 4, 6, 5)

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
    (13, "ReduceLogSumExp", [X], {"axes": [1, 2]}, 1),
    (13, "ReduceL2", [X], {}, 1),
    (17, "LayerNormalization", [X, floats(6, 5), floats(6, 5, seed=1)], {"axis": 2}, 3),
    (17, "ConvTranspose", [floats(1, 4, 3, 5), floats(4, 2, 3, 3)], {"strides": [2, 1]}, 1),
    (17, "Einsum", [floats(2, 3, 4), floats(2, 4, 5)], {"equation": "bij,bjk->bik"}, 1),
    (17, "Trilu", [floats(4, 5), ints(1)], {"upper": 0}, 1),
    (17, "Hardmax", [X], {"axis": 1}, 1),
    (18, "Split", [floats(7, 2)], {"num_outputs": 3}, 3),
    (18, "ReduceMean", [X, ints(0, 3)], {"keepdims": 0}, 1),
    (18, "GroupNormalization", [X, floats(2), floats(2, seed=1)], {"num_groups": 2}, 1),
    (18, "LpPool", [X], {"kernel_shape": [2, 2], "p": 3, "strides": [2, 1]}, 1),
    (18, "CenterCropPad", [X, ints(4, 9)], {"axes": [2, 3]}, 1),
    (19, "AveragePool", [X], {"kernel_shape": [2, 2], "dilations": [2, 1]}, 1),
    (21, "GroupNormalization", [X, floats(4), floats(4, seed=1)], {"num_groups": 2}, 1),
    (23, "RMSNormalization", [X, floats(5)], {}, 1),
]
OPSETS = sorted({case[0] for case in CASES})


def joined(opset):
    """(a model with every case of an opset, its inputs by name)."""
    nodes, weights, inputs, outputs, given = [], [], [], [], {}
    for i, (_, operator, arrays, attributes, count) in enumerate(c for c in CASES if c[0] == opset):
        names = []
        for j, array in enumerate(arrays):
            names.append(f"x{i}_{j}")
            if array.dtype == F and array.ndim:
                given[names[-1]] = array
                inputs.append(helper.make_tensor_value_info(names[-1], 1, array.shape))
            else:
                weights.append(numpy_helper.from_array(array, names[-1]))
        made = [f"y{i}_{j}" for j in range(count)]
        nodes.append(helper.make_node(operator, names, made, name=f"{operator}{i}", **attributes))
        outputs += [helper.make_tensor_value_info(n, _dtype(operator, arrays), None) for n in made]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), given


def _dtype(operator, arrays):
    whole = operator == "ArgMax" or arrays[0].dtype != F
    whole = whole and operator != "OneHot"
    return TensorProto.INT64 if whole else TensorProto.FLOAT
