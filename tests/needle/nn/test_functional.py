"""Functions of layers beside PyTorch's, properties of layers without a twin there, and refusals."""

import math

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError
from needle.nn import functional as F
from needle.testing import assert_close

NAMES = """softmax logsoftmax log_softmax normalize layer_norm group_norm batch_norm instance_norm
    rms_norm dropout dropout2d linear bilinear conv2d max_pool2d avg_pool2d embedding embedding_bag
    scaled_dot_product_attention rotary_embedding cross_entropy binary_cross_entropy
    binary_cross_entropy_with_logits nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div
    ctc_loss cosine_similarity cosine_embedding_loss triplet_margin_loss relu relu6 leaky_relu prelu
    elu selu celu gelu silu mish softplus softsign hardswish hardsigmoid hardtanh sigmoid tanh
    tanhshrink logsigmoid threshold flatten unflatten"""


def test_public_names():
    assert sorted(F.__all__) == F.__all__
    for name in NAMES.split():
        assert name in F.__all__, name
    for name in F.__all__:
        assert (getattr(F, name).__doc__ or "").strip(), name


def drawn(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def compare(ours, theirs, arrays, device):
    torch = pytest.importorskip("torch")
    mine = [ndl.Tensor(a, device=device) for a in arrays]
    other = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    y, z = ours(*mine), theirs(torch.nn.functional, *other)
    assert_close(y.numpy(), z.detach().numpy(), 100, scale=1.0)
    (grad,) = drawn(y.shape, seed=9)
    y.backward(ndl.Tensor(grad, device=device)), z.backward(torch.tensor(grad))
    for a, b in zip(mine, other, strict=True):
        if b.requires_grad:
            assert_close(a.grad.numpy(), b.grad.numpy(), 200, scale=1.0)


MASK = np.random.default_rng(3).random((4, 5)) < 0.7
MASK[:, 0] = True


@pytest.mark.peer
@pytest.mark.parametrize(
    ("options", "heads", "keys"),
    [
        ({}, 2, 5),
        ({"scale": 0.3}, 2, 5),
        ({"is_causal": True}, 2, 5),
        ({"is_causal": True}, 2, 3),
        ({"attn_mask": MASK}, 2, 5),
        ({"attn_mask": np.linspace(-2, 2, 20, dtype="float32").reshape(4, 5)}, 2, 5),
        ({"enable_gqa": True}, 1, 5),
    ],
)
def test_attention_is_torchs(options, heads, keys, device):
    torch = pytest.importorskip("torch")

    def given(make):
        return {k: make(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}

    arrays = drawn((3, 2, 4, 6), (3, heads, keys, 6), (3, heads, keys, 7))
    compare(
        lambda *x: F.scaled_dot_product_attention(
            *x, **given(lambda m: ndl.Tensor(m, device=device))
        ),
        lambda f, *x: f.scaled_dot_product_attention(*x, **given(torch.tensor)),
        arrays,
        device,
    )


def test_a_query_that_sees_no_key_gives_no_nan(device):
    layer = nn.MultiheadAttention(4, 2, batch_first=True, device=device)
    (values,) = drawn((2, 3, 4))
    x = ndl.Tensor(values, device=device)
    padding = ndl.Tensor(np.array([[True] * 3, [False, False, True]]), device=device)
    y, weights = layer(x, x, x, key_padding_mask=padding, is_causal=True)
    y.sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and np.isfinite(y.numpy()).all()
    np.testing.assert_array_equal(weights.numpy()[1, 0], [1, 0, 0])
    assert (weights.numpy()[1, :, 2] == 0).all()


@pytest.mark.peer
@pytest.mark.parametrize("p", [1, 2, 3.5, math.inf])
def test_normalize_is_torchs(p, device):
    compare(lambda x: F.normalize(x, p), lambda f, x: f.normalize(x, p), drawn((3, 4, 5)), device)
    x = ndl.Tensor(np.zeros((2, 3), "float32"), device=device)
    y = F.normalize(x, 2)
    y.sum().backward()
    assert not y.numpy().any() and np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("traditional", [False, True])
def test_rotary_embeddings_turn_pairs_by_their_distance(traditional, device):
    q, k = (ndl.Tensor(np.broadcast_to(a, (6, 8)).copy(), device=device) for a in drawn((8,), (8,)))
    layer = nn.RotaryEmbedding(8, traditional=traditional)
    a, b = layer(q).numpy(), layer(k).numpy()
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), np.linalg.norm(q.numpy()[0]), rtol=1e-5)
    products = a @ b.T  # depend on the distance alone
    for distance in range(-3, 4):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    np.testing.assert_allclose(layer(q, offset=2).numpy()[:4], a[2:], atol=1e-6)
    np.testing.assert_array_equal(a[0], q.numpy()[0])
    part = F.rotary_embedding(q, dim=4, traditional=traditional).numpy()
    np.testing.assert_array_equal(part[:, 4:], q.numpy()[:, 4:])


