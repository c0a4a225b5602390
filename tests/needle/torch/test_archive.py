"""Files of exported programs run no code, wherever in them it is put."""

import io
import json
import pickle
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest

import needle.torch
from needle.errors import ModelError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

MODEL, INPUTS = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
RAN = []  # what the code in a file appends to


def ran():
    RAN.append(True)


class Bomb:
    def __reduce__(self):
        return ran, ()


@dataclass
class Box:
    x: object


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, other):
        rows = x.shape[0]
        return {"y": self.linear(x) * 2, "z": (other[0] + 1).reshape(rows // 2 * 2, 3)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model, its inputs, and the file of its program, with open sizes."""
    model, inputs = Net().eval(), (torch.randn(4, 4), [torch.randn(4, 3)])
    rows = 2 * torch.export.Dim("n", min=2, max=8)
    program = torch.export.export(model, inputs, dynamic_shapes=({0: rows}, [{0: rows}]))
    path = tmp_path_factory.mktemp("saved") / "model.pt2"
    torch.export.save(program, path)
    return model, inputs, path


def changed(source, target, edits):
    """A copy of an archive with the contents of some of its files replaced, or files added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        names = [name.partition("/")[2] for name in old.namelist()]
        top = old.namelist()[0].partition("/")[0]
        for name in [*names, *(name for name in edits if name not in names)]:
            data = old.read(f"{top}/{name}") if name in names else b""
            if name in edits:
                data = edits[name](data)
            new.writestr(f"{target.stem}/{name}", data)
    return target


def in_json(edit):
    def changed_json(data):
        document = json.loads(data)
        edit(document)
        return json.dumps(document).encode()

    return changed_json


def pickled(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def node_of(target):
    def edit(document):
        document["graph_module"]["graph"]["nodes"][0]["target"] = target

    return in_json(edit)


def size_of(text):
    def edit(document):
        sizes = document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = text

    return in_json(edit)


def name_of(text):
    def edit(document):
        document["graph_module"]["graph"]["inputs"][2]["as_tensor"]["name"] = text

    return in_json(edit)


def context_of(context):
    def edit(document):
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["out_spec"])
        tree["context"] = json.dumps(context)
        signature["out_spec"] = json.dumps([version, tree])

    return in_json(edit)


def as_pickle(document):
    document["config"]["linear.weight"]["use_pickle"] = True


CALL = "__import__('tests.needle.torch.test_archive', fromlist=['ran']).ran()"
DEFAULTS = {"default_factory_module": __name__, "default_factory_name": "ran"}
ENUM = {"__enum__": True, "fqn": "this:Nothing", "name": "x"}
BOMBS = {
    "inputs": {INPUTS: lambda _: pickled((Bomb(),))},
    "inputs, plain": {INPUTS: lambda _: pickle.dumps((Bomb(),))},
    "weights, older": {"data/weights/model.pt": lambda _: pickled({"a": Bomb()})},
    "constants, older": {"data/constants/model.pt": lambda _: pickled({"a": Bomb()})},
    "a weight": {
        WEIGHTS: in_json(as_pickle),
        "data/weights/weight_0": lambda _: pickled(Bomb()),
    },
    "machine code": {"data/aotinductor/model/model.so": lambda _: b"\x7fELF"},
    "a function": {MODEL: node_of("torch.hub.load")},
    "a module of torch's": {MODEL: node_of("torch.os.system")},
    "another name": {MODEL: node_of("torchx.os.system")},
    "an operator's module": {MODEL: node_of("_operator.methodcaller")},
    "a library": {MODEL: node_of("torch.ops.load_library")},
    "an attribute": {MODEL: node_of("torch.ops.aten.__dict__")},
    "a size": {MODEL: size_of(CALL)},
    "a size by attribute": {MODEL: size_of("Integer(2).__class__")},
    "a size by a function": {MODEL: size_of("sympify('1')")},
    "a symbol": {MODEL: size_of(f'Symbol("{CALL}")')},
    "a name": {MODEL: name_of(f"x = {CALL}")},
    "an enum": {MODEL: context_of([ENUM])},
    "a factory": {MODEL: context_of(DEFAULTS)},
}


@pytest.mark.parametrize("where", BOMBS)
def test_code_in_a_file_is_refused_and_does_not_run(saved, tmp_path, where):
    RAN.clear()
    path = changed(saved[2], tmp_path / "model.pt2", BOMBS[where])
    with pytest.raises(ModelError, match=r"model\.pt2': .*can run any code; .*trusted=True"):
        needle.torch.load(path)
    assert not RAN


def test_the_bombs_are_live(saved, tmp_path):
    """Without the checks, pickles and sizes do run: the test above is able to fail."""
    for where in ("inputs", "a weight", "a size"):
        RAN.clear()
        path = changed(saved[2], tmp_path / "model.pt2", BOMBS[where])
        with pytest.raises(ModelError):
            needle.torch.load(path, trusted=True)
        assert RAN, where


def test_older_archives_need_trust(saved, tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("version", "8.20")
        file.writestr("serialized_example_inputs.pt", pickled((Bomb(),)))
    RAN.clear()
    with pytest.raises(ModelError):
        needle.torch.load(path)
    assert not RAN


def test_a_trusted_file_may_hold_objects(tmp_path):
    """Example inputs of one's own class are pickled, by the name of the class."""
    torch.export.register_dataclass(Box, serialized_type_name="needle.tests.Box")

    class Takes(torch.nn.Module):
        def forward(self, box):
            return box.x * 2

    box, path = Box(torch.randn(3)), tmp_path / "boxed.pt2"
    torch.export.save(torch.export.export(Takes(), (box,)), path)
    with pytest.raises(ModelError, match=r"sample_inputs/model\.pt is a pickle of more than"):
        needle.torch.load(path)
    loaded = needle.torch.load(path, trusted=True)
    found = loaded(Box(box.x.numpy()))
    np.testing.assert_array_equal(found.numpy(), box.x.numpy() * 2)
    with pytest.raises(TypeError, match="trusted=1: must be True or False"):
        needle.torch.load(path, trusted=1)


def test_a_sound_file_is_loaded(saved):
    model, inputs, path = saved
    loaded = needle.torch.load(path)
    wanted = model(*inputs)
    x, (other,) = inputs
    for name, found in loaded(x.numpy(), [other.numpy()]).items():
        np.testing.assert_allclose(
            found.numpy(), wanted[name].detach().numpy(), rtol=1e-5, atol=1e-6
        )
