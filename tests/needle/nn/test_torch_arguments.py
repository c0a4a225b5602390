"""Arguments of layers that change state or are seen from outside, beside PyTorch's."""

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError
from needle.nn import functional as F
from needle.testing import assert_close

pytestmark = pytest.mark.peer


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(1, 2, shape).astype("float32")


def test_momentum_none_averages_over_all_batches():
    torch = pytest.importorskip("torch")
    mine, other = nn.BatchNorm2d(3, momentum=None), torch.nn.BatchNorm2d(3, momentum=None)
    for seed in range(4):
        x = drawn(5, 3, 4, 2, seed=seed)
        assert_close(mine(ndl.Tensor(x)).numpy(), other(torch.from_numpy(x)).detach().numpy(), 40)
    assert_close(mine.running_mean.numpy(), other.running_mean.numpy(), 40)
    assert_close(mine.running_var.numpy(), other.running_var.numpy(), 40)
    assert mine.num_batches_tracked.item() == other.num_batches_tracked.item() == 4
    mine.eval()
    mine(ndl.Tensor(x))
    assert mine.num_batches_tracked.item() == 4
    again = nn.BatchNorm2d(3, momentum=None)
    again.load_state_dict(other.state_dict(), layout="torch")
    assert again.num_batches_tracked.item() == 4
    assert "num_batches_tracked" not in nn.BatchNorm2d(3).state_dict()


def test_one_value_per_channel_has_no_variance_to_track():
    norm = nn.BatchNorm1d(3)
    with pytest.raises(ShapeError, match="one value per channel"):
        norm(ndl.ones(1, 3))
    assert norm.running_mean.tolist() == [0, 0, 0]
    norm.eval()(ndl.ones(1, 3))


def test_a_nonlinearity_in_the_place_of_bias_is_refused():
    with pytest.raises(TypeError, match="'relu', not a bool; give nonlinearity by name"):
        nn.RNN(3, 4, 2, "relu")


@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("use_input_stats", [False, True])
def test_instance_norm_is_torchs(tracks, use_input_stats):
    torch = pytest.importorskip("torch")
    x, weight, bias = drawn(2, 3, 6), drawn(3, seed=1), drawn(3, seed=2)
    running = [drawn(3, seed=3), np.abs(drawn(3, seed=4))] if tracks else [None, None]
    if not tracks and not use_input_stats:
        with pytest.raises(ValueError, match="running_mean and running_var"):
            F.instance_norm(ndl.Tensor(x), use_input_stats=False)
        return
    mine = [None if v is None else ndl.Tensor(v) for v in running]
    theirs = [None if v is None else torch.tensor(v) for v in running]
    y = F.instance_norm(
        ndl.Tensor(x), *mine, ndl.Tensor(weight), ndl.Tensor(bias), use_input_stats, 0.3, 1e-3
    )
    affine = torch.from_numpy(weight), torch.from_numpy(bias)
    expected = torch.nn.functional.instance_norm(
        torch.from_numpy(x), *theirs, *affine, use_input_stats, 0.3, 1e-3
    )
    assert_close(y.numpy(), expected.numpy(), 6)
    if tracks:
        assert_close(mine[0].numpy(), theirs[0].numpy(), 12)
        assert_close(mine[1].numpy(), theirs[1].numpy(), 12)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0])
