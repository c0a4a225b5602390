"""Attention and the Transformer against PyTorch's functions, forward and backward."""

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError
from needle.testing import assert_close


def tensor(values, device):
    return ndl.Tensor(values, device=device)


def torch_layer_norm(torch, norm, x):
    weight, bias = norm
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def torch_attention(torch, p, prefix, heads, causal, q, k, v):
    """AttentionLayer in PyTorch; `p` are its parameters by name."""

    def project(name, x):
        x = torch_layer_norm(torch, [p[f"{prefix}prenorm_{name}.{n}"] for n in NORM], x)
        x = x @ p[f"{prefix}{name}_projection.weight"]
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        project("q", q), project("k", k), project("v", v), is_causal=causal
    )
    out = out.transpose(1, 2).reshape(*q.shape[:2], -1)
    return out @ p[f"{prefix}out_projection.weight"]


NORM = ("weight", "bias")


def twins(torch, module):
    """Draw new parameters for `module` and return them by name as PyTorch tensors."""
    rng = np.random.default_rng(7)
    found = {}
    for name, parameter in module.named_parameters():
        values = (rng.normal(size=parameter.shape) * 0.3).astype(parameter.dtype)
        parameter.data = ndl.Tensor(values, device=parameter.device)
        found[name] = torch.tensor(values, requires_grad=True)
    return found


def check(torch, module, params, inputs, ours, theirs):
    length = 4096
    assert_close(ours.numpy(), theirs.detach().numpy(), length)
    weights = np.random.default_rng(8).normal(size=ours.shape).astype(ours.dtype)
    ours.backward(ndl.Tensor(weights, device=ours.device))
    theirs.backward(torch.tensor(weights))
    for mine, other in inputs:
        assert_close(mine.grad.numpy(), other.grad.numpy(), length, scale=1.0)
    for name, parameter in module.named_parameters():
        expected = params[name].grad
        expected = np.zeros(parameter.shape, parameter.dtype) if expected is None else expected
        assert_close(parameter.grad.numpy(), np.asarray(expected), length, scale=1.0, what=name)


