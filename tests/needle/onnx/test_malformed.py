"""Files that are damaged, break ONNX's rules or mean harm get a sentence: no crash, no hang."""

import re

import numpy as np
import pytest

import needle.onnx
from needle.errors import ModelError, UnsupportedError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.needle.onnx.mutation import MODELS, damaged, dense, model, refusal  # noqa: E402


def test_the_models_that_are_damaged_are_valid(tmp_path):
    for make in MODELS:
        assert refusal(make().SerializeToString(), tmp_path / "m.onnx") is None


def test_damaged_files_are_refused_or_read(tmp_path):
    texts = [refusal(damaged(seed), tmp_path / "m.onnx") for seed in range(60)]
    assert 30 < sum(text is not None for text in texts)


@pytest.mark.long
def test_more_damaged_files_are_refused_or_read(tmp_path):
    for seed in range(60, 4000):
        refusal(damaged(seed), tmp_path / "m.onnx")


def raises(proto, kind, text):
    with pytest.raises(kind, match=text):
        needle.onnx.load(proto)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x0a" * 40, bytes(range(256))])
def test_other_files(data, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    raises(path, ModelError, "not an ONNX|no ONNX|not valid")


def test_absent_files_and_other_objects(tmp_path):
    with pytest.raises(FileNotFoundError):
        needle.onnx.load(tmp_path / "absent.onnx")
    with pytest.raises(TypeError, match=r"a int is neither a path nor an onnx.ModelProto"):
        needle.onnx.load(3)


def test_cycles_missing_values_and_names_used_twice():
    add = helper.make_node
    for nodes, text in (
        ([add("Relu", ["b"], ["a"]), add("Relu", ["a"], ["b"])], "topologically sorted.*'b'"),
        ([add("Add", ["x", "w"], ["b"])], "input 'w' of node"),
        ([add("Relu", ["x"], ["b"]), add("Neg", ["x"], ["b"])], "'b' has been used"),
        ([add("Relu", ["x"], ["c"])], "output 'b' is not an output"),
    ):
        raises(model(nodes, [("x", 1, [2])], [("b", 1, [2])], {}), ModelError, text)


def test_weights_that_do_not_fit_their_shape():
    proto = dense()
    proto.graph.initializer[0].dims[0] = 10**12
    raises(proto, ModelError, r"tensor 'w', \[1000000000000, 6\], is damaged")
    proto = dense()
    proto.graph.initializer.append(proto.graph.initializer[0])
    raises(proto, ModelError, "initialiser 'w' occurs twice")


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("../secret", "leaves the model's folder"),
        ("/etc/passwd", "leaves the model's folder"),
        ("inner/../../secret", "leaves the model's folder"),
        ("link", "leaves the model's folder"),
        ("absent", "there is no file 'absent'"),
        ("", "has no location"),
        ("short", "has 3 bytes, not 192"),
    ],
)
def test_external_data_stays_in_the_folder(location, text, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(1000))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "short").write_bytes(bytes(3))
    proto = dense()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    raises(proto, ModelError, "not loaded from a file")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    raises(folder / "m.onnx", ModelError, re.escape(text))


def test_functions_that_call_each_other_without_end_or_grow_without_bound():
    def function(name, calls, times):
        nodes = [helper.make_node(calls, ["v"], [f"o{i}"], domain="own") for i in range(times)]
        nodes.append(helper.make_node("Relu", ["v"], ["w"]))
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_function("own", name, ["v"], ["w"], nodes, imports)

    def calling(functions):
        node = helper.make_node(functions[-1].name, ["x"], ["y"], domain="own")
        proto = model([node], [("x", 1, [2])], [("y", 1, [2])], {}, functions=functions)
        proto.opset_import.append(helper.make_opsetid("own", 1))
        return proto

    circle = calling([function("A", "B", 1), function("B", "A", 1)])
    raises(circle, ModelError, "Cycle detected|calls itself")
    laughs = [function("F0", "F0", 0)]
    laughs += [function(f"F{i}", f"F{i - 1}", 10) for i in range(1, 12)]
    raises(calling(laughs), ModelError, "expand to [0-9]+ nodes")


def test_dtypes_and_kinds_that_needle_has_not():
    node = helper.make_node("Identity", ["x"], ["y"])
    raises(model([node], [("x", 8, [2])], [("y", 8, [2])], {}), UnsupportedError, "dtype string")
    raises(model([node], [("x", 14, [2])], [("y", 14, [2])], {}), UnsupportedError, "complex64")
    proto = model([node], [("x", 1, [2])], [("y", 1, [2])], {})
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.sequence_type.elem_type.tensor_type.elem_type = 1
    raises(proto, UnsupportedError, "'x' is a sequence, not a tensor")
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    module = needle.onnx.load(model([cast], [("x", 1, [2])], [("y", 17, [2])], {}))
    with pytest.raises(UnsupportedError, match=r"'Cast_0'.*not supported: the dtype float8e4m3fn"):
        module(np.ones(2, "float32"))


def test_opsets_that_are_not_known():
    for version in (0, 99):
        raises(
            model([], [], [], {}, opset=version) if False else _with(version),
            UnsupportedError,
            "opset",
        )


def _with(version):
    proto = dense()
    proto.opset_import[0].version = version
    return proto


def test_strings_among_the_weights():
    proto = dense()
    proto.graph.initializer.append(numpy_helper.from_array(np.array(["a"], object), "t"))
    raises(proto, UnsupportedError, "tensor 't': tensors of strings")
