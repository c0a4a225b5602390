"""PyTorch models compiled by needle_tvm, against PyTorch's own results."""

import collections

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import ops
from needle.torch import execute, registry
from needle_runtime.errors import InputError, ParameterError
from needle_tvm.errors import TranslationError
from needle_tvm.target import nvcc
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer


class Convolutions(torch.nn.Module):
    """Convolution, batch norm with its own statistics, a residual and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, image):
        hidden = torch.relu(self.norm(self.first(image)))
        hidden = hidden + torch.relu(self.second(hidden))
        return self.head(hidden.mean(dim=(2, 3)))


class Pair(torch.nn.Module):
    """A dict in, a dict out, and a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, batch, scale):
        hidden = torch.tanh(batch["x"] @ self.weight)
        return {"sum": hidden + batch["y"], "list": [hidden @ self.weight.T * scale]}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 4)
    ).eval()


def convolutions():
    model = Convolutions()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model.eval()


def exact(model, *inputs):
    """The model's result in float64."""
    with torch.no_grad():
        return model.double()(*(tensor.double() for tensor in inputs)).numpy()


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (5, 16)), (convolutions, (2, 3, 9, 7))], ids=["mlp", "convolutions"]
)
def test_equals_pytorch(make, shape, stage):
    model, x = make(), torch.randn(shape)
    result = needle_tvm.compile_torch(model, x, stage=stage)(x).numpy()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", ["fused", "tuned"])
