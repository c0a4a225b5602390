"""Recurrent layers: forward and backward against PyTorch, and their own properties."""

import math

import numpy as np
import pytest

import needle as ndl
from needle import nn
from needle.errors import ShapeError
from needle.testing import assert_close

SEQ, BATCH, INPUT, HIDDEN = 5, 3, 4, 6


def tensor(values, device, requires_grad=True):
    return ndl.Tensor(values, device=device, requires_grad=requires_grad)


def make_pair(kind, dtype, device, layers=1, bias=True, nonlinearity="tanh"):
    """(ours, torch's with the same weights, {name of ours: torch's parameter})."""
    torch = pytest.importorskip("torch")
    where = {"device": device, "dtype": dtype}
    extra = {"nonlinearity": nonlinearity} if kind.startswith("RNN") else {}
    if kind.endswith("Cell"):
        ours = getattr(nn, kind)(INPUT, HIDDEN, bias, **extra, **where)
        theirs = getattr(torch.nn, kind)(INPUT, HIDDEN, bias=bias, **extra)
        cells, suffixes = [("", ours)], [""]
    else:
        ours = getattr(nn, kind)(INPUT, HIDDEN, layers, bias, **extra, **where)
        theirs = getattr(torch.nn, kind)(INPUT, HIDDEN, layers, bias=bias, **extra)
        attribute = f"{kind.lower()}_cells"
        cells = [(f"{attribute}.{i}.", cell) for i, cell in enumerate(getattr(ours, attribute))]
        suffixes = [f"_l{i}" for i in range(layers)]
    theirs = theirs.to(getattr(torch, dtype))
    partner = {}
    for (prefix, cell), suffix in zip(cells, suffixes, strict=True):
        for mine, other in (
            ("W_ih", "weight_ih"),
            ("W_hh", "weight_hh"),
            ("bias_ih", "bias_ih"),
            ("bias_hh", "bias_hh"),
        ):
            parameter = getattr(cell, mine)
            if parameter is None:
                assert not bias and mine.startswith("bias")
                continue
            partner[prefix + mine] = getattr(theirs, other + suffix)
            partner[prefix + mine].data = torch.tensor(parameter.numpy().T.copy())
    return ours, theirs, partner


def flat(value):
    return [t for part in value for t in flat(part)] if isinstance(value, tuple) else [value]


def compare(kind, dtype, device, state, seq=SEQ, **options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    ours, theirs, partner = make_pair(kind, dtype, device, **options)
    cell, layers = kind.endswith("Cell"), options.get("layers", 1)
    x = rng.normal(size=(BATCH, INPUT) if cell else (seq, BATCH, INPUT)).astype(dtype)
    shape = (BATCH, HIDDEN) if cell else (layers, BATCH, HIDDEN)
    count = (2 if "LSTM" in kind else 1) if state else 0
    arrays = [x, *(rng.normal(size=shape).astype(dtype) for _ in range(count))]
    mine = [tensor(a, device) for a in arrays]
    other = [torch.tensor(a, requires_grad=True) for a in arrays]

    def call(model, inputs):
        state = inputs[1:]
        return model(inputs[0], *([tuple(state)] if len(state) == 2 else state))

    y, z = flat(call(ours, mine)), flat(call(theirs, other))
    assert len(y) == len(z)
    terms = (INPUT + HIDDEN) * seq * layers  # roundings accumulate over steps and layers
    for a, b in zip(y, z, strict=True):
        assert_close(a.numpy(), b.detach().numpy(), terms, scale=1.0)
    weights = [rng.normal(size=a.shape).astype(dtype) for a in y]
    total = sum(((a * tensor(w, device, False)).sum() for a, w in zip(y, weights, strict=True)))
    total.backward()
    sum((b * torch.tensor(w)).sum() for b, w in zip(z, weights, strict=True)).backward()
    for a, b in zip(mine, other, strict=True):
        assert_close(a.grad.numpy(), b.grad.numpy(), terms * BATCH, scale=1.0)
    parameters = dict(ours.named_parameters())
    assert list(parameters) == list(partner)
    for name, parameter in parameters.items():
        expected = partner[name].grad.numpy().T
        assert_close(parameter.grad.numpy(), expected, terms * BATCH, scale=1.0, what=name)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("bias", [False, True])
class TestAgainstTorch:
    @pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
    def test_rnn_cell(self, dtype, state, bias, nonlinearity, device):
        compare("RNNCell", dtype, device, state, bias=bias, nonlinearity=nonlinearity)

    def test_lstm_cell(self, dtype, state, bias, device):
        compare("LSTMCell", dtype, device, state, bias=bias)

    @pytest.mark.parametrize("layers", [1, 2, 3])
    @pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
    def test_rnn(self, dtype, state, bias, layers, nonlinearity, device):
        options = {"bias": bias, "layers": layers, "nonlinearity": nonlinearity}
        compare("RNN", dtype, device, state, **options)

    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_lstm(self, dtype, state, bias, layers, device):
        compare("LSTM", dtype, device, state, bias=bias, layers=layers)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
@pytest.mark.parametrize("seq", [1, 40])
def test_short_and_long_sequences_against_torch(kind, seq, device):
    compare(kind, "float32", device, False, seq=seq)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4)])
