"""needle.autocast beside torch.autocast on CPUs."""

import threading

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.nn import functional as F
from needle.op.base import REGISTRY
from needle.ops._autocast import LOW, WIDE

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.peer


def mlp(m):
    return m.Sequential(m.Linear(20, 40), m.LayerNorm(40), m.GELU(), m.Linear(40, 5))


def cnn(m):
    return m.Sequential(
        m.Conv2d(3, 8, 3, padding=1),
        m.BatchNorm2d(8),
        m.ReLU(),
        m.MaxPool2d(2),
        m.Conv2d(8, 8, 3, groups=2, bias=False),
        m.GroupNorm(2, 8),
        m.Flatten(),
        m.Linear(8 * 2 * 2, 5),
    )


def encoder(m):
    layer = m.TransformerEncoderLayer(20, 4, 30, dropout=0.0, batch_first=True)
    return m.Sequential(layer, m.Flatten(), m.Linear(20 * 6, 5))


MODELS = {mlp: (7, 20), cnn: (7, 3, 8, 8), encoder: (7, 6, 20)}


def distance(a, b):
    """The relative distance of lists of arrays."""
    a, b = (np.concatenate([np.ravel(x).astype("float64") for x in each]) for each in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_models_are_as_exact_as_pytorchs(make, seed):
    """Logits, loss and gradients are at most 1.5 times as far from float32's as PyTorch's are."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    other = make(torch.nn)
    state = {name: value.clone() for name, value in other.state_dict().items()}
    x = draw.standard_normal(MODELS[make]).astype("float32")
    labels = draw.integers(0, 5, len(x))
    found = {}
    for enabled in (False, True):
        other = make(torch.nn)
        other.load_state_dict(state)
        cast = torch.autocast("cpu", torch.bfloat16, enabled=enabled)
        with cast:
            logits = other(torch.from_numpy(x))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        loss.backward()
        grads = [p.grad.numpy() for p in other.parameters()]
        found["theirs", enabled] = [logits.detach().float().numpy()], [loss.item()], grads

        ours = make(nn)
        ours.load_state_dict(state, layout="torch")
        with ndl.autocast("bfloat16", enabled=enabled):
            mine = ours(ndl.Tensor(x))
            mine_loss = F.cross_entropy(mine, ndl.Tensor(labels))
        mine_loss.backward()
        assert mine.dtype == str(logits.dtype).removeprefix("torch.")
        assert mine_loss.dtype == "float32"
        assert {p.dtype for p in ours.parameters()} == {"float32"}
        assert {p.grad.dtype for p in ours.parameters()} == {"float32"}
        for p in ours.parameters():
            p.data = p.grad  # which PyTorch's layout then names and transposes
        named = ours.state_dict(layout="torch")
        grads = [named[name].numpy() for name, _ in other.named_parameters()]
        found["ours", enabled] = [mine.numpy()], [mine_loss.item()], grads
    for ours, theirs, exact, own_exact in zip(
        found["ours", True],
        found["theirs", True],
        found["theirs", False],
        found["ours", False],
        strict=True,
    ):
        assert distance(own_exact, exact) < 1e-5
        assert distance(ours, own_exact) <= 1.5 * distance(theirs, exact) + 2e-3


def tensors(m, *shapes):
    draw = np.random.default_rng(1)
    arrays = [draw.standard_normal(shape).astype("float32") for shape in shapes]
    return [torch.from_numpy(x) if m is torch else ndl.Tensor(x) for x in arrays]


PRODUCTS = {
    "matmul": (lambda m, f, a, b: m.matmul(a, b), (4, 5), (5, 6)),
    "@": (lambda m, f, a, b: a @ b, (2, 4, 5), (5,)),
    "einsum": (lambda m, f, a, b: m.einsum("bij,bjk->bk", a, b), (2, 4, 5), (2, 5, 3)),
    "scaled_dot_product_attention": (
        lambda m, f, a, b: f.scaled_dot_product_attention(a, b, b),
        (2, 4, 5, 8),
        (2, 4, 6, 8),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_pytorchs(name):
    function, *shapes = PRODUCTS[name]
    with ndl.autocast("bfloat16"):
        ours = function(ndl, F, *tensors(ndl, *shapes))
    with torch.autocast("cpu", torch.bfloat16):
        theirs = function(torch, torch.nn.functional, *tensors(torch, *shapes))
    assert ours.dtype == "bfloat16" and theirs.dtype == torch.bfloat16
    np.testing.assert_allclose(
        ours.numpy().astype("float32"), theirs.float().numpy(), rtol=0.02, atol=0.02
    )


LAYERS = [
    ("Linear", (5, 6), (3, 5)),
    ("Conv1d", (4, 6, 3), (2, 4, 9)),
    ("Conv2d", (4, 6, 3), (2, 4, 9, 8)),
    ("Conv3d", (4, 6, 3), (2, 4, 5, 6, 7)),
    ("ConvTranspose1d", (4, 6, 3), (2, 4, 9)),
    ("ConvTranspose2d", (4, 6, 3), (2, 4, 9, 8)),
    ("ConvTranspose3d", (4, 6, 3), (2, 4, 5, 6, 7)),
]


@pytest.mark.parametrize(("name", "sizes", "shape"), LAYERS)
def test_layers_give_the_lower_dtype(name, sizes, shape):
    (x,) = tensors(ndl, shape)
    with ndl.autocast("bfloat16"):
        assert getattr(nn, name)(*sizes)(x).dtype == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16):
        assert getattr(torch.nn, name)(*sizes)(*tensors(torch, shape)).dtype == torch.bfloat16


WIDENED = [
    lambda x: F.softmax(x),
    lambda x: F.log_softmax(x),
    lambda x: nn.LayerNorm(6)(x),
    lambda x: nn.RMSNorm(6)(x),
    lambda x: nn.BatchNorm1d(6)(x),
    lambda x: nn.BatchNorm1d(6).eval()(x),
    lambda x: nn.GroupNorm(2, 6)(x),
    lambda x: x.sum(),
    lambda x: x.mean(0),
    lambda x: x.var(),
    lambda x: x.exp(),
    lambda x: x**2,
    lambda x: x.cumsum(0),
    lambda x: F.mse_loss(x, x * 0),
    lambda x: F.l1_loss(x, x * 0),
    lambda x: F.smooth_l1_loss(x, x * 0),
    lambda x: F.huber_loss(x, x * 0),
    lambda x: F.binary_cross_entropy_with_logits(x, x * 0),
    lambda x: F.kl_div(x, x * 0),
    lambda x: F.cross_entropy(x, ndl.arange(4)),
    lambda x: F.nll_loss(x, ndl.arange(4)),
]


@pytest.mark.parametrize("number", range(len(WIDENED)))
def test_normalizations_reductions_and_losses_give_float32(number):
    (x,) = tensors(ndl, (4, 6))
    with ndl.autocast("bfloat16"):
        assert WIDENED[number](x.bfloat16()).dtype == "float32"
        assert WIDENED[number](x).dtype == "float32"


def test_the_lists_name_ops():
    assert LOW | WIDE <= REGISTRY.keys() and not LOW & WIDE


def test_what_is_not_cast():
    a, b = tensors(ndl, (3, 3), (3, 3))
    with ndl.autocast("float16"):
        assert (a @ b).dtype == "float16"
        assert (a.double() @ b.double()).dtype == "float64"
        assert a.bfloat16().sum().dtype == "float32"
        assert (a + b.half()).dtype == "float32"
        assert (a.half() + b.half()).tanh().dtype == "float16"
        assert (ndl.arange(4) @ ndl.arange(4)).dtype == "int64"
        assert ndl.dot(a[0].detach(), b[0].detach()).dtype == "float16"


def test_contexts_nest_and_end():
    a = ndl.ones(2, 2)

    def dtype():
        return (a @ a).dtype

    lower = ndl.autocast("bfloat16")
    with lower:
        with ndl.autocast(enabled=False):
            assert dtype() == "float32"
            with lower:
                assert dtype() == "bfloat16"
        assert dtype() == "bfloat16"
        others = []
        thread = threading.Thread(target=lambda: others.append(dtype()))
        thread.start()
        thread.join()
        assert others == ["float32"]
        assert ndl.autocast(enabled=False)(dtype)() == "float32"
    assert dtype() == "float32" and lower(dtype)() == "bfloat16"
    with pytest.raises(ZeroDivisionError), lower:
        _ = 1 / 0
    assert dtype() == "float32"
    for bad in ("float32", "int8", None, 5):
        with pytest.raises(TypeError, match=r"autocast: dtype .* is not one of float16, bfloat16"):
            ndl.autocast(bad)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers(kind, bias):
    ndl.manual_seed(1)
    layer = getattr(nn, kind)(5, 4, 2, bias=bias)
    x = ndl.randn(6, 3, 5)
    exact = layer(x)[0].numpy()
    with ndl.autocast("bfloat16"):
        y = layer(x)[0]
        loss = y.sum()
    loss.backward()
    np.testing.assert_allclose(y.numpy().astype("float32"), exact, atol=0.03)
    assert {p.grad.dtype for p in layer.parameters()} == {"float32"}
    assert layer(x)[0].numpy().tobytes() == exact.tobytes()


def test_a_backward_pass_within_is_the_same_as_behind():
    def gradients(within):
        ndl.manual_seed(2)
        model, x = mlp(nn), ndl.randn(4, 20)
        with ndl.autocast("bfloat16"):
            loss = F.cross_entropy(model(x), ndl.arange(4))
            if within:
                loss.backward()
        if not within:
            loss.backward()
        return [p.grad.numpy().tobytes() for p in model.parameters()]

    assert gradients(True) == gradients(False)


def test_checkpoint_casts_again():
    def gradients(wrap):
        ndl.manual_seed(2)
        model, x = mlp(nn), ndl.randn(4, 20)
        with ndl.autocast("bfloat16"):
            y = wrap(model)(x)
        y.sum().backward()
        return [p.grad.numpy().tobytes() for p in model.parameters()]

    assert gradients(ndl.checkpoint) == gradients(lambda model: model)
