"""Each name that users of other frameworks type has an example, which runs eagerly and compiled."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")

import needle as ndl
import needle_tvm
from needle import nn, optim
from needle_runtime.artifact.tolerance import MODEL, compare
from tests.needle_tvm.compiler.expected_names import SECTIONS

# Names that compiling refuses, by section: decompositions, draws, and results whose size or value
# depends on the data.
REFUSED = {
    "Sorting and indexing": "nonzero unique masked_select",
    "Making": "bernoulli randint randperm multinomial",
    "Linear algebra": "inv cholesky det slogdet pinv qr svd eigh fft ifft rfft irfft solve lstsq",
    "Tensor": "bool() item tolist",
}


class Each(nn.Module):
    """Applies what a container of modules or parameters holds, one after the other."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        for part in self.held.values() if hasattr(self.held, "values") else self.held:
            x = part(x) if isinstance(part, nn.Module) else x * part
        return x


def operands():
    """The tensors that examples are called on, by name."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.uniform(0.1, 0.9, shape).astype(np.float32)

    square = drawn(4, 4)
    arrays = {
        "x": drawn(3, 4),
        "y": drawn(3, 4),
        "m": rng.random((3, 4)) < 0.5,
        "i": rng.permuted(np.tile(np.arange(4), (3, 1)), axis=1),
        "spd": square @ square.T + np.eye(4, dtype=np.float32),
        "batch": drawn(3, 3, 4),
        "heads": drawn(1, 2, 6, 4),
        "signal": drawn(2, 4, 8),
        "image": drawn(1, 4, 8, 8),
        "volume": drawn(1, 4, 4, 4, 4),
        "grid": drawn(1, 5, 5, 2),
    }
    return {name: ndl.Tensor(array, requires_grad=False) for name, array in arrays.items()}


def function_of(example, names):
    """The example as a function of the operands. A layer before a colon is made here, once."""
    scope = {"ndl": ndl, "nn": nn, "F": nn.functional, "Each": Each}
    made, _, called = example.partition(" : ")
    if called:
        scope["layer"] = eval(made, scope).eval()
        example = f"layer({called})"
    return eval(f"lambda {', '.join(names)}: {example}", scope)


def leaves(value):
    """The arrays of nested results."""
    if isinstance(value, (tuple, list, ndl.TensorTuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value.numpy() if isinstance(value, ndl.Tensor) else np.asarray(value)


@pytest.mark.slow
@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "Optimizers"])
def test_compiled_examples_give_what_eager_ones_do(section):
    refused = []
    for name, example in SECTIONS[section].items():
        tensors = operands()
        function = function_of(example, tensors)
        ndl.manual_seed(0)
        expected = list(leaves(function(*tensors.values())))
        try:
            ndl.manual_seed(0)
            found = list(leaves(needle_tvm.jit(function)(*tensors.values())))
        except ndl.TraceError:
            refused.append(name)
            continue
        for have, want in zip(found, expected, strict=True):
            assert compare(want, have, MODEL).right, name
    assert refused == REFUSED.get(section, "").split()


@pytest.mark.parametrize("name", SECTIONS["Optimizers"])
def test_a_step_of_training_changes_the_weights(name):
    example = SECTIONS["Optimizers"][name]
    model = nn.Linear(4, 2)
    weights = list(model.parameters())

    def loss():
        value = model(operands()["x"]).square().mean()
        value.backward()
        return value

    def step(optimizer, schedule=None):
        optimizer.step()
        if schedule is not None:
            schedule.step()

    loss()
    before = [weight.numpy() for weight in weights]
    scope = {"optim": optim, "weights": weights, "model": model, "loss": loss, "step": step}
    eval(example, {**scope, "o": optim.SGD(weights, lr=0.1)})
    if "step(" in example and "Plateau" not in example:
        assert not all(map(np.array_equal, before, (weight.numpy() for weight in weights)))
