"""Converters of recurrent layers, bags and grouped matmuls, and writes to results that are an
operator's input, compared with PyTorch."""

import numpy as np
import pytest

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError
from needle.torch.oracle import is_close
from needle.torch.reading import array_of

torch = pytest.importorskip("torch")
from tests.needle.torch.rows import Together, check, compare, row  # noqa: E402

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:LSTM with projections")]
nn, F = torch.nn, torch.nn.functional
DEEP = {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5}


def normal(*shape, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def layer(kind, **options):
    torch.manual_seed(2)
    return kind(3, 4, **options).eval()


X = normal(5, 2, 3)
LAYERS = {
    "lstm": layer(nn.LSTM),
    "lstm deep": layer(nn.LSTM, **DEEP),
    "lstm projected": layer(nn.LSTM, proj_size=2, bidirectional=True),
    "gru": layer(nn.GRU, bias=False),
    "gru deep": layer(nn.GRU, **DEEP),
    "rnn": layer(nn.RNN, **DEEP),
    "rnn relu": layer(nn.RNN, nonlinearity="relu", bias=False),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * ("deep" in each)) for each in LAYERS]
)
def test_recurrent_layers(name):
    """Whole, in the graph and its weights' gradients."""
    model = LAYERS[name]
    loaded = needle.torch.load(model, X)
    operators = {node.operator.removeprefix("needle.") for node in loaded.program.nodes}
    assert name.split()[0] in {each.partition(".")[0].partition("_")[0] for each in operators}
    outputs = loaded(ndl.Tensor(X.numpy()))[0]
    assert is_close(outputs.numpy(), array_of(model(X)[0]))
    (outputs * outputs).sum().backward()
    model.zero_grad()
    (model(X)[0] ** 2).sum().backward()
    found = dict(loaded.named_parameters())
    for key, each in model.named_parameters():
        np.testing.assert_allclose(found[key].grad.numpy(), each.grad.numpy(), 1e-3, 1e-4)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(layer(kind) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell))
        self.plain = nn.ModuleList(layer(kind, bias=False) for kind in (nn.LSTMCell, nn.GRUCell))

    def forward(self, x, h):
        lstm, gru, rnn = self.cells
        alone = (*lstm(x[0], (h[0], h[1])), gru(x[0], h[0]))
        made = (*lstm(x, (h, h * 2)), gru(x, h), rnn(x, h))
        return (*made, *alone, *self.plain[0](x, (h, h)), self.plain[1](x, h))


def test_cells():
    needle.torch.load(Cells().eval(), X[0], normal(2, 4))
    half = Cells().eval().bfloat16()
    needle.torch.load(half, X[0].bfloat16(), normal(2, 4).bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm deep", "gru", "rnn relu"])
def test_recurrent_layers_are_one_kernel(name):
    model = LAYERS[name]
    compiled = needle_tvm.compile(needle.torch.load(model, X), ndl.Tensor(X.numpy()), stage="tuned")
    assert is_close(compiled(X.numpy())[0].numpy(), array_of(model(X)[0]))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = layer(nn.LSTM)

    def forward(self, x):
        return self.lstm(nn.utils.rnn.pack_padded_sequence(x, [5, 3]))[0].data


def test_packed_sequences_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"packs sequences \(pack_padded_sequence\)"):
        needle.torch.load(Packed().eval(), X)


MODES = ("sum", "mean", "max")
TABLE, PLACES = normal(10, 4), torch.tensor([3, 3, 1, 9, 0, 3, 2, 2])
TABLE_OF_INF = TABLE.clone()
TABLE_OF_INF[3] = -float("inf")
BEGIN, ENDS = torch.tensor([0, 2, 2, 7]), torch.tensor([0, 2, 2, 7, 8])


def bag(mode, **options):
    return lambda i, w, *o: F.embedding_bag(i, w, *o, mode=mode, **options)