@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.MaxPool2d((2, 3), (1, 2), (0, 1), dilation=(2, 1)),
        torch.nn.MaxPool2d(3, 2, ceil_mode=True),
        torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), torch.nn.MaxPool2d(2)),
        torch.nn.ReLU(),
        torch.nn.ReLU6(),
        torch.nn.Hardtanh(-1.5, 2.5),
    ],
    ids=str,
)
def test_what_is_no_number_goes_through(layer, stage):
    """NaN passes through the windows that have one, and only those; -inf stays -inf."""
    x = torch.randn(2, 4, 12, 14)
    x[0, 1, 5, 6] = float("nan")
    x[0, 2] = float("-inf")
    x[1, 0, 3] = float("inf")
    found = needle_tvm.compile_torch(layer.eval(), x, stage=stage)(x.numpy()).numpy()
    np.testing.assert_allclose(found, layer(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert np.isnan(found).any() and not np.isnan(found).all()


@pytest.mark.parametrize("axes", [(1,), (0, 2), (2,), ()], ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_what_is_no_number_goes_through_reductions(reduce, axes):
    class Reduction(torch.nn.Module):
        def forward(self, x):
            return getattr(x, reduce)(axes, keepdim=True) * 2

    x = torch.randn(5, 33, 20)
    x[1, 7, 3] = float("nan")
    x[2] = float("inf")
    found = needle_tvm.compile_torch(Reduction().eval(), x)(x.numpy()).numpy()
    np.testing.assert_array_equal(found, Reduction()(x).numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_take_narrow_operands(dtype):
    model, x = torch.nn.Conv1d(8, 5, 3, bias=False).eval(), torch.randn(2, 8, 30)
    found = needle_tvm.compile_torch(model, x, dtype=dtype)
    narrow = [t.detach().to(getattr(torch, dtype)).double() for t in (x, model.weight)]
    expected = torch.nn.functional.conv1d(*narrow).numpy()
    # Exact products of rounded operands, of which 24 are summed in float32.
    np.testing.assert_allclose(found(x).numpy(), expected, atol=1e-6 * np.abs(expected).max())
    assert found.manifest["precision"] == dtype


def test_weights_are_packed_ahead_and_can_be_replaced():
    model, other, x = mlp(), mlp(), torch.randn(5, 16)
    executable = needle_tvm.compile_torch(model, x)
    assert executable.manifest["functions"]["main"]["transform"] is not None
    executable.set_params({name: value.detach() for name, value in other.state_dict().items()})
    np.testing.assert_allclose(executable(x).numpy(), exact(other, x), rtol=1e-5, atol=1e-5)


def test_the_artifact_runs_without_either_framework(tmp_path):
    model, x = convolutions(), torch.randn(2, 3, 9, 7)
    needle_tvm.compile_torch(model, x).export(tmp_path / "model")
    program = needle_runtime.load(tmp_path / "model")
    np.testing.assert_allclose(program(x.numpy()), exact(model, x), rtol=1e-5, atol=1e-5)
    test = needle_runtime.self_test(program)
    assert test.passed and test.source == "eager"


def test_structures_are_kept():
    model = Pair().eval()
    batch, scale = {"x": torch.randn(2, 6), "y": torch.randn(2, 6)}, torch.tensor(0.5)
    result = needle_tvm.compile_torch(model, batch, scale)(batch, scale=scale)
    with torch.no_grad():
        expected = model(batch, scale)
    assert set(result) == {"sum", "list"}
    np.testing.assert_allclose(result["sum"].numpy(), expected["sum"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result["list"][0].numpy(), expected["list"][0], rtol=1e-5, atol=1e-5)


def test_containers_may_be_of_other_types():
    named = collections.namedtuple("named", "x y")
    batch = collections.OrderedDict(pair=named(torch.randn(3), torch.randn(3)), more={})
    model = Applied(lambda batch: named(batch["pair"].x * 2, batch["pair"].y)).eval()
    first, second = needle_tvm.compile_torch(model, batch, stage="noopt")(batch)
    np.testing.assert_array_equal(first.numpy(), batch["pair"].x * 2)
    np.testing.assert_array_equal(second.numpy(), batch["pair"].y)


def test_equal_models_share_code_whatever_their_weights():
    x = torch.randn(2, 3, 5, 5)
    assert not needle_tvm.compile_torch(convolutions(), x).from_cache
    other = convolutions()
    found = needle_tvm.compile_torch(other, x)
    assert found.from_cache
    np.testing.assert_allclose(found(x).numpy(), exact(other, x), rtol=1e-5, atol=1e-5)


def test_a_program_of_other_operators_has_code_of_its_own(monkeypatch):
    """By a converter's fault two operators may have one graph."""
    x = torch.rand(3) + 0.5
    assert not needle_tvm.compile_torch(Applied(torch.exp).eval(), x, stage="noopt").from_cache
    right = registry.find("aten.sinh.default")
    planted = right._replace(function=lambda node, x: ops.exp(x))
    monkeypatch.setattr(
        execute.registry,
        "find",
        lambda name, find=registry.find: planted if name.startswith("aten.sinh.") else find(name),
    )
    with pytest.raises(TranslationError, match="needle's result differs from PyTorch's"):
        needle_tvm.compile_torch(Applied(torch.sinh).eval(), x, stage="noopt")
    unchecked = needle_tvm.compile_torch(Applied(torch.sinh).eval(), x, stage="noopt", check=False)
    assert not unchecked.from_cache
    with pytest.raises(TranslationError, match="needle's result differs from PyTorch's"):
        needle_tvm.compile_torch(Applied(torch.sinh).eval(), x, stage="noopt")


def test_set_params_takes_a_whole_state_dict():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.unused = torch.nn.BatchNorm1d(3), torch.nn.Linear(2, 2)
            self.register_buffer("places", torch.tensor([2, 0, 1]))
            self.register_buffer("table", torch.rand(3), persistent=False)

        def forward(self, x):
            return self.norm(x[:, self.places]) + self.table

    model, other, x = Model().eval(), Model().eval(), torch.randn(4, 3)
    with torch.no_grad():
        other.norm.running_mean.normal_()
    compiled = needle_tvm.compile_torch(model, x, stage="fused")
    other.table = model.table
    compiled.set_params(other.state_dict())
    with torch.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), other(x).numpy(), rtol=1e-5, atol=1e-6)
    state = other.state_dict() | {"places": torch.tensor([0, 1, 2])}
    with pytest.raises(ParameterError, match="'places' is a constant of the code"):
        compiled.set_params(state)
    with pytest.raises(ParameterError, match="unexpected 'more'"):
        compiled.set_params({**other.state_dict(), "more": torch.ones(1)})


def test_what_cannot_be_compiled_is_refused():
    x = torch.randn(5, 16)
    with pytest.raises(TranslationError, match=r"not a torch\.nn\.Module"):
        needle_tvm.compile_torch(torch.relu, x)
    with pytest.raises(TranslationError, match="PyTorch itself does not run it on these inputs"):
        needle_tvm.compile_torch(mlp(), x, 3)

    class Unknown(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.ctc_loss(x, x.long(), x.long(), x.long())

    with pytest.raises(TranslationError, match=r"^Unknown: "):
        needle_tvm.compile_torch(Unknown().eval(), x)


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_products_may_be_cublas():
    found = needle_tvm.compile_torch(
        mlp(), torch.randn(3, 16), target="cuda:sm_90", products="cublas"
    )
    assert found.manifest["libraries"] == ["cublas"]
    assert [note["chosen"] for note in found.manifest["products"]] == ["cublas", "cublas"]


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_a_model_of_halves_multiplies_on_tensor_cores():
    """The matmuls also give halves: sums are float32 and rounded once."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU()).half().eval()
    found = needle_tvm.compile_torch(model, torch.randn(32, 64).half(), target="cuda:sm_90")
    assert "tvm_mma_sync" in found.script
    (output,) = found.manifest["functions"]["main"]["outputs"]
    assert output["dtype"] == "float16"


def test_tensors_that_ask_for_gradients_are_detached():
    """This applies to inputs and weights, also of bfloat16, which NumPy does not have."""
    model, x = mlp().bfloat16(), torch.randn(5, 16).bfloat16().requires_grad_()
    executable = needle_tvm.compile_torch(model, x, stage="noopt")
    other = mlp().bfloat16()
    executable.set_params(dict(other.named_parameters()))
    found = executable(x).numpy().astype(np.float32)
    np.testing.assert_allclose(found, other(x).detach().float().numpy(), rtol=0.05, atol=0.02)


# Arguments that no compiled code takes, and the error for each.
UNREADABLE = {
    "sparse": (lambda x: x.to_sparse(), "is a Tensor that cannot be read: .*layout"),
    "meta": (lambda x: x.to("meta"), "is a Tensor that cannot be read: .*meta"),
    "complex": (lambda x: x.to(torch.complex64), r"is complex64\(2, 3\), but the model was"),
    "None": (lambda x: None, "is None, not an array of numbers$"),
    "object": (lambda x: object(), "is a value of type object, not an array of numbers$"),
    "ragged": (lambda x: [[1.0], [1.0, 2.0]], "is a list that cannot be read: .*inhomogeneous"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_a_call_cannot_read_is_refused_by_name(name):
    make, said = UNREADABLE[name]
    model, x = torch.nn.Linear(3, 2).eval(), torch.randn(2, 3)
    executable = needle_tvm.compile_torch(model, x, stage="noopt")
    with pytest.raises(InputError, match=f"^input 'input' {said}"):
        executable(make(x))
    if name != "complex":
        with pytest.raises(ParameterError, match=f"'weight' {said.removesuffix('$')}"):
            executable.set_params({"weight": make(x), "bias": model.bias})


class Holding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))
        self.register_buffer("seen", torch.randn(3, 4))

    def forward(self, x, y):
        return x - 2 * y + self.weight + self.seen


@pytest.mark.parametrize("stage", ["noopt", "tuned"])
@pytest.mark.parametrize("name", ["twice", "views", "parameter", "buffer"])
def test_an_example_that_is_in_two_places_is_two_inputs(name, stage):
    model = Holding().eval().requires_grad_(False)
    x = torch.randn(3, 4)
    examples = {
        "twice": (x, x),
        "views": (x, x.view(3, 4)),
        "parameter": (model.weight, x),
        "buffer": (x, model.seen),
    }
    compiled = needle_tvm.compile_torch(model, *examples[name], stage=stage)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    np.testing.assert_allclose(compiled(x, y).numpy(), model(x, y).numpy(), rtol=1e-5, atol=1e-5)
