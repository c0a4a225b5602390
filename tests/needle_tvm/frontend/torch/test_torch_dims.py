"""PyTorch models compiled for many sizes: operators beside PyTorch, calls, exports and refusals."""

import numpy as np
import pytest

import needle_tvm
from needle.dims import Dim
from needle_tvm import runtime
from needle_tvm.artifact import Artifact
from needle_tvm.compiler import first
from needle_tvm.errors import InputError, MismatchError, TranslationError, UsageError
from tests.needle_tvm.frontend.torch.torch_checks import Applied, agree_at
from tests.needle_tvm.runtime.ways import both_ways, native_way

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.peer
N, LARGE = Dim("n", max=33), Dim("n", min=2, max=33)
X = torch.linspace(-2, 2, 60).reshape(6, 10)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


def rows(n):
    return (torch.randn(n, 10),)


def indexed(n):
    return torch.randn(n, 10), torch.randint(0, 10, (n,))


def padded_attention(x):
    q = x.reshape(1, x.shape[0], 2, 5).transpose(1, 2)
    return functional.scaled_dot_product_attention(q, q, q, is_causal=True)


# Functions of x (n, 10), in groups that are compiled together.
FUNCTIONS = {
    "sizes as numbers": lambda x: (
        x.sum(0) / x.shape[0],
        x + x.shape[0] * 2,
        x * (torch.arange(x.shape[0]) / x.shape[0])[:, None],
        torch.full((x.shape[0], 2), 0.5),
    ),
    "reductions": lambda x: (x.mean(0), x.softmax(0), x.cumsum(0), x.max(0)[0], x.amin(0)),
    "views": lambda x: (
        x.reshape(-1) * 2,
        x.t() @ x,
        x.flip(0),
        x.roll(1, 0),
        x.reshape(x.shape[0], 2, 5).permute(1, 0, 2) + 1,
        x.repeat(2, 1),
        x.repeat(2, x.shape[0], 2),
        torch.ones(1, 2, 3).repeat(x.shape[0], 1, 1) + x[:, :1, None],
    ),
    "parts": lambda x: (x[:1] * 2, x[-1] * 2, x[-1:] + 1, x[::2] * 1, x[:, -3:] * 1),
    "joined": lambda x: (torch.cat([x, x * 2]), functional.pad(x, (1, 1, 2, 0))),
    "split": lambda x: (
        *torch.cat([x, x * 2]).chunk(2),
        *torch.cat([x, x[:1], x + 1]).split([x.shape[0], 1, x.shape[0]]),
    ),
    "instance norm": lambda x: functional.instance_norm(
        x.reshape(x.shape[0], 2, 5), weight=x[0, :2], bias=x[0, 2:4]
    ),
    "ordered": lambda x: (
        x.sort(0)[0],
        x.topk(1, 0)[0],
        x.gather(0, torch.zeros(1, 10, dtype=torch.long)),
        x.gather(1, x.argsort(1)),
    ),
    "masks": lambda x: (
        torch.tril(torch.ones(x.shape[0], x.shape[0])) @ x,
        padded_attention(x),
        functional.one_hot(x.argmax(1), 10),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name):
    agree_at(FUNCTIONS[name], rows, {0: {0: N}}, [(1,), (2,), (7,), (8,), (33,)], "noopt")


def test_parts_that_are_smaller():
    def parts(x):
        return x[:-1] * 2, x[1:] + x[:-1]

    agree_at(parts, rows, {0: {0: LARGE}}, [(2,), (7,), (33,)], "noopt")


def test_parts_of_a_table_that_are_as_long_as_an_input():
    table = torch.arange(80.0).reshape(1, 80)  # such as the positions of a language model

    def parts(x):
        n = x.shape[0]
        return (
            x[:, 0] + table[0, :n],
            table[:, n : 2 * n] * 1,
            table[:, -n:] * 2,
            table[0, 2 : n + 2],
        )

    agree_at(parts, rows, {0: {0: LARGE}}, [(2,), (7,), (33,)], "noopt")


def test_one_element_of_each_row():
    def chosen(x, at):
        return x[torch.arange(x.shape[0]), at]

    agree_at(chosen, indexed, {0: {0: N}, 1: {0: N}}, [(1,), (7,), (33,)], "tuned")


def test_multiples_decide_what_bounds_do_not():
    pairs = Dim("n", max=64, multiple_of=2)
    agree_at(lambda x: x.view(-1, 2, 10) * 2, rows, {0: {0: pairs}}, [(2,), (64,)], "noopt")


class Bag(nn.Module):
    """Two inputs of two dims, one of them an index."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, words, marks):
        vectors = self.table(words) * marks[..., None]
        return self.head(vectors.sum(1) / marks.sum(1, keepdim=True))


def bag(n, t):
    return torch.randint(0, 50, (n, t)), torch.rand(n, t) + 0.5


WORDS = {"words": {0: N, 1: Dim("t", max=20)}, "marks": {0: N, 1: Dim("t", max=20)}}


@pytest.fixture(scope="module")
def exe():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Bag().eval()
        return model, needle_tvm.compile_torch(model, *bag(6, 10), dims=WORDS, stage="fused")


def test_calls_of_every_size(exe):
    model, compiled = exe
    for n, t in ((1, 1), (33, 20), (7, 13)):
        inputs = bag(n, t)
        with torch.no_grad():
            wanted = model(*inputs).numpy()
        np.testing.assert_allclose(compiled(*inputs).numpy(), wanted, rtol=1e-4, atol=1e-5)
    arrays = [each.numpy() for each in bag(3, 4)]
    with native_way(compiled) as caller:
        assert compiled(*arrays).shape == (3, 3)
        assert caller.served == 1


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        (((34, 4), (34, 4)), "input 'words' has 34 along axis 0, where n is from 1 to 33"),
        (((0, 4), (0, 4)), "input 'words' has 0 along axis 0"),
        (((3, 4), (5, 4)), r"'marks' has 5 along axis 0, where n is wanted \(n = 3 by input 'wor"),
        (((3, 4), (3, 5)), "'marks' has 5 along axis 1, where t is wanted"),
        (((3,), (3, 4)), r"compiled for int64\(n, t\)"),
    ],
)
def test_sizes_that_a_call_may_not_have(exe, sizes, match):
    words, marks = np.zeros(sizes[0], np.int64), np.zeros(sizes[1], np.float32)
    served, found = both_ways(exe[1], words, marks)
    assert not served and found[0] is InputError
    with pytest.raises(InputError, match=match):
        exe[1](words, marks)


def test_the_artifact(exe, tmp_path):
    model, compiled = exe
    path = compiled.export(tmp_path / "bag")
    artifact = Artifact.open(path)
    assert [str(each.shape) for each in artifact.main.inputs] == ["(n, t)", "(n, t)"]
    assert str(artifact.main.outputs[0].shape) == "(n, 3)"
    golden = artifact.golden()
    shapes = [example.inputs[0].shape for example in (golden, *golden.others)]
    assert shapes == [(6, 10), (1, 1), (33, 20)]
    test = runtime.self_test(runtime.load(path))
    assert test.passed and len(test.differences) == 3
    again = needle_tvm.compile_torch(model, *bag(6, 10), dims=WORDS, stage="fused")
    assert again.from_cache
    # Other bounds are other code.
    other = {**WORDS, "marks": {0: N, 1: Dim("t", max=21)}, "words": {0: N, 1: Dim("t", max=21)}}
    other = needle_tvm.compile_torch(model, *bag(6, 10), dims=other, stage="fused")
    assert not other.from_cache


def test_equal_axes_that_are_marked_or_hinted_become_one_dim():
    words, marks = bag(6, 10)
    for each, most in ((words, 12), (marks, 9)):
        torch._dynamo.mark_dynamic(each, 0, max=most)
    hint = {1: torch.export.Dim.AUTO(max=16)}
    exe = needle_tvm.compile_torch(Bag().eval(), words, marks, dims=(hint, hint), stage="noopt")
    inputs = exe.manifest["functions"]["main"]["inputs"]
    assert [entry["shape"] for entry in inputs] == [["words_0", "words_1"]] * 2
    assert exe(*bag(9, 16)).shape == (9, 3)
    with pytest.raises(InputError, match="words_0 is from 1 to 9"):
        exe(*bag(10, 16))


def test_an_axis_of_auto_may_be_a_number():
    auto = torch.export.Dim.AUTO(max=16)
    model = Applied(lambda x: x + torch.ones(6, 10)).eval()
    exe = needle_tvm.compile_torch(model, X, dims={0: {0: auto}}, stage="noopt")
    assert not exe.artifact.main.sizes.dims and exe(X).shape == (6, 10)


def test_the_first_check_looks_at_the_bounds(monkeypatch):
    real = runtime.Program.run

    def wrong(self, values):
        return [each + 1 if len(each) == 33 else each for each in real(self, values)]

    monkeypatch.setattr(first.Program, "run", wrong)
    with pytest.raises(MismatchError, match="at n = 33: output 0"):
        needle_tvm.compile_torch(nn.Linear(10, 3).eval(), X, dims={0: {0: N}}, stage="noopt")


def doubled_if_many(x):
    return x * 2 if x.shape[0] > 8 else x


ROW = {0: {0: N}}
REFUSED = {
    "a branch": (doubled_if_many, ROW, r"only while n <= 8 \(asked at test_torch_dims\.py"
                 r":\d+: return x \* 2 if .*n \(1 to 33\)"),
    "a loop": (lambda x: sum(x[i] for i in range(x.shape[0])), ROW,
               r"axis 0 of input 'inputs_0' cannot be n: .*\(asked at test_torch_dims\.py"),
    "one row": (lambda x: x if x.shape[0] == 1 else x * 2, ROW,
                "at n = 1 the model is another than at larger sizes .*give n a min of 2"),
    "a divisor": (lambda x: x.view(2, x.shape[0] // 2, 10), ROW,
                  "PyTorch itself does not run it on inputs with n = 7, which dims allow"),
    "a constant": (lambda x: x + torch.ones(6, 10), ROW, "does not run it on .* n = 7"),
    "parts": (lambda x: x.chunk(2), ROW, r"the model is the same only while Eq\("),
    "a size": (lambda x: (x, x.shape[0]), ROW, "returns a size that dims leave open"),
    "nothing": (lambda x: x[:-1], ROW, "aten.slice.Tensor on .*extent n - 1 can be 0"),
    "values": (lambda x: x[x[:, 0] > 0], ROW, "whose shape depends on values"),
    "an operator": (lambda x: x.std(0), ROW, r"aten\.var\.correction on \[n, 10\] has no "
                    "translation with the dims n .*: compile it for one size"),
    "a resize": (lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
                 ROW, "a resize of an axis whose size is open"),
    "groups": (lambda x: functional.conv1d(x[None], x[:, None, :3], groups=x.shape[0]), ROW,
               "TVM takes an argument that is a size here as a number alone.*compile it for one"),
    "no axis": (lambda x: x, {0: {0: 2 * N}}, "n must be the whole size of an axis of an input"),
    "no example": (lambda x: x * 2, {0: {0: Dim("n", min=7, max=9)}}, "the example does not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, dims, match = REFUSED[name]
    with pytest.raises((UsageError, TranslationError), match=match) as caught:
        needle_tvm.compile_torch(Applied(function).eval(), X, dims=dims, stage="noopt")
    assert "\n" not in str(caught.value)


def test_the_steps_of_an_lstm_with_projections():
    model = nn.LSTM(10, 4, batch_first=True, proj_size=3).eval()
    dims = {0: {0: N, 1: Dim("t", max=9)}}
    with pytest.raises(UsageError, match=r"'input' cannot be t: .*steps of nn\.LSTM, so their"):
        needle_tvm.compile_torch(model, torch.randn(6, 5, 10), dims=dims)


def test_two_dims_that_the_model_needs_to_be_one():
    model = Applied(lambda x, y: x[:, None] @ y[:, :, None]).eval()
    dims = {"inputs_0": {0: N}, "inputs_1": {0: Dim("m", max=33)}}
    with pytest.raises(TranslationError, match=r"on inputs with m = 7, n = 8, which dims allow"):
        needle_tvm.compile_torch(model, X, X, dims=dims)


def test_what_takes_one_size():
    with pytest.raises(UsageError, match="code for GPUs is for one size"):
        needle_tvm.compile_torch(nn.Linear(10, 3).eval(), X, dims=ROW, target="cuda:sm_80")