def test_sines_and_cosines_of_positions(device):
    x = ndl.Tensor(np.zeros((5, 2, 7), "float32"), device=device)
    y = nn.SinusoidalEncoding(7).eval()(x).numpy()
    for position in range(5):
        for i in range(7):
            angle = position / 10000 ** (2 * (i // 2) / 7)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            np.testing.assert_allclose(y[position, :, i], expected, atol=1e-6)
    swapped = ndl.Tensor(np.zeros((2, 5, 7), "float32"), device=device)
    first = nn.SinusoidalEncoding(7, batch_first=True).eval()(swapped).numpy()
    np.testing.assert_array_equal(first, y.transpose(1, 0, 2))


def test_dropout2d_drops_whole_channels(device):
    x = ndl.Tensor(np.ones((50, 4, 3, 2), "float32"), device=device)
    layer = nn.Dropout2d(0.25)
    y = layer(x).numpy().reshape(200, 6)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert (y == y[:, :1]).all() and 0.55 < (y[:, 0] > 0).mean() < 0.95
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x.numpy())


@pytest.mark.peer
def test_ctc_of_labels_in_a_row_and_of_what_no_path_spells(device):
    torch = pytest.importorskip("torch")
    x = np.log(np.random.default_rng(1).dirichlet(np.ones(4), (5, 3))).astype("float32")
    labels, lengths = [1, 1, 2, 3, 3, 3], [2, 1, 3]  # the last needs six steps
    with_inf = {"input_lengths": [5, 5, 4], "target_lengths": lengths, "reduction": "none"}
    mine = F.ctc_loss(ndl.Tensor(x, device=device), labels, **with_inf).numpy()
    theirs = torch.nn.functional.ctc_loss(torch.tensor(x), torch.tensor(labels), **with_inf)
    assert np.isinf(mine[2])
    assert_close(mine, theirs.numpy(), 50)
    leaf = ndl.Tensor(x, device=device)
    loss = F.ctc_loss(leaf, labels, [5, 5, 4], lengths, zero_infinity=True)
    loss.backward()
    assert np.isfinite(loss.numpy()) and np.isfinite(leaf.grad.numpy()).all()
    assert not leaf.grad.numpy()[:, 2].any()
    single = F.ctc_loss(ndl.Tensor(x[:, 0], device=device), [1, 1], 5, 2, reduction="none")
    assert_close(single.numpy(), mine[0], 50)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_layers_keep_the_dtype_of_their_input(dtype, device):
    x = ndl.Tensor(np.linspace(-3, 3, 24).reshape(2, 3, 4), device=device, dtype=dtype)
    where = {"device": device, "dtype": dtype}
    layers = [
        nn.ELU(), nn.Softplus(), nn.Hardswish(), nn.PReLU(**where), nn.RMSNorm(4, **where),
        nn.LayerNorm((3, 4), **where), nn.GroupNorm(1, 3, **where), nn.GRU(4, 5, **where),
        nn.TransformerEncoderLayer(4, 2, 8, **where), nn.RotaryEmbedding(4),
    ]  # fmt: skip
    for layer in layers:
        y = layer.eval()(x)
        y = y[0] if isinstance(y, tuple) else y
        assert y.dtype == dtype, layer
        y.sum().backward()
    assert x.grad.dtype == dtype


def ones(*shape):
    return ndl.Tensor(np.ones(shape, "float32"))


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda: nn.ELU("1"), TypeError, "ELU: alpha '1' is a str"),
        (lambda: nn.CELU(0), ValueError, "CELU: alpha is 0"),
        (lambda: nn.GELU("sigmoid"), ValueError, "GELU: approximate 'sigmoid'"),
        (lambda: nn.Hardtanh(1, 1), ValueError, "Hardtanh: min_val 1 is not below"),
        (lambda: nn.PReLU(3)(ones(2, 4)), ValueError, r"prelu: weight of shape \(3,\)"),
        (lambda: nn.Softmax(dim="x"), TypeError, "Softmax: dim 'x'"),
        (lambda: nn.Bilinear(2, 0, 3), ValueError, "Bilinear: in2_features 0"),
        (lambda: nn.Bilinear(2, 3, 4)(ones(5, 2), ones(5, 2)), ShapeError, "bilinear: weight"),
        (lambda: nn.Unflatten(1, 3), TypeError, "Unflatten: unflattened_size 3"),
        (lambda: nn.Flatten(2, 1)(ones(2, 3, 4)), ShapeError, "flatten: start_dim 2"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), ValueError, "Embedding: padding_idx 3"),
        (lambda: nn.EmbeddingBag(3, 2, mode="min"), ValueError, "EmbeddingBag: mode 'min'"),
        (lambda: nn.EmbeddingBag(3, 2)(ones(3)), ShapeError, "embedding_bag: x has shape"),
        (lambda: nn.LayerNorm(()), ValueError, "LayerNorm: normalized_shape"),
        (lambda: nn.LayerNorm((3, 4))(ones(3, 5)), ShapeError, r"last axes must be \(3, 4\)"),
        (lambda: nn.RMSNorm(4, eps=-1), ValueError, "RMSNorm: eps -1"),
        (lambda: nn.InstanceNorm2d(3)(ones(2, 3, 4)), ShapeError, "InstanceNorm2d: x has shape"),
        (lambda: nn.BatchNorm3d(3)(ones(2, 3, 4, 4)), ShapeError, "BatchNorm3d: x has shape"),
        (lambda: nn.Conv2d(2, 2, 3, 2, "same"), ValueError, "Conv2d: padding 'same' needs stride"),
        (lambda: nn.Conv2d(2, 2, 3, padding="full"), ValueError, "Conv2d: padding 'full'"),
        (lambda: nn.GRU(2, 3, num_layers=0), ValueError, "GRU: num_layers 0"),
        (lambda: nn.GRU(2, 3)(ones(4, 5, 3)), ShapeError, "GRUCell: X has shape"),
        (lambda: nn.GRU(2, 3, bidirectional=True)(ones(4, 5, 2), ones(1, 5, 3)), ShapeError,
         r"it must be \(2, 5, 3\)"),
        (lambda: nn.GRUCell(2, 3)(ones(4, 2), ones(4, 2)), ShapeError, "GRUCell: a state"),
        (lambda: nn.MultiheadAttention(6, 4), ValueError, "num_heads 4 does not divide"),
        (lambda: nn.MultiheadAttention(4, 2)(*[ones(3, 4)] * 3), ShapeError, "query has shape"),
        (lambda: nn.MultiheadAttention(4, 2)(*[ones(3, 2, 4)] * 3, ones(3, 2)), ShapeError,
         r"key_padding_mask has shape \(3, 2\), not \(2, 3\)"),
        (lambda: nn.TransformerEncoderLayer(4, 2)(ones(3, 2, 4), ones(2, 3)), ShapeError,
         r"attn_mask has shape \(2, 3\), not \(3, 3\) or \(4, 3, 3\)"),
        (lambda: nn.MultiheadAttention(4, 2)(*[ones(3, 2, 4)] * 3, ndl.Tensor([[1] * 3] * 2)),
         TypeError, "a mask is int64"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="x"), ValueError, "activation 'x'"),
        (lambda: nn.TransformerEncoder(nn.ReLU(), 2), TypeError, "layer is a ReLU"),
        (lambda: nn.RotaryEmbedding(3), ValueError, "RotaryEmbedding: dim 3 is not even"),
        (lambda: nn.SinusoidalEncoding(4)(ones(3, 2, 5)), ShapeError, "SinusoidalEncoding: x"),
        (lambda: F.scaled_dot_product_attention(*[ones(3, 4)] * 3, ones(3, 3), is_causal=True),
         ValueError, "give attn_mask or is_causal, not both"),
        (lambda: nn.MSELoss(ones(3)), TypeError, "give weights by name"),
        (lambda: nn.NLLLoss(weight=[1.0]), TypeError, "NLLLoss: weight is a list"),
        (lambda: nn.CrossEntropyLoss(weight=ones(3))(ones(2, 4), ndl.Tensor([0, 1])), ShapeError,
         r"cross_entropy: weight has shape \(3,\), not \(4,\)"),
        (lambda: nn.CrossEntropyLoss()(ones(2, 4), ndl.Tensor([0, 4])), IndexError,
         r"cross_entropy: y holds 4, which is not in \[0, 3\]"),
        (lambda: nn.KLDivLoss("avg"), ValueError, "KLDivLoss: reduction 'avg'"),
        (lambda: nn.HuberLoss(delta=0), ValueError, "HuberLoss: delta 0"),
        (lambda: nn.L1Loss()(ones(2), ones(3)), ShapeError, "l1_loss: shapes"),
        (lambda: nn.TripletMarginLoss(p=0), ValueError, "TripletMarginLoss: p 0"),
        (lambda: nn.CTCLoss(blank=4)(ones(3, 2, 4), ndl.Tensor([[1], [1]]), [3, 3], [1, 1]),
         ValueError, "ctc_loss: blank 4"),
        (lambda: nn.CTCLoss()(ones(3, 2, 4), ndl.Tensor([[1], [1]]), [3], [1, 1]),
         ShapeError, "ctc_loss: input_lengths"),
        (lambda: nn.CTCLoss()(ones(3, 2, 4), [1, 1, 1], [3, 3], [1, 1]), ShapeError, "3 labels"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(make, error, what):
    with pytest.raises(error, match=what):
        make()
