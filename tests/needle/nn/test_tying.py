"""Weight tying of Linear and Embedding, as it is written in PyTorch."""

import copy
import pickle

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from needle import nn

torch = pytest.importorskip("torch")


def tied(fw, way, vocab, dim):
    """A language model in small of needle.nn or torch.nn, tied one way or the other."""
    table, inner, head = fw.Embedding(vocab, dim), fw.Linear(dim, dim), fw.Linear(dim, vocab)
    if way == "head":
        head.weight = table.weight
    else:
        table.weight = head.weight
    return fw.Sequential(table, inner, head)


WAYS = [(way, *sizes) for way in ("head", "wte") for sizes in ((7, 4), (5, 5), (3, 6))]


@pytest.mark.parametrize(("way", "vocab", "dim"), WAYS)
def test_a_tied_model_is_pytorchs(way, vocab, dim):
    ours, theirs = tied(nn, way, vocab, dim), tied(torch.nn, way, vocab, dim)
    assert ours[0].weight.shape == ((vocab, dim) if way == "head" else (dim, vocab))
    state = theirs.state_dict()
    for model in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert model[2].weight is model[0].weight and len(model.parameters()) == 4
        assert model.load_state_dict(state, layout="torch") == ([], [])
        tokens = np.random.default_rng(0).integers(0, vocab, (2, 9))
        x, y = ndl.tensor(tokens), torch.tensor(tokens)
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        theirs.zero_grad()
        expected = torch.nn.functional.cross_entropy(theirs(y).flatten(0, 1), y.flatten())
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
        gradient = model[2].weight.grad.numpy()
        gradient = gradient if way == "head" else gradient.T
        np.testing.assert_allclose(gradient, theirs[2].weight.grad.numpy(), atol=1e-6)
    back = ours.state_dict(layout="torch")
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        name: value.shape for name, value in back.items()
    }
    for name, value in back.items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy())


def test_a_step_changes_both_and_a_new_weight_parts_them():
    model = tied(nn, "head", 6, 4)
    optimizer = ndl.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.numpy()
    model(ndl.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert not np.array_equal(before, model[2].weight.numpy())
    x = ndl.randn(3, 4)
    assert ndl.allclose(model[2](x) - model[2].bias, x @ model[0].weight.t(), atol=1e-6)
    model[2].weight = nn.Parameter(ndl.ones(4, 6))
    assert model[2](x).shape == (3, 6) and len(model.parameters()) == 5
    assert model.state_dict(layout="torch")["2.weight"].shape == (6, 4)
    model[2].weight = nn.Linear(4, 6).weight
    assert model[2](x).shape == (3, 6)


def test_functions_take_the_table_too():
    table, x = nn.Embedding(4, 4), ndl.randn(3, 4)
    assert ndl.allclose(F.linear(x, table.weight), x @ table.weight.t())
    assert ndl.allclose(F.linear(x, table.weight.detach()), x @ table.weight)


def test_bags_and_limits_of_norms():
    layer = nn.Linear(4, 6)
    bag, limited = nn.EmbeddingBag(6, 4), nn.Embedding(6, 4, max_norm=1.0)
    bag.weight = limited.weight = layer.weight
    rows = ndl.tensor([[0, 5]])
    assert ndl.allclose(bag(rows), layer.weight.t()[rows[0]].mean(0, keepdim=True))
    with pytest.raises(ValueError, match=r"Embedding: max_norm .* linear.weight = embedding"):
        limited(rows)
    layer.weight = nn.Embedding(6, 4, max_norm=1.0).weight
    assert layer(ndl.ones(1, 4)).shape == (1, 6)


def test_pretrained_tables():
    values = np.random.default_rng(0).random((5, 3)).astype("float32")
    ours = nn.Embedding.from_pretrained(ndl.tensor(values), padding_idx=1)
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(values), padding_idx=1)
    np.testing.assert_array_equal(ours.weight.numpy(), theirs.weight.numpy())
    assert ours.weight.requires_grad is theirs.weight.requires_grad is False
    learned = nn.Embedding.from_pretrained(ours.weight, freeze=False)
    assert learned.weight.requires_grad and learned.weight is not ours.weight
    assert ours.padding_idx == theirs.padding_idx
    with pytest.raises(ValueError, match="not a matrix"):
        nn.Embedding.from_pretrained(ndl.ones(3))
    with pytest.raises(TypeError, match="from_pretrained: embeddings is a ndarray"):
        nn.Embedding.from_pretrained(values)
