"""float16 and bfloat16 through the framework: gradients, modules, training, files."""

import zlib

import ml_dtypes
import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.autograd import TensorTuple
from needle.backend_ndarray.dtypes import HALVES, astype, is_floating
from needle.ops import REGISTRY
from needle.testing import assert_close, examples, tolerance

OWN = sorted(name for name, op in REGISTRY.items() if op.__module__.startswith("needle."))

pytestmark = pytest.mark.parametrize("dtype", HALVES)


def gradients(op, arrays, dtype):
    """Gradients of a weighted sum of the outputs, for the floating-point inputs."""
    values = [astype(a, dtype) if is_floating(a.dtype.name) else a for a in examples.flat(arrays)]
    nested, leaves = examples.leaves(arrays, values, ndl.cpu())
    out = op(*nested)
    rng = np.random.default_rng(1)
    for part in list(out) if isinstance(out, TensorTuple) else [out]:
        if part.requires_grad:
            weights = ndl.Tensor(rng.integers(1, 5, part.shape) / 2, requires_grad=False)
            (part.astype("float64") * weights).sum().backward(retain_graph=True)
    return [None if leaf.grad is None else leaf.grad for leaf in leaves]


@pytest.mark.parametrize("name", OWN)
def test_gradients(name, dtype):
    """Gradients have the half's dtype and are within a few roundings of float64's."""
    op_class = REGISTRY[name]
    if not op_class.has_gradient:
        return
    for number, sample in enumerate(op_class.samples):
        op = op_class(**sample.attributes)
        rng = np.random.default_rng(zlib.crc32(f"{name} {number}".encode()))
        arrays = [examples.draw(arg, dtype, rng) for arg in sample.inputs]
        specs = [examples.spec(a, None) for a in arrays]
        try:
            op.infer(*specs)
        except (TypeError, ValueError):
            continue
        for got, want in zip(
            gradients(op, arrays, dtype), gradients(op, arrays, "float64"), strict=True
        ):
            if got is None or not sample.gradient:
                continue
            assert got.dtype == dtype or not is_floating(got.dtype)
            assert_close(
                got.numpy().astype(want.dtype),
                want.numpy(),
                scale=1.0,
                rtol=tolerance(dtype, op.reduction_length(*specs)),
                what=f"gradient of {op!r}",
            )


def models():
    return {
        "mlp": (nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)), (4, 12)),
        "norms": (nn.Sequential(nn.LayerNorm1d(12), nn.Linear(12, 8), nn.BatchNorm1d(8)), (6, 12)),
        "conv": (nn.Sequential(nn.Conv(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 6, 5)),
        "transformer": (nn.TransformerLayer(8, 2, 4, 16, dropout=0.0), (2, 3, 8)),
        "lstm": (nn.LSTM(6, 5), (3, 2, 6)),
    }


@pytest.mark.parametrize("name", models())
def test_modules_follow_their_dtype(name, dtype, rng_seeded):
    """`to` casts parameters and buffers; outputs and gradients have their dtype and are near those
    of the float32 model."""
    model, shape = models()[name]
    model.eval()
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)

    def run(values):
        tensor = ndl.Tensor(values)
        out = model(tensor)
        out = out[0] if isinstance(out, tuple) else out
        model_grads = [p for p in model.parameters()]
        for p in model_grads:
            p.grad = None
        (out * out).sum().backward()
        return out, tensor.grad, [p.grad for p in model_grads if p.grad is not None]

    model.to(dtype=dtype)  # first, so that both runs have the same weights
    assert {t.dtype for _, t in model.named_tensors()} == {dtype}
    out, grad, grads = run(x)
    assert {out.dtype, grad.dtype, *(g.dtype for g in grads)} == {dtype}
    model.to(dtype="float32")
    wide_out, wide_grad, _ = run(x.astype("float32"))
    layers = 8  # roundings on the way
    assert_close(
        out.numpy().astype("float32"), wide_out.numpy(), rtol=layers * tolerance(dtype), scale=1.0
    )
    assert_close(
        grad.numpy().astype("float32"),
        wide_grad.numpy(),
        rtol=4 * layers * tolerance(dtype),
        scale=1.0,
    )


