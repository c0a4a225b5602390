"""A compiled model refuses by name the inputs and weights that it cannot take as meant."""

import shutil

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import nn
from needle_runtime.artifact import Artifact, layout
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.errors import InputError, ParameterError
from tests.needle_tvm.conftest import make_mlp, tensor

MASKED = np.ma.array(np.ones((2, 8), np.float32), mask=False)
HAS_A_MASK = r"MaskedArray has a mask, .* give x\.filled\(value\)"


class WithUnit(np.ndarray):
    """A subclass without a mask."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mlp"
    x = tensor(np.ones((2, 8), np.float32))
    return needle_tvm.compile(make_mlp(8, 8, 8), x, stage="fused").export(path)


@pytest.fixture
def program(exported):
    return needle_runtime.load(exported)


@pytest.fixture
def params(exported):
    return dict(needle_runtime.read_arrays(exported, read_manifest(exported), layout.PARAMS))


def unchanged(program, refused):
    """The error of a refused call, which must leave the weights unchanged."""
    x = np.ones((2, 8), np.float32)
    before = program(x)
    with pytest.raises(ParameterError) as caught:
        refused()
    np.testing.assert_array_equal(program(x), before)
    return str(caught.value)


@pytest.mark.parametrize("load", [needle_runtime.load, needle_tvm.load])
@pytest.mark.parametrize("given", [MASKED, list(MASKED), [[1.0] * 8, (MASKED[0],)]])
def test_masked_inputs_are_refused_by_name(exported, load, given):
    with pytest.raises(InputError, match=f"input 'x': {HAS_A_MASK}"):
        load(exported)(given)


def test_masked_examples_are_refused():
    with pytest.raises(TypeError, match=HAS_A_MASK):
        needle_tvm.compile(make_mlp(8, 8), MASKED)


def test_masked_weights_are_refused_by_name(program, params):
    params["modules.2.weight"] = np.ma.array(params["modules.2.weight"])
    text = unchanged(program, lambda: program.set_params(params))
    assert "'modules.2.weight': MaskedArray has a mask" in text and "missing" not in text


def test_other_subclasses_are_taken(program, params):
    x = np.ones((2, 8), np.float32)
    want = program(x)
    program.set_params({name: value.view(WithUnit) for name, value in params.items()})
    np.testing.assert_array_equal(program(x.view(WithUnit)), want)


# Parameters with several names


@pytest.fixture
def tied(exported, tmp_path):
    """A program whose first weight has another name, and whose second is the third's twin."""
    folder = shutil.copytree(exported, tmp_path / "tied")
    manifest = read_manifest(folder)
    manifest["functions"]["main"]["ties"] = [
        ["modules.0.weight", "also"],
        ["modules.0.bias", "modules.2.bias"],
    ]
    write_manifest(folder, manifest)
    return needle_runtime.Program(Artifact.open(folder))


def test_one_value_under_any_of_its_names_will_do(program, tied, params):
    x = np.ones((2, 8), np.float32)
    params["modules.2.bias"] = params["modules.0.bias"]
    program.set_params(params)
    want = program(x)
    for change in ({}, {"also": params["modules.0.weight"].copy()}):
        tied.set_params(params | change)
        np.testing.assert_array_equal(tied(x), want)
    params["also"] = params.pop("modules.0.weight")
    del params["modules.2.bias"]
    tied.set_params(params)
    np.testing.assert_array_equal(tied(x), want)


@pytest.mark.parametrize(
    ("first", "other"), [("modules.0.weight", "also"), ("modules.0.bias", "modules.2.bias")]
)
def test_two_values_of_one_parameter_are_refused_by_both_names(tied, params, first, other):
    params["modules.2.bias"] = params["modules.0.bias"]
    tied.set_params(params)
    params[other] = params[first] + 1
    text = unchanged(tied, lambda: tied.set_params(params))
    assert f"'{first}' and '{other}' are one parameter and have different values" in text


def test_a_parameter_without_any_of_its_names_is_missing(tied, params):
    params["modules.2.bias"] = params["modules.0.bias"]
    tied.set_params(params)
    del params["modules.0.weight"]
    text = unchanged(tied, lambda: tied.set_params({**params, "other": params["modules.0.bias"]}))
    assert "missing 'modules.0.weight'" in text and "unexpected 'other'" in text


# Through compile


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.decode = nn.Linear(8, 8, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(self.encode(x))


def check_tied(executable, state, want, tmp_path):
    """Check tied weights. `state` has both names; `want(state)` is the model's output for ones."""
    x = np.ones((2, 8), np.float32)
    state = {name: value * 2 for name, value in state.items()}
    executable.set_params(state)
    np.testing.assert_allclose(np.asarray(executable(x)), want(state), rtol=1e-4, atol=1e-5)
    other = {**state, "decode.weight": state["decode.weight"] + 1}
    names = "'encode.weight' and 'decode.weight' are one parameter and have different values"
    for each in (executable, executable.program):
        with pytest.raises(ParameterError, match=names):
            each.set_params(other)
    del state["encode.weight"]
    executable.set_params(state)
    loaded = needle_runtime.load(executable.export(tmp_path / "tied"))
    assert needle_runtime.self_test(loaded).passed
    np.testing.assert_array_equal(loaded(x), np.asarray(executable(x)))
    with pytest.raises(ParameterError, match=names):
        loaded.set_params(other)


def test_a_tied_model_takes_its_state(tmp_path):
    def want(state):
        model = Tied().eval()
        model.load_state_dict(state)
        return model(tensor(np.ones((2, 8), np.float32))).numpy()

    model = Tied().eval()
    executable = needle_tvm.compile(model, np.ones((2, 8), np.float32), stage="fused")
    executable.set_params(model.state_dict())
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    check_tied(executable, state, want, tmp_path)


@pytest.mark.peer
def test_a_tied_model_of_torch_takes_its_state(tmp_path):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = torch.nn.Linear(8, 8)
            self.decode = torch.nn.Linear(8, 8, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(self.encode(x))

    def want(state):
        model = Model().eval()
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        return model(torch.ones(2, 8)).detach().numpy()

    model = Model().eval()
    executable = needle_tvm.compile_torch(model, torch.ones(2, 8), stage="fused")
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    check_tied(executable, state, want, tmp_path)


def test_masked_weights_of_an_executable_are_refused_by_name(exported, params):
    params["modules.2.weight"] = np.ma.array(params["modules.2.weight"])
    with pytest.raises(ParameterError, match=r"'modules\.2\.weight': MaskedArray has a mask"):
        needle_tvm.load(exported).set_params(params)
