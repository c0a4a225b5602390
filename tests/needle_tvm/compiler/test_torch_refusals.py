"""For models and inputs that it cannot take, `compile_torch` gives one sentence that names them,
and prints nothing else on the terminal."""

import pytest

import needle_tvm
from needle_tvm.errors import TranslationError
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.peer
X = torch.ones(4, 4)
BY_PYTORCH = "PyTorch itself does not run it on these inputs"


@torch.library.custom_op("needle_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@unknown.register_fake
def _(x):
    return x.clone()


def linear(**options):
    return nn.Linear(4, 3, **options).eval()


def partly_training(layer):
    model = nn.Sequential(nn.Linear(4, 4), layer).eval()
    layer.train()
    return model


def branching(x):
    return x * 2 if x.sum() > 0 else x


# The model, its inputs, and the error.
REFUSED = {
    "other dtypes": (linear(), [X.double()], rf"^Linear: {BY_PYTORCH} \(RuntimeError: .*Double"),
    "other shapes": (
        nn.Sequential(nn.Linear(4, 2), nn.Linear(4, 2)).eval(),
        [X],
        rf"^Sequential: {BY_PYTORCH} \(RuntimeError: mat1 and mat2 shapes .*4x2 and 4x2\)\)$",
    ),
    "more inputs": (linear(), [X, X], rf"^Linear: {BY_PYTORCH} \(TypeError: .*positional"),
    "a tuple": (linear(), [(X,)], rf"^Linear: {BY_PYTORCH} \(TypeError: .*not tuple"),
    "its own error": (Applied(lambda x: x / (1 // 0)), [X], rf"^Applied: {BY_PYTORCH} \(ZeroDiv"),
    "an index": (
        nn.Embedding(4, 3).eval(),
        [torch.tensor([4])],
        "^Embedding: PyTorch itself .*out of range",
    ),
    "None": (linear(), [X, None], rf"^Linear: {BY_PYTORCH} \(TypeError: .*positional"),
    "an object": (linear(), [X, object()], "^input 1 is a value of type object: only tensors,"),
    "a set in a list": (
        linear(),
        [[X, {1}]],
        r"^input 0\[1\] is a value of type set: only tensors",
    ),
    "an array": (linear(), [X.numpy()], "^input 0 is a value of type ndarray: only tensors"),
    "other keys": (Applied(lambda d: d[None]), [{None: X}], "^input 0 has the key None: only"),
    "sparse": (linear(), [X.to_sparse()], r"^input 0 is a tensor that is torch\.sparse_coo, but"),
    "complex": (
        Applied(lambda x: x.abs()),
        [X.to(torch.complex64)],
        r"^input 0 is of torch\.complex64, which compiled code does not take",
    ),
    "a complex result": (Applied(torch.fft.fft), [X], r"^Applied: a result .* of torch\.complex64"),
    "float8": (linear(), [X.to(torch.float8_e4m3fn)], r"^input 0 is of torch\.float8_e4m3fn, "),
    "meta": (linear(), [X.to("meta")], "^input 0 is a tensor on the device 'meta', which holds"),
    "meta weights": (linear(device="meta"), [X], "^parameter 'weight' is .* the device 'meta'"),
    "lazy": (nn.LazyLinear(3).eval(), [X], "^parameter 'weight' is not initialized: call the"),
    "no module": (None, [X], r"^model is a NoneType, not a torch\.nn\.Module$"),
    "a class": (nn.Linear, [X], r"^model is a type, not a torch\.nn\.Module$"),
    "dropout in training": (
        partly_training(nn.Dropout()),
        [X],
        r"^Sequential: it draws random .*: call model\.eval\(\) first",
    ),
    "a branch": (Applied(branching), [X], "^Applied: its control flow depends on a tensor's"),
    "no tensor": (Applied(lambda x: None), [X], "^Applied: it returns no tensor$"),
    "an operator": (Applied(lambda x: unknown(x)), [X], r"^Applied: .*needle_tests\.unknown"),
    "a converter": (
        Applied(
            lambda x: nn.functional.interpolate(
                x.to(torch.uint8)[None, None], 3, mode="bilinear", antialias=True
            )
        ),
        [X],
        r"aten\._upsample_bilinear2d_aa.*: bilinear of uint8, which PyTorch rounds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_is_said_in_one_sentence(name, capfd):
    model, inputs, said = REFUSED[name]
    model = model.eval() if isinstance(model, Applied) else model
    with pytest.raises(TranslationError, match=said):
        needle_tvm.compile_torch(model, *inputs, stage="noopt")
    assert capfd.readouterr() == ("", "")


def test_scripted_models_are_refused():
    with pytest.warns(DeprecationWarning):
        model = torch.jit.trace(linear(), X)
    with pytest.raises(
        TranslationError, match=r"^model is a TopLevelTracedModule: give the module"
    ):
        needle_tvm.compile_torch(model, X)


def test_a_refusal_changes_neither_the_model_nor_its_inputs():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return torch.exp(x.add_(1))

    model, x, state = Writing().eval(), torch.ones(3), torch.get_rng_state()
    with pytest.raises(TranslationError, match=r"^Writing: it writes to its input 'x'"):
        needle_tvm.compile_torch(model, x)
    assert model.calls == 0 and (x == 1).all() and torch.equal(torch.get_rng_state(), state)