BAGS = [
    *(row(f"{mode} of one size", bag(mode), PLACES.view(2, 4), TABLE) for mode in MODES),
    *(row(f"{mode} padded", bag(mode, padding_idx=-7), PLACES.view(2, 4), TABLE) for mode in MODES),
    *(row(f"{mode} of offsets", bag(mode), PLACES, TABLE, BEGIN) for mode in MODES),
    *(row(f"{mode} of ends", bag(mode, include_last_offset=True, padding_idx=2),
          PLACES, TABLE, ENDS) for mode in MODES),
    row("infinite", bag("max", padding_idx=1), torch.tensor([[3, 3], [1, 1]]), TABLE_OF_INF),
    row("halves", bag("mean"), PLACES.view(2, 4), TABLE.bfloat16()),
    row("weighted", lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        PLACES.view(2, 4), TABLE, normal(2, 4)),
]  # fmt: skip
GROUPS = torch.tensor([8, 8, 16, 24], dtype=torch.int32)
GROUPED = [
    row("rows", lambda x, y, o: torch._grouped_mm(x, y, offs=o),
        normal(24, 16).bfloat16(), normal(4, 16, 8).bfloat16(), GROUPS),
    row("columns", lambda x, y, o: torch._grouped_mm(x, y, offs=o),
        normal(4, 8, 16).bfloat16(), normal(16, 24).bfloat16(), GROUPS),
    row("summed", lambda x, y, o: torch._grouped_mm(x, y, offs=o),
        normal(16, 24).bfloat16(), normal(24, 8).bfloat16(), GROUPS),
]  # fmt: skip


def test_bags():
    check(BAGS)


def test_grouped_matmuls():
    check(GROUPED, gradients=False)


def test_rows_behind_the_last_group_are_zero():
    """PyTorch leaves them as they were in memory."""
    inputs = normal(32, 16).bfloat16(), *GROUPED[0].inputs[1:]
    loaded = needle.torch.load(Together(GROUPED[:1]).eval(), *inputs, check=False)
    found = loaded(*(ndl.Tensor(array_of(x)) for x in inputs))
    rows = (found[0] if isinstance(found, tuple) else found).numpy()
    assert rows[:24].any() and not rows[24:].any()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_compiled(stage):
    rows = [*BAGS, GROUPED[2]]
    inputs = [ndl.Tensor(array_of(x)) for each in rows for x in each.inputs]
    loaded = needle.torch.load(Together(rows).eval(), *(x for each in rows for x in each.inputs))
    compare(rows, needle_tvm.compile(loaded, *inputs, stage=stage)(*inputs))


class Written(nn.Module):
    """The named fault: what is written to the result of a dropout that drops nothing was lost."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.drop = nn.Dropout()

    def forward(self, x):
        y, z, u = x.clone(), x.clone(), x.clone()
        F.dropout(y, training=False).add_(1)
        torch.einsum("ij->ji", z).mul_(2)
        u.unsafe_chunk(2)[0].neg_()
        self.drop(self.total).add_(x[0])
        return self.drop(y), z, u, F.dropout(x, 0.0), self.total * 2


def test_writes_to_results_reach_the_input():
    model, x = Written().eval(), normal(2, 3)
    loaded = needle.torch.load(model, x)
    for _ in range(2):
        found, wanted = loaded(ndl.Tensor(x.numpy())), model(x)
        for have, want in zip(found, wanted, strict=True):
            assert is_close(have.numpy(), array_of(want))
    assert is_close(loaded.total.numpy(), array_of(model.total))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_every_number_of_steps(kind):
    """Which export takes for a number where it runs the steps."""
    model, steps = layer(kind, **DEEP), ndl.Dim("steps", max=30)
    loaded = needle.torch.load(model, normal(2, 6, 3), dims={"input": {1: steps}})
    for n in (1, 30):
        x = normal(2, n, 3)
        assert is_close(loaded(x.numpy())[0].numpy(), array_of(model(x)[0]))
