"""LSTM, GRU and RNN of PyTorch as loops: one kernel per layer and direction, whatever the steps."""

import numpy as np
import pytest

import needle_tvm
from needle import Dim
from needle_tvm.errors import TranslationError
from tests.needle_tvm.compiler.torch_checks import Applied, agree_at, check

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


def layer(kind, **options):
    return getattr(nn, kind)(5, 7, **options).eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_layers_directions_and_given_states(kind):
    both = layer(kind, num_layers=2, bidirectional=True, batch_first=True)
    plain = layer(kind, bias=False)
    h = torch.randn(1, 3, 7)

    def run(x, h):
        rows, states = both(x)
        steps = x.transpose(0, 1)
        given = (h, 2 * h) if kind == "LSTM" else h
        return rows, states, rows[:, -1], plain(steps, given), plain(x[0])

    check(run, [torch.randn(3, 4, 5), h], steps=16, atol=1e-6)


def test_a_classifier_by_the_last_step_of_two_directions():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 8, bidirectional=True, batch_first=True)
            self.gru = nn.GRU(16, 8, bidirectional=True, batch_first=True)
            self.rnn = nn.RNN(16, 8, nonlinearity="relu", batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.rnn(self.gru(self.lstm(x)[0])[0])[0][:, -1])

    model, x = Classifier().eval(), torch.randn(2, 60, 5)
    compiled = needle_tvm.compile_torch(model, x)
    with torch.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    assert compiled.script.count("def loop") == 5  # one for each direction of each layer
    assert "lstm.weight_hh_l0_reverse" in {entry["name"] for entry in compiled.program.params}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_many_steps_compile_as_fast_as_few(kind):
    model = getattr(nn, kind)(8, 16, num_layers=3).eval()
    x = torch.randn(1000, 2, 8)
    compiled = needle_tvm.compile_torch(model, x)
    with torch.no_grad():
        wanted = model(x)[0].numpy()
    np.testing.assert_allclose(compiled(x)[0].numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert 1 <= compiled.script.count("def loop") <= 3  # layers of equal sizes may share one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("stage", ["tuned", "noopt"])
def test_every_number_of_steps(kind, stage):
    model = layer(kind, num_layers=2, bidirectional=True, batch_first=True)
    dims = {0: {0: Dim("b", max=6), 1: Dim("t", max=40)}}
    sizes = [(1, 1), (2, 40), (6, 7)]
    agree_at(model, lambda b, t: (torch.randn(b, t, 5),), dims, sizes, stage)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes(dtype):
    one, two = layer("LSTM").to(dtype), layer("GRU").to(dtype)
    # Sums of some tens of terms of about 1, whose results may nearly cancel out.
    tolerance = 0.02 if dtype is torch.bfloat16 else 64 * torch.finfo(dtype).eps
    check(lambda x: (*one(x)[1], two(x)[0]), [torch.randn(4, 2, 5, dtype=dtype)], atol=tolerance)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projections():
    model = nn.LSTM(5, 7, proj_size=3).eval().requires_grad_(False)
    check(lambda x: model(x)[0], [torch.randn(4, 2, 5)], atol=1e-6)


def test_packed_sequences_are_refused():
    model = layer("GRU")

    def packed(x):
        return model(nn.utils.rnn.pack_padded_sequence(x, [4, 2]))[0].data

    with pytest.raises(TranslationError) as caught:
        needle_tvm.compile_torch(Applied(packed).eval(), torch.randn(4, 2, 5))
    assert "\n" not in str(caught.value)
