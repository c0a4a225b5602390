"""Small valid ONNX models, and random damage to them: bytes of the file, and parts of the graph."""

import random

import numpy as np
from onnx import helper, numpy_helper

import needle.onnx
from needle.errors import ModelError, TraceError
from needle.onnx.examples import examples
from needle.trace import trace

_MOST_ELEMENTS = 10**6  # of an input that is drawn


def model(nodes, inputs, outputs, weights, opset=17, **more):
    """A ModelProto; inputs and outputs are (name, dtype, shape), weights arrays by name."""
    infos = [[helper.make_tensor_value_info(*each) for each in kind] for kind in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", *infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def dense():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 6), "float32"), "b": np.zeros(6, "float32")}
    weights |= {"s": np.array([0, 2, -1])}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="gemm", alpha=0.5),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "s"], ["q"]),
        helper.make_node("Softmax", ["q"], ["y"], axis=1),
    ]
    return model(nodes, [("x", 1, ["n", 8])], [("y", 1, None)], weights)


def image():
    weights = {"k": np.ones((4, 2, 3, 3), "float32"), "c": np.ones(4, "float32")}
    weights |= {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(0.5)}
    nodes = [
        helper.make_node("Pad", ["x", "pads", "v"], ["p"]),
        helper.make_node("Conv", ["p", "k"], ["h"], strides=[2, 2], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["h", "c", "c", "c", "c"], ["n"]),
        helper.make_node("MaxPool", ["n"], ["m"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("GlobalAveragePool", ["m"], ["a"]),
        helper.make_node("Flatten", ["a"], ["y"]),
    ]
    return model(nodes, [("x", 1, [1, 2, 9, 8])], [("y", 1, None)], weights)


def sizes():
    weights = {
        "zero": np.array([0]),
        "one": np.array(1),
        "two": np.array([2]),
        "four": np.array([4]),
    }
    weights |= {"minus": np.array([-1]), "table": np.ones((5, 3), "float32")}
    nodes = [
        helper.make_node("Shape", ["i"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["length"]),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("Slice", ["e", "zero", "two", "one1"], ["cut"]),
        helper.make_node("Unsqueeze", ["length", "zero"], ["l"]),
        helper.make_node("Concat", ["minus", "l"], ["shape"], axis=0),
        helper.make_node("Constant", [], ["one1"], value_ints=[1]),
        helper.make_node("Mul", ["l", "two"], ["twice"]),
        helper.make_node("ConstantOfShape", ["twice"], ["zeros"]),
        helper.make_node("ReduceSum", ["cut", "two"], ["sum"], keepdims=0),
        helper.make_node("TopK", ["sum", "two"], ["t", "at"]),
        helper.make_node("Reshape", ["e", "shape"], ["y"]),
    ]
    order = [6, *range(6), *range(7, 12)]
    infos = [("y", 1, None), ("t", 1, None), ("at", 7, None), ("zeros", 1, None)]
    return model([nodes[i] for i in order], [("i", 7, [2, 4])], infos, weights)


MODELS = (dense, image, sizes)


def damaged(seed):
    """The bytes of a damaged model."""
    rng = random.Random(seed)
    proto = rng.choice(MODELS)()
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            _change(rng, proto)
        return proto.SerializeToString()
    data = bytearray(proto.SerializeToString())
    for _ in range(rng.randint(1, 4)):
        _damage(rng, data)
    return bytes(data)


def _damage(rng, data):
    at, kind = rng.randrange(len(data)), rng.randrange(4)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.randrange(256)
    elif kind == 2:
        del data[at : at + rng.randint(1, 8)]
    else:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))


def _whole(graph):
    """The initialisers that no earlier change has damaged."""
    held = {1: 4, 7: 8}
    return [
        each
        for each in graph.initializer
        if each.data_type in held
        and len(each.raw_data) == held[each.data_type] * np.prod(each.dims, dtype=object)
    ]


def _change(rng, proto):
    """Change one part of the graph."""
    graph = proto.graph
    node = rng.choice(graph.node)
    names = [each.name for each in graph.initializer] + [n for m in graph.node for n in m.output]
    numbers = (0, 1, 2, -1, 7, -(2**63), 2**63 - 1, 2**31, 10**6)

    def attribute():
        if not node.attribute:
            return
        each = rng.choice(node.attribute)
        if each.ints:
            each.ints[rng.randrange(len(each.ints))] = rng.choice(numbers)
        else:
            each.i = int(rng.choice(numbers))

    def tensor():
        each = rng.choice(_whole(graph))
        array = numpy_helper.to_array(each).copy().reshape(-1)
        array[rng.randrange(array.size)] = rng.choice(numbers)
        each.raw_data = array.tobytes()

    def dims():
        each = rng.choice(graph.initializer)
        if rng.random() < 0.5 or not each.dims:
            each.dims.append(rng.choice(numbers))
        else:
            each.dims.pop()

    def attach():
        node.attribute.append(
            helper.make_attribute(rng.choice(["axis", "keepdims", "group", "auto_pad"]), 1)
        )

    rng.choice(
        [
            attribute,
            tensor if _whole(graph) else attach,
            attach,
            lambda: graph.node.remove(node),
            lambda: graph.node.append(node),
            lambda: node.input.append(rng.choice(names)),
            lambda: node.input and node.input.__setitem__(0, rng.choice([*names, "", "nothing"])),
            lambda: node.input and node.input.pop(),
            lambda: node.output.__setitem__(0, rng.choice(names)),
            lambda: setattr(
                node, "op_type", rng.choice(["Add", "MatMul", "Nothing", "Concat", "Loop"])
            ),
            lambda: setattr(proto.opset_import[0], "version", rng.choice([0, 1, 6, 9, 12, 24, 99])),
            lambda: setattr(rng.choice(graph.initializer), "data_type", rng.randrange(24)),
            lambda: graph.initializer.pop(),
            lambda: graph.output.add(name=rng.choice(names)),
            lambda: graph.input[0].type.tensor_type.shape.dim.add(dim_value=rng.choice(numbers)),
            dims if graph.initializer else attribute,
        ]
    )()


def refusal(data, path):
    """The sentence with which a damaged model is refused, or None if it is read and traced.
    Anything else that happens is raised."""
    path.write_bytes(data)
    try:
        module = needle.onnx.load(path)
        infos = module.graph_inputs
        if any(n is None for i in infos for n in i.shape or ()) or any(
            np.prod([float(n) for n in i.shape or () if isinstance(n, int)]) > _MOST_ELEMENTS
            for i in infos
        ):
            return None
        axes = {n: 3 for i in infos for n in i.shape or () if isinstance(n, str)}
        trace(module, *examples(infos, {}, sizes=axes))
    except (ModelError, TraceError) as error:
        assert str(error).strip()
        return str(error)
    return None