def test_rows_that_are_looked_up_are_renormalized(norm_type):
    torch = pytest.importorskip("torch")
    weight, first, second = drawn(7, 4), np.array([[1, 3], [3, 0]]), np.array([3, 5])
    options = {"max_norm": 2.0, "norm_type": norm_type}
    mine, other = nn.Embedding(7, 4, **options), torch.nn.Embedding(7, 4, **options)
    mine.weight.data = ndl.Tensor(weight)
    other.weight.data = torch.tensor(weight)
    # Two lookups, the second of which changes rows that the first has not read.
    y = mine(ndl.Tensor(first)).sum() + (mine(ndl.Tensor(second)) * 2).sum()
    z = other(torch.tensor(first)).sum() + (other(torch.tensor(second)) * 2).sum()
    y.backward(), z.backward()
    assert_close(mine.weight.numpy(), other.weight.detach().numpy(), 8)
    assert_close(mine.weight.grad.numpy(), other.weight.grad.numpy(), 8)
    np.testing.assert_array_equal(mine.weight.numpy()[[2, 4, 6]], weight[[2, 4, 6]])
    before = mine.weight.numpy()
    mine(ndl.Tensor(first))
    np.testing.assert_allclose(mine.weight.numpy(), before, rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.Embedding(3, 2, sparse=True),
        lambda: nn.EmbeddingBag(3, 2, sparse=True),
        lambda: F.embedding(ndl.Tensor([0]), ndl.ones(3, 2), sparse=True),
    ],
)
def test_sparse_gradients_are_refused(call):
    with pytest.raises(ValueError, match="sparse=True asks for sparse gradients"):
        call()


def test_limits_of_rows_are_above_0():
    with pytest.raises(ValueError, match=r"Embedding: max_norm 0\.0 is not above 0"):
        nn.Embedding(3, 2, max_norm=0.0)
    with pytest.raises(ValueError, match="embedding: norm_type 0 is not above 0"):
        F.embedding(ndl.Tensor([0]), ndl.ones(3, 2), max_norm=1.0, norm_type=0)


@pytest.mark.parametrize("zero", [False, True])
def test_further_keys_are_seen_by_causal_queries(zero):
    torch = pytest.importorskip("torch")
    options = {"add_bias_kv": True, "add_zero_attn": zero, "batch_first": True}
    other = torch.nn.MultiheadAttention(8, 2, **options)
    mine = nn.MultiheadAttention(8, 2, **options)
    mine.load_state_dict(other.state_dict(), layout="torch")
    x = drawn(2, 4, 8)
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    inputs = ndl.Tensor(x), torch.from_numpy(x)
    y, weights = mine(*[inputs[0]] * 3, is_causal=True)
    expected, theirs = other(*[inputs[1]] * 3, attn_mask=later)
    assert weights.shape == theirs.shape == (2, 4, 5 + zero)
    assert_close(y.numpy(), expected.detach().numpy(), 16, scale=1.0)
    assert_close(weights.numpy(), theirs.detach().numpy(), 16, scale=1.0)


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_hooks_read_the_weights_inside_a_layer(kind):
    """The recipe of PyTorch's users: one hook asks for the weights, another keeps them."""
    torch = pytest.importorskip("torch")
    name = f"Transformer{kind}Layer"
    options = {"dim_feedforward": 12, "dropout": 0.0, "batch_first": True}
    other = getattr(torch.nn, name)(8, 2, **options)
    mine = getattr(nn, name)(8, 2, **options)
    mine.load_state_dict(other.state_dict(), layout="torch")
    kept = {}

    def ask(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    for side, layer in (("ours", mine), ("theirs", other)):
        for part in ("self_attn", "multihead_attn")[: 1 if kind == "Encoder" else 2]:
            attention = getattr(layer, part)
            attention.register_forward_pre_hook(ask, with_kwargs=True)
            attention.register_forward_hook(
                lambda module, args, output, key=(side, part): kept.update({key: output[1]})
            )
    x, memory = drawn(2, 4, 8), drawn(2, 5, 8, seed=1)
    given = (x,) if kind == "Encoder" else (x, memory)
    mine(*map(ndl.Tensor, given)), other(*map(torch.from_numpy, given))
    assert len(kept) == 2 * len(given)
    for part in {part for _, part in kept}:
        theirs = kept["theirs", part].detach().numpy()
        assert_close(kept["ours", part].numpy(), theirs, 16, scale=1.0)
    assert mine.self_attn(*[ndl.Tensor(x)] * 3, need_weights=False)[1].shape == (2, 2, 4, 4)