@pytest.fixture
def rng_seeded():
    ndl.manual_seed(0)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW])
def test_training_lowers_the_loss(dtype, make, rng_seeded):
    """A two-layer classifier learns its training set, whatever the optimizer."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, 8)) * 2
    y = rng.integers(0, 4, 64)
    x = (centres[y] + rng.standard_normal((64, 8)) * 0.3).astype(dtype)
    model = nn.Sequential(nn.Linear(8, 16, dtype=dtype), nn.ReLU(), nn.Linear(16, 4, dtype=dtype))
    options = {"lr": 0.5, "momentum": 0.5} if make is optim.SGD else {"lr": 0.01}
    optimizer = make(model.parameters(), **options)
    loss_of, losses = nn.CrossEntropyLoss(), []
    for _ in range(60):
        loss = loss_of(model(ndl.Tensor(x)), ndl.Tensor(y.astype("int32")))
        optimizer.reset_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert {p.dtype for p in model.parameters()} == {dtype} and loss.dtype == dtype
    assert losses[-1] < 0.1 < 0.5 < losses[0]


@pytest.mark.peer
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_optimizers_are_torchs_on_float32_masters(dtype, name):
    """The first step, without state, equals torch's float32 step from the same halves, rounded."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    p, g = rng.standard_normal((2, 300)).astype(dtype)
    options = {"lr": 0.1, "weight_decay": 0.01}
    mine = ndl.Tensor(p)
    mine.grad = ndl.Tensor(g)
    getattr(optim, name)([mine], **options).step()
    other = torch.nn.Parameter(torch.tensor(p.astype("float32")))
    other.grad = torch.tensor(g.astype("float32"))
    getattr(torch.optim, name)([other], **options).step()
    assert_close(mine.numpy(), other.detach().numpy().astype(dtype))


@pytest.mark.peer
def test_modules_against_torch(dtype):
    """Linear, layer norm and softmax in torch's own halves."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 24)).astype(dtype)
    norm, linear = nn.LayerNorm1d(24, dtype=dtype), nn.Linear(24, 10, dtype=dtype)
    out = ndl.ops.softmax(linear(norm(ndl.Tensor(x))))

    def theirs(tensor):
        return torch.from_dlpack(tensor.detach().realize_cached_data())

    F = torch.nn.functional
    a = torch.tensor(x.astype("float32")).to(getattr(torch, dtype))
    a = F.layer_norm(a, (24,), theirs(norm.weight).reshape(-1), theirs(norm.bias).reshape(-1))
    a = torch.softmax(a @ theirs(linear.weight) + theirs(linear.bias), -1)
    assert_close(out.numpy().astype("float32"), a.float().numpy(), rtol=4 * tolerance(dtype))


def test_files(dtype, tmp_path):
    """needle and the safetensors library read each other's files."""
    from safetensors.numpy import load_file, save_file

    values = (np.arange(12) / 8 - 0.5).astype(dtype).reshape(3, 4)
    ndl.save(tmp_path / "mine", {"w": ndl.Tensor(values)})
    theirs = load_file(tmp_path / "mine")["w"]
    assert theirs.dtype == values.dtype
    np.testing.assert_array_equal(theirs.view("uint16"), values.view("uint16"))
    save_file({"w": values}, tmp_path / "theirs")
    mine = ndl.load(tmp_path / "theirs")["w"]
    assert mine.dtype == dtype
    np.testing.assert_array_equal(mine.numpy().view("uint16"), values.view("uint16"))


def test_values_go_in_and_out(dtype):
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    for given in (dtype, kind, np.dtype(kind)):
        x = ndl.Tensor([1.5, -2], dtype=given)
        assert x.dtype == dtype and x.numpy().dtype == kind and x.numpy().tolist() == [1.5, -2]
    assert ndl.Tensor(np.ones(2, kind)).dtype == dtype
    assert (x * 2.5).dtype == (1 - x).dtype == dtype
    assert x.sum().item() == -0.5 and isinstance(x.sum().item(), float)
    assert (x + ndl.Tensor(np.ones(2, np.float32))).dtype == "float32"
    for made in (ndl.init.randn(3, dtype=dtype), ndl.init.ones(3, dtype=dtype)):
        assert made.dtype == dtype