def test_parameters_have_the_courses_names_and_layouts(kind, gates, device):
    model = getattr(nn, kind)(INPUT, HIDDEN, 2, device=device, dtype="float64")
    cells = f"{kind.lower()}_cells"
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert shapes == {
        f"{cells}.{i}.{name}": shape
        for i, inputs in enumerate((INPUT, HIDDEN))
        for name, shape in (
            ("W_ih", (inputs, gates * HIDDEN)),
            ("W_hh", (HIDDEN, gates * HIDDEN)),
            ("bias_ih", (gates * HIDDEN,)),
            ("bias_hh", (gates * HIDDEN,)),
        )
    }
    assert {p.dtype for p in model.parameters()} == {"float64"}
    values = np.concatenate([p.numpy().ravel() for p in model.parameters()])
    bound = 1 / math.sqrt(HIDDEN)
    assert 0.95 * bound < np.abs(values).max() <= bound
    # The standard deviation of uniform numbers in +-bound is bound / sqrt(3), of their mean
    # 1 / sqrt(n) of that.
    assert abs(values.mean()) < 5 * bound / math.sqrt(3 * values.size)
    cell = getattr(model, cells)[0]
    assert type(cell) is getattr(nn, f"{kind}Cell")
    without = getattr(nn, kind)(INPUT, HIDDEN, bias=False, device=device)
    assert getattr(without, cells)[0].bias_ih is None and len(without.parameters()) == 2


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_a_layer_is_its_cells_one_after_the_other(kind, device):
    model = getattr(nn, kind)(INPUT, HIDDEN, 2, device=device, dtype="float64")
    x = np.random.default_rng(0).normal(size=(SEQ, BATCH, INPUT))
    output, last = model(tensor(x, device))
    assert output.shape == (SEQ, BATCH, HIDDEN)
    states = [None, None]
    for t in range(SEQ):
        value = tensor(x[t], device)
        for i, cell in enumerate(getattr(model, f"{kind.lower()}_cells")):
            states[i] = cell(value, states[i])
            value = states[i][0] if kind == "LSTM" else states[i]
        np.testing.assert_allclose(output.numpy()[t], value.numpy(), rtol=1e-12)
    for i, state in enumerate(states):
        found = [part.numpy()[i] for part in flat(last)]
        for a, b in zip(found, flat(state), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-12)


def test_states_are_handed_on(device):
    model = nn.LSTM(INPUT, HIDDEN, 2, device=device, dtype="float64")
    x = np.random.default_rng(0).normal(size=(6, BATCH, INPUT))
    whole, (h, c) = model(tensor(x, device))
    first, state = model(tensor(x[:4], device))
    second, (h2, c2) = model(tensor(x[4:], device), state)
    joined = np.concatenate([first.numpy(), second.numpy()])
    for a, b in ((whole.numpy(), joined), (h.numpy(), h2.numpy()), (c.numpy(), c2.numpy())):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_what_does_not_fit_is_refused(device):
    def zeros(*shape):
        return ndl.init.zeros(*shape, device=device)

    rnn, lstm = nn.RNN(4, 6, 2, device=device), nn.LSTM(4, 6, device=device)
    cell = nn.LSTMCell(4, 6, device=device)
    x = zeros(5, 3, 4)
    for call, error, text in [
        (lambda: rnn(zeros(5, 3, 7)), ShapeError, r"\(5, 3, 7\).*input_size 4"),
        (lambda: rnn(zeros(3, 4)), ShapeError, r"\(3, 4\).*\(seq_len, bs, input_size\)"),
        (lambda: lstm(zeros(0, 3, 4)), ShapeError, "no steps"),
        (lambda: rnn(x, zeros(1, 3, 6)), ShapeError, r"\(1, 3, 6\).*\(2, 3, 6\)"),
        (lambda: lstm(x, (zeros(1, 3, 6), zeros(1, 2, 6))), ShapeError, r"\(1, 2, 6\)"),
        (lambda: lstm(x, zeros(1, 3, 6)), TypeError, "pair"),
        (lambda: cell(x), ShapeError, r"\(5, 3, 4\)"),
        (lambda: cell(zeros(3, 4), (zeros(3, 6), zeros(1, 6))), ShapeError, r"\(1, 6\)"),
        (lambda: cell(zeros(3, 4), zeros(2, 6)), TypeError, "pair"),
        (lambda: nn.RNN(4, 6, nonlinearity="gelu"), ValueError, "'gelu' is not 'tanh' or 'relu'"),
        (lambda: nn.LSTM(4, 6, num_layers=0), ValueError, "num_layers 0"),
    ]:
        with pytest.raises(error, match=text):
            call()
