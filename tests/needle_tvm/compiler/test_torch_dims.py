"""PyTorch models compiled for many sizes: operators beside PyTorch, calls, exports and refusals."""

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle.sizes.dims import Dim
from needle_runtime.artifact import Artifact
from needle_runtime.errors import InputError, UsageError
from needle_tvm.compiler import first_check
from needle_tvm.errors import MismatchError
from tests.needle_runtime.ways import both_ways, native_way
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.peer
N = Dim("n", max=33)
X = torch.linspace(-2, 2, 60).reshape(6, 10)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


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
        (((3, 4), (5, 4)), r"'marks' has 5 along axis 0, where n is expected \(n = 3 from input"),
        (((3, 4), (3, 5)), "'marks' has 5 along axis 1, where t is expected"),
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
    test = needle_runtime.self_test(needle_runtime.load(path))
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
    real = needle_runtime.Program.run

    def wrong(self, values):
        return [each + 1 if len(each) == 33 else each for each in real(self, values)]

    monkeypatch.setattr(first_check.Program, "run", wrong)
    with pytest.raises(MismatchError, match="at n = 33: output 0"):
        needle_tvm.compile_torch(nn.Linear(10, 3).eval(), X, dims={0: {0: N}}, stage="noopt")


def test_what_takes_one_size():
    with pytest.raises(UsageError, match="code for GPUs is for one size"):
        needle_tvm.compile_torch(nn.Linear(10, 3).eval(), X, dims={0: {0: N}}, target="cuda:sm_80")
