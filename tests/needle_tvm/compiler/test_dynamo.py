"""`torch.compile(model, backend="needle")`, compared with the model itself and with `aot_eager`."""

import copy
import threading
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from needle_runtime.errors import UsageError
from needle_tvm.compiler import aot_code, dynamo

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.peer, pytest.mark.slow]
FAST = {"stage": "noopt"}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        dynamo._WARNED.clear()
        torch._dynamo.reset()
        yield


@pytest.fixture
def bound(monkeypatch):
    """The graphs that are ready to be called."""
    found, before = [], aot_code.Bound.__init__

    def noted(self, *args):
        before(self, *args)
        found.append(self)

    monkeypatch.setattr(aot_code.Bound, "__init__", noted)
    return found


def compiled(model, **options):
    return torch.compile(model, backend=dynamo.needle, options=FAST, **options)


def heard(run):
    """What run() returns, and the warnings of the backend meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(each.message) for each in caught if "needle" in str(each.message)]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()


def sharing(results, inputs):
    """Which tensors share a storage."""
    every = [each.untyped_storage().data_ptr() for each in (*results, *inputs)]
    return [(i, every.index(each)) for i, each in enumerate(every)]


def test_the_entry_point_is_the_backend():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    line = text.partition("[project.entry-points.torch_dynamo_backends]\n")[2].splitlines()[0]
    name, _, value = line.partition(" = ")
    entry = EntryPoint(name, value.strip('"'), "torch_dynamo_backends")
    assert (name, entry.load()) == ("needle", dynamo.needle)


def test_inference_follows_weights_and_sizes(bound):
    model = network()
    fast = compiled(model)

    def agrees(count):
        x = torch.randn(count, 3, 8, 8)
        torch.testing.assert_close(fast(x), model(x), **CLOSE)

    def run():
        agrees(2)
        agrees(2)
        with torch.no_grad():
            model[4].weight.mul_(2)
            model[1].running_mean.add_(1.0)
        agrees(2)
        model.load_state_dict(network().state_dict())
        agrees(3)
        agrees(5)
        model[4].weight = nn.Parameter(torch.randn(5, 144))
        agrees(5)

    with torch.no_grad():
        _, said = heard(run)
    with torch.inference_mode():
        agrees(2)
    assert said == [] and bound


def test_weights_without_versions_are_inputs():
    with torch.inference_mode():
        model = network()
        fast, x = compiled(model), torch.randn(2, 3, 8, 8)
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x), **CLOSE)
            model[4].weight.mul_(2)


def test_models_of_one_structure_keep_their_weights_apart():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        @torch.compile(backend=dynamo.needle, options=FAST)
        def forward(self, x):
            return self.linear(x)

    one, other, x = Shared().eval(), Shared().eval(), torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(2):
            for each in (one, other):
                torch.testing.assert_close(each(x), each.linear(x), **CLOSE)


@pytest.fixture(scope="module", autouse=True)
def unknown():
    with torch.library._scoped_library("needle_test", "DEF") as library:
        library.define("unknown(Tensor x) -> Tensor")
        library.impl("unknown", lambda x: x * 3, "CPU")
        library.impl("unknown", torch.empty_like, "Meta")
        yield


def of_an_unknown_operator(x):
    return torch.ops.needle_test.unknown(x) * 2


def of_values(x):
    return x[x > 0] + 1


def of_complex_numbers(x):
    return torch.view_as_complex(x.reshape(-1, 2)).abs()


@pytest.mark.parametrize(
    "function, reason",
    [
        (of_an_unknown_operator, "needle_test.unknown"),
        (of_values, "x[x > 0]"),
        (of_complex_numbers, ""),
    ],
)
def test_what_cannot_be_compiled_runs_in_pytorch(function, reason):
    x, fast = torch.rand(3, 4) - 0.3, compiled(function)
    with torch.no_grad():
        found, said = heard(lambda: [fast(x), fast(x), fast(x)])
    for each in found:
        torch.testing.assert_close(each, function(x))
    assert len(said) <= 1
    assert all("\n" not in each and "please" not in each for each in said)
    if reason == "needle_test.unknown":
        assert reason in said[0]


def test_whatever_is_raised_the_graph_runs_in_pytorch(monkeypatch):
    def fails(*_):
        raise RuntimeError("of TVM\nwith a page of text")

    monkeypatch.setattr(aot_code, "build", fails)
    buffer = torch.zeros(3)

    def function(x):
        buffer.add_(x)
        return buffer * 2

    with torch.no_grad():
        found, said = heard(lambda: compiled(function)(torch.ones(3)))
    assert found.tolist() == [2.0] * 3 and buffer.tolist() == [1.0] * 3
    assert said and said[0].endswith("RuntimeError: of TVM") and len(said) == 1


def test_a_result_that_differs_is_not_given(monkeypatch):
    monkeypatch.setattr(aot_code, "is_close", lambda a, b: False)
    monkeypatch.setattr(aot_code, "_is_as_near", lambda *each: False)
    with torch.no_grad():
        found, said = heard(lambda: compiled(lambda x: x * 2 + 1)(torch.ones(3)))
    assert found.tolist() == [3.0] * 3 and len(said) == 1


def test_a_result_may_be_as_far_from_the_exact_one_as_pytorchs():
    exact = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    theirs = torch.tensor([1.0, 3e-9])
    assert aot_code._is_as_near(torch.tensor([1.0, -5e-9]), theirs, exact)
    assert not aot_code._is_as_near(torch.tensor([1.0, 2e-8]), theirs, exact)
    assert not aot_code._is_as_near(torch.tensor([1.0, float("nan")]), theirs, exact)


def test_an_index_out_of_range_is_pytorchs_error():
    table = nn.Embedding(4, 2)
    fast = compiled(table)
    with torch.no_grad():
        torch.testing.assert_close(fast(torch.tensor([1, 3])), table(torch.tensor([1, 3])))
        with pytest.raises(IndexError, match="index out of range"):
            fast(torch.tensor([1, 4]))
        torch.testing.assert_close(fast(torch.tensor([0, 2])), table(torch.tensor([0, 2])))


def test_unknown_options_are_an_error():
    with pytest.raises(Exception, match="stage") as caught, torch.no_grad():
        torch.compile(lambda x: x + 1, backend=dynamo.needle, options={"stage": "no"})(
            torch.ones(2)
        )
    assert isinstance(caught.value, UsageError) or "stage" in str(caught.value)


def dropout(x):
    return F.dropout(x, 0.4), torch.rand_like(x) + x.sum(), torch.bernoulli(torch.sigmoid(x))


def test_random_numbers_are_pytorchs(bound):
    x, found = torch.randn(4, 5), []
    for backend in (dynamo.needle, "aot_eager"):
        torch._dynamo.reset()
        torch.manual_seed(5)
        fast = torch.compile(dropout, backend=backend)
        with torch.no_grad():
            found.append([*fast(x), *fast(x), torch.rand(2)])
    assert bound
    for have, want in zip(*found, strict=True):
        torch.testing.assert_close(have, want, **CLOSE)


STRIDES = {
    "transposed": lambda x: (x * 2).t(),
    "channels last": lambda x: torch.relu(x.view(1, 2, 3, 4)).to(memory_format=torch.channels_last),
    "part": lambda x: (x + 1)[:, 1:3],
    "expanded": lambda x: (x + 1)[:1].expand(5, -1, -1) if x.ndim > 2 else (x + 1).expand(2, 6, 4),
    "real parts": lambda x: torch.complex(x, x + 1).real,
    "of another dtype": lambda x: (x + 1).view(torch.int32)[1:],
    "as_strided": lambda x: (x + 1).as_strided((2, 3), (5, 2), 1),
    "as_strided of an input": lambda x: x.as_strided((2, 3), (5, 2), 1) * 2,
}


@pytest.mark.parametrize("case", STRIDES)
def test_strides_are_pytorchs(case, bound):
    function, x = STRIDES[case], torch.randn(6, 4)
    fast = compiled(function)
    with torch.no_grad():
        for given in (x, x.t().contiguous().t(), torch.randn(6, 8)[:, ::2]):
            if given.is_contiguous() or case not in ("channels last",):
                have, want = fast(given), function(given)
                torch.testing.assert_close(have, want)
                assert have.stride() == want.stride()
                assert have.storage_offset() == want.storage_offset()


def transposed(x):
    return x.t(), x + 1


def of_each_other(x):
    y = x + 1
    return y, y[1:], y.t(), y.clone(), x[0]


def of_each_other_written(x):
    y = x + 1
    z = y[0]
    z.zero_()
    return y, z


def itself(x):
    return x, x.view(-1), x * 2


@pytest.mark.parametrize("function", [transposed, of_each_other, of_each_other_written, itself])
def test_results_share_memory_as_pytorchs(function):
    x, fast = torch.randn(3, 4), compiled(function)
    with torch.no_grad():
        for _ in range(2):
            have, want = fast(x), function(x)
            assert sharing(have, [x]) == sharing(want, [x])
            for a, b in zip(have, want, strict=True):
                torch.testing.assert_close(a, b)
                assert a.stride() == b.stride()


def test_a_write_to_a_view_is_one_to_the_input():
    x = torch.ones(2, 3)
    with torch.no_grad():
        compiled(lambda x: x.t())(x).zero_()
    assert not x.any()


def test_views_across_a_graph_break():
    def function(x):
        y = x[0]
        torch._dynamo.graph_break()
        y.add_(3)
        return x.sum()

    with torch.no_grad():
        assert compiled(function)(torch.ones(2, 2)).item() == function(torch.ones(2, 2)).item()


def test_inputs_are_written_in_place():
    def function(x, y):
        x.mul_(2)
        y[1:].copy_(x[:1])
        return x + y

    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    others = x.clone(), y.clone()
    at = x.data_ptr(), y.data_ptr()
    fast = compiled(function)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x, y), function(*others))
            torch.testing.assert_close((x, y), others)
    assert (x.data_ptr(), y.data_ptr()) == at


def test_a_cache_of_keys_keeps_its_values(bound):
    cache = torch.zeros(4)
    torch._dynamo.mark_static_address(cache)

    def step(at, value):
        cache.index_copy_(0, at, value)
        return cache * 1

    fast = compiled(step)
    with torch.no_grad():
        for number in (0, 1):
            fast(torch.tensor([number]), torch.tensor([number + 1.0]))
    assert cache.tolist() == [1, 2, 0, 0] and bound


def test_a_parameter_that_forward_writes():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = nn.Parameter(torch.zeros(1), requires_grad=False)
            self.register_buffer("m", torch.zeros(1))

        def forward(self, x):
            self.n.add_(1)
            self.m += 2
            return x + self.n + self.m

    model = Counting().eval()
    fast = compiled(model)
    with torch.no_grad():
        assert [fast(torch.zeros(1)).item() for _ in range(3)] == [3, 6, 9]
    assert model.n.item() == 3 and model.m.item() == 6


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_optimizer_step(kind):
    model = nn.Linear(3, 2)
    other = copy.deepcopy(model)
    steps = []
    for each, compile_it in ((model, True), (other, False)):
        optimizer = getattr(torch.optim, kind)(each.parameters(), lr=0.1)
        for p in each.parameters():
            p.grad = torch.ones_like(p)
        step = compiled(optimizer.step) if compile_it else optimizer.step
        steps.append([step() for _ in range(3)])
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), **CLOSE)


def test_the_result_of_dropout_in_eval_mode_is_written():
    def function(x):
        F.dropout(x, 0.5, training=False).add_(1)
        return x * 1

    x = torch.zeros(3)
    with torch.no_grad():
        wanted = function(torch.zeros(3))
        torch.testing.assert_close(compiled(function)(x), wanted)


def test_another_layout_than_the_examples():
    def function(x):
        return x.as_strided((2, 2), (1, 2)) + 1

    fast, x = compiled(function), torch.arange(6.0).reshape(2, 3)
    with torch.no_grad():
        for each in (x, x.t().contiguous().t(), torch.arange(12.0).reshape(2, 6)[:, ::2]):
            torch.testing.assert_close(fast(each), function(each))


def test_a_transformer_layer(bound):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, fast = torch.randn(2, 5, 8), compiled(layer)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), layer(x), **CLOSE)
    assert bound


def test_open_sizes(bound):
    def function(x, n):
        return x.reshape(x.shape[0] * 2, -1).sum(1) * n, x.shape[0]

    fast = compiled(function, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 4000, 5000):
            x = torch.randn(rows, 4)
            have, want = fast(x, rows), function(x, rows)
            torch.testing.assert_close(have[0], want[0], **CLOSE)
            assert have[1] == want[1]
        x = torch.randn(7, 4)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
        torch.testing.assert_close(fast(x, 2)[0], function(x, 2)[0], **CLOSE)
    assert bound


def test_one_code_serves_many_sizes(bound):
    fast = compiled(lambda x: torch.relu(x) * 2, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 9, 4097, 9000):
            x = torch.randn(rows, 2)
            torch.testing.assert_close(fast(x), torch.relu(x) * 2)
    codes = {id(each._code) for each in bound}
    assert len(bound) == 5 and len(codes) == 2  # up to 4096 rows, and beyond


def test_numbers_are_inputs(bound):
    def function(x, n, s):
        return x * n + s

    fast, x = compiled(function), torch.randn(3)
    with torch.no_grad():
        for n, s in ((5, 0.5), (6, 0.25), (7, -1.5)):
            torch.testing.assert_close(fast(x, n, s), function(x, n, s))
    assert bound


def test_results_keep_their_dtypes():
    def several(x):
        return x.to(torch.int8) + 1, x.bfloat16() * 2, None, [x > 0, 3]

    x = torch.randn(5)
    with torch.no_grad():
        found, wanted = compiled(several)(x), several(x)
    assert found[2] is None and found[3][1] == 3
    for have, want in zip((*found[:2], found[3][0]), (*wanted[:2], wanted[3][0]), strict=True):
        assert have.dtype == want.dtype
        torch.testing.assert_close(have, want)


def test_eight_threads_compile_and_call():
    models = [nn.Sequential(nn.Linear(4, 3 + i), nn.ReLU()).eval() for i in range(8)]
    failures = []

    def work(model):
        try:
            fast = compiled(model)
            with torch.no_grad():
                for rows in (2, 3):
                    x = torch.randn(rows, 4)
                    torch.testing.assert_close(fast(x), model(x), **CLOSE)
        except BaseException as error:
            failures.append(error)

    def run():
        threads = [threading.Thread(target=work, args=(model,)) for model in models]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    _, said = heard(run)
    assert failures == [] and said == []