@pytest.mark.peer
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multi_head_attention_is_torchs(causal, dtype, device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for batch, heads, count, dim in ((1, 1, 1, 1), (2, 3, 5, 4), (2, 2, 16, 8)):
        values = [rng.normal(size=(batch, heads, count, dim)).astype(dtype) for _ in range(3)]
        mine = [tensor(v, device) for v in values]
        others = [torch.tensor(v, requires_grad=True) for v in values]
        y, probs = nn.MultiHeadAttention(causal=causal)(*mine)
        z = torch.nn.functional.scaled_dot_product_attention(*others, is_causal=causal)
        pairs = list(zip(mine, others, strict=True))
        check(torch, nn.Identity(), {}, pairs, y, z)
        np.testing.assert_allclose(probs.numpy().sum(-1), 1, rtol=1e-5)
        if causal:
            assert (np.triu(probs.numpy(), 1) == 0).all()


@pytest.mark.peer
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_layer_is_torchs(causal, dtype, device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for heads, dim, features in ((1, 4, 6), (4, 3, 8)):
        layer = nn.AttentionLayer(features, heads, dim, causal=causal, device=device, dtype=dtype)
        params = twins(torch, layer)
        values = rng.normal(size=(2, 5, features)).astype(dtype)
        x, z = tensor(values, device), torch.tensor(values, requires_grad=True)
        expected = torch_attention(torch, params, "", heads, causal, z, z, z)
        check(torch, layer, params, [(x, z)], layer(x), expected)


@pytest.mark.peer
def test_cross_attention_with_other_features(device):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    layer = nn.AttentionLayer(
        6, 2, 4, k_features=5, v_features=7, out_features=3, causal=False,
        device=device, dtype="float64",
    )  # fmt: skip
    params = twins(torch, layer)
    values = [rng.normal(size=shape) for shape in ((2, 4, 6), (2, 9, 5), (2, 9, 7))]
    mine = [tensor(v, device) for v in values]
    others = [torch.tensor(v, requires_grad=True) for v in values]
    y = layer(*mine)
    assert y.shape == (2, 4, 3)
    expected = torch_attention(torch, params, "", 2, False, *others)
    check(torch, layer, params, list(zip(mine, others, strict=True)), y, expected)


def torch_layer(torch, p, prefix, heads, causal, x):
    def linear(name, x):
        return x @ p[f"{prefix}mlp.modules.{name}.weight"] + p[f"{prefix}mlp.modules.{name}.bias"]

    x = x + torch_attention(torch, p, f"{prefix}attention.", heads, causal, x, x, x)
    norm = [p[f"{prefix}mlp.modules.0.{n}"] for n in NORM]
    return x + linear(4, torch.relu(linear(1, torch_layer_norm(torch, norm, x))))


@pytest.mark.peer
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transformer_is_torchs(causal, batch_first, dtype, device):
    torch = pytest.importorskip("torch")
    model = nn.Transformer(
        8, 12, 2, num_head=2, dim_head=4, causal=causal, batch_first=batch_first,
        sequence_len=6, device=device, dtype=dtype,
    )  # fmt: skip
    params = twins(torch, model)
    values = np.random.default_rng(3).normal(size=(2, 5, 8)).astype(dtype)
    z = torch.tensor(values, requires_grad=True)
    given = values if batch_first else values.transpose(1, 0, 2)
    x = tensor(np.ascontiguousarray(given), device)
    t = z + params["positions.weight"][:5]
    for i in range(2):
        t = torch_layer(torch, params, f"layers.{i}.", 2, causal, t)
    y, h = model(x)
    assert h.shape == y.shape and not h.numpy().any()
    t = t if batch_first else t.transpose(0, 1)
    check(torch, model, params, [], y, t)
    grad = z.grad.numpy()
    grad = grad if batch_first else grad.transpose(1, 0, 2)
    assert_close(x.grad.numpy(), np.ascontiguousarray(grad), 4096, scale=1.0)
    assert model(x, h)[1] is h


def test_a_causal_query_sees_nothing_later(device):
    model = nn.Transformer(
        8, 8, 2, num_head=2, dim_head=4, batch_first=True, sequence_len=6, device=device
    )
    values = np.random.default_rng(4).normal(size=(1, 6, 8)).astype("float32")
    changed = values.copy()
    changed[0, 4:] += 1
    a, b = model(tensor(values, device))[0].numpy(), model(tensor(changed, device))[0].numpy()
    np.testing.assert_allclose(a[:, :4], b[:, :4], atol=1e-6)
    assert np.abs(a[:, 4:] - b[:, 4:]).max() > 1e-2


def test_attention_does_not_overflow(device):
    q = tensor(np.full((1, 1, 3, 4), 1e18, "float32"), device)
    for causal in (False, True):
        y, probs = nn.MultiHeadAttention(causal=causal)(q, q, q)
        assert np.isfinite(y.numpy()).all() and np.isfinite(probs.numpy()).all()


def test_dropout_in_train_mode_only(device):
    np.random.seed(0)
    layer = nn.TransformerLayer(8, 2, 4, 16, dropout=0.5, device=device)
    x = tensor(np.random.default_rng(5).normal(size=(1, 4, 8)).astype("float32"), device)
    assert np.abs(layer(x).numpy() - layer(x).numpy()).max() > 0
    layer.eval()
    np.testing.assert_array_equal(layer(x).numpy(), layer(x).numpy())


def test_shapes_that_do_not_fit_are_named(device):
    model = nn.Transformer(8, 8, 1, num_head=1, dim_head=4, sequence_len=4, device=device)
    with pytest.raises(ShapeError, match=r"Transformer: .*\(2, 3\)"):
        model(tensor(np.ones((2, 3)), device))
    with pytest.raises(ShapeError, match="sequence of 5 is longer than sequence_len 4"):
        model(tensor(np.ones((5, 1, 8), "float32"), device))
    with pytest.raises(ShapeError, match="AttentionLayer: q"):
        nn.AttentionLayer(8, 1, 4, device=device)(tensor(np.ones((2, 8)), device))
