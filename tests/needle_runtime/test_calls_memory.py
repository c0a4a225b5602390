"""The memory of calls: results are the caller's own, and nothing stays of a call."""

import gc
import sys
import weakref

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import backend_ndarray as nd
from needle import nn, ops, optim
from needle.errors import TraceError
from needle.trace import trace
from needle_runtime.errors import InputError, ParameterError
from tests.needle_runtime.ways import (
    arrays_in,
    compiled,
    drawn,
    heap,
    like,
    native_way,
    outcome,
    python_way,
)
from tests.needle_tvm.conftest import make_mlp, tensor

X = drawn(3, 4)
STAGES = ("noopt", "tuned")


class Shared(nn.Module):
    """Returns all that might be shared: its input, weights, constants, views, itself."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(tensor(drawn(3, 4, seed=1)))
        self.c = tensor(drawn(12, seed=2))

    def forward(self, x):
        y = x + self.w
        seen = [x, self.w, self.c, y, tensor(np.arange(12.0)), self.w * 2, ops.exp(self.c)]
        return {"seen": seen, "again": (seen, [each.reshape((12,)) for each in seen]), "y": y}


@pytest.fixture(scope="module", params=STAGES)
def shared(request):
    model = Shared().eval()
    return model, *compiled(model, tensor(X), stage=request.param)


@pytest.mark.parametrize("way", [native_way, python_way])
def test_results_are_the_callers_own(shared, way):
    model, *callees = shared
    for callee in callees:
        for given in (X, like(X, 4), nd.array(X), tensor(X)):
            with way(callee):
                before = np.asarray(given.numpy() if hasattr(given, "numpy") else given).tobytes()
                state = {name: each.numpy() for name, each in model.state_dict().items()}
                first = arrays_in(callee(given))
                held = [array.copy() for array in first]
                second = arrays_in(callee(given))
                every = [
                    *first,
                    *second,
                    np.from_dlpack(given),
                    *map(np.from_dlpack, [model.w, model.c]),
                ]
                for number, one in enumerate(every):
                    for other in every[:number]:
                        assert not np.shares_memory(one, other)
                for array in first:
                    array[...] = 99
                for results in (second, arrays_in(callee(given))):
                    for one, other in zip(results, held, strict=True):
                        np.testing.assert_array_equal(one, other)
                now = np.asarray(given.numpy() if hasattr(given, "numpy") else given).tobytes()
                assert now == before
                for name, each in model.state_dict().items():
                    np.testing.assert_array_equal(each.numpy(), state[name])


@pytest.mark.parametrize("dtype", nd.DTYPES)
def test_results_can_be_used_as_any_other_array(dtype):
    for callee in compiled(lambda x: (x, x[::-1]), tensor(drawn(3, 4, dtype=dtype))):
        x = drawn(3, 4, dtype=dtype)
        for given in (x, like(x, 8)):
            one, other = callee(given)
            again, last = callee(other)
            assert outcome(lambda one=one: one) == outcome(lambda last=last: last)
            assert outcome(lambda other=other: other) == outcome(lambda again=again: again)
            for array in arrays_in([one, other, again, last]) if dtype != "bfloat16" else ():
                array[...] = np.zeros((), dtype)  # NumPy reads no bfloat16 through DLPack
        if isinstance(one, ndl.Tensor):
            result = callee(x)[0]
            data = result.cached_data
            data[0] = nd.array(x)[1]
            np.testing.assert_array_equal(result.numpy()[0], x[1])
            assert type(result) is ndl.Tensor and not result.requires_grad and result.is_leaf
            assert type(data) is nd.NDArray and data.device is nd.cpu() and data.is_compact


def test_results_in_eager_gradients():
    made, _ = compiled(lambda x: x * 3, tensor(X))
    w = ndl.Tensor(X)
    result = made(X)
    ((w * result) ** 2).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * X * (3 * X) ** 2, rtol=1e-6)
    result.requires_grad = True
    (result * result).sum().backward()
    np.testing.assert_allclose(result.grad.numpy(), 6 * X, rtol=1e-6)
    optimizer = optim.SGD([result], lr=0.5)
    optimizer.step()
    np.testing.assert_allclose(result.numpy(), 0, atol=1e-6)
    np.testing.assert_array_equal(made(result).numpy(), 3 * result.numpy())
    copy = ndl.Tensor(made(X), requires_grad=False)
    np.testing.assert_array_equal(copy.numpy(), 3 * X)


def test_results_outlive_all_that_made_them():
    model = Shared().eval()
    x = like(X)
    callees = list(compiled(model, tensor(x)))
    kept = [callee(x) for callee in callees for _ in range(2)]
    bits = [array.tobytes() for result in kept for array in arrays_in(result)]
    gone = [weakref.ref(each) for each in (model, *callees)]
    executor = weakref.ref(callees[1].executor)
    x[...] = 7
    del callees, model, x
    gc.collect()
    assert not any(each() for each in (*gone, executor))
    for callee in compiled(lambda x: x * 2, tensor(X)):
        for _ in range(100):
            callee(X)
    assert [array.tobytes() for result in kept for array in arrays_in(result)] == bits
    del kept
    gc.collect()


def test_arguments_outlive_a_call_and_are_released_after_it():
    for callee in compiled(lambda x, y: (x, x - y), tensor(X), tensor(X)):
        array, given = nd.array(X), ndl.Tensor(X)
        gone = weakref.ref(array), weakref.ref(given), weakref.ref(given.cached_data)
        result = callee(array, given)
        del array, given
        assert not any(each() for each in gone)
        assert arrays_in(result)[0].tobytes() == X.tobytes()


CALLS = {
    "fits": (X, X),
    "misaligned": (like(X, 4), like(X, 1)),
    "strided": (X[:, ::-1], X),
    "needle's": (nd.array(X), ndl.Tensor(X)),
    "needle's, strided": (nd.array(X).flip(), ndl.Tensor(X)),
    "cpu_numpy": (nd.array(X, device=nd.cpu_numpy()), X),
    "lists": (X, [[1.0] * 4] * 3),
    "wrong shape, the last": (nd.array(X), X[:2]),
    "wrong dtype, the last": (ndl.Tensor(X), X.astype(np.int32)),
    "wrong, the first": (X[:2], like(X, 4)),
    "too few": (like(X, 4),),
    "too many": (nd.array(X),) * 3,
    "no array": (ndl.Tensor(X), object()),
    "masked": (like(X, 4), np.ma.masked_array(X, X > 0)),
}


@pytest.fixture(scope="module")
def pair():
    return compiled(lambda x, y: [x - y, {"a": (x, y)}], tensor(X), tensor(X))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_stays_after_a_call(pair, name):
    """Neither a reference nor memory, whether a call returns or raises."""
    args = CALLS[name]
    watched = [*args, *(getattr(each, "cached_data", each) for each in args)]
    watched += [np.ndarray, nd.NDArray, ndl.Tensor, np.dtype("float32"), None, NotImplemented]

    def repeat(callee, count):
        for _ in range(count):
            try:
                callee(*args)
            except InputError:
                pass

    for callee in pair:
        repeat(callee, 300)
        gc.collect()
        references = [sys.getrefcount(each) for each in watched]
        objects, bytes_in_use, arrays = (
            sys.getallocatedblocks(),
            heap(),
            nd.cpu().memory_allocated(),
        )
        repeat(callee, 2000)
        gc.collect()
        after = [sys.getrefcount(each) for each in watched]
        assert all(abs(now - then) < 50 for now, then in zip(after, references, strict=True)), after
        assert sys.getallocatedblocks() - objects < 1000
        assert nd.cpu().memory_allocated() - arrays < 1000
        assert heap() - bytes_in_use < 32_000


def test_many_calls_take_no_more_memory(pair):
    for callee in pair:
        for count in (1000, 20_000):
            gc.collect()
            before = heap(), sys.getallocatedblocks()
            for _ in range(count):
                callee(X, X)
        assert heap() - before[0] < 32_000 and sys.getallocatedblocks() - before[1] < 1000


def test_results_are_released_at_once():
    model = Shared().eval()
    for callee in compiled(model, tensor(X)):
        gc.collect()
        gc.disable()
        try:
            result = callee(X)
            gone = [weakref.ref(result["y"]), weakref.ref(result["again"][1][3])]
            del result
            assert not any(each() is not None for each in gone)
        finally:
            gc.enable()


def test_callers_and_weights_are_released():
    model = make_mlp(64, 64, 64)
    made, program = compiled(model, tensor(drawn(2, 64)))
    x = drawn(2, 64)
    state = {name: each.numpy() for name, each in model.state_dict().items()}

    def change(count):
        for number in range(count):
            program.set_params({name: each + number for name, each in state.items()})
            program(x)
            made._calls._local.__dict__.clear()
            made(x)

    change(30)
    gc.collect()
    before = heap()
    change(100)
    gc.collect()
    assert heap() - before < 65_000  # each time 33,000 bytes of weights


# Weights


def test_a_call_sees_every_write(rng):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    model.eval()
    made, _ = compiled(model, tensor(X))
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        (model(tensor(X)) ** 2).sum().backward()
        optimizer.step()

    def load():
        model.load_state_dict(
            {name: each * 1.5 for name, each in model.state_dict().items()},
        )

    def replace():
        model.modules[0].weight = nn.Parameter(rng.standard_normal((4, 5)).astype("float32"))

    def data():
        model.modules[2].bias.data = tensor(rng.standard_normal((1, 2)).astype("float32"))

    def in_place():
        model.modules[2].bias.cached_data[0, 0] = rng.standard_normal()

    seen = set()
    for write in (step, load, replace, data, in_place) * 4:
        write()
        with native_way(made) as caller:
            found = made(X).numpy()
            assert caller.served
        with python_way(made):
            np.testing.assert_array_equal(made(X).numpy(), found)
        with ndl.no_grad():
            np.testing.assert_allclose(found, model(tensor(X)).numpy(), rtol=1e-4, atol=1e-4)
        seen.add(found.tobytes())
    assert len(seen) > 15


def test_wrong_weights_leave_those_in_use():
    model = Shared().eval()
    made, program = compiled(model, tensor(X))
    expected = [array.copy() for array in arrays_in(program(X))]
    for wrong in ({}, {"w": X[:1], "c": drawn(12)}, {"w": X, "c": drawn(12, dtype="int32")}, None):
        with pytest.raises(ParameterError):
            program.set_params(wrong)
        for one, other in zip(arrays_in(program(X)), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    bare = needle_runtime.Program(made.artifact)
    for _ in range(2):
        with pytest.raises(ParameterError, match="set_params first"):
            bare(X)


def test_while_tracing_no_value_is_read():
    made, program = compiled(lambda x: x * 2, tensor(X))
    expected = made(X).numpy()

    def model(x):
        for callee in (made, program):
            for use in (lambda c=callee: c(x), lambda c=callee: c(x + 1)):
                with pytest.raises((TraceError, InputError), match="while tracing"):
                    use()
            np.testing.assert_array_equal(arrays_in(callee(X))[0], expected)  # NumPy's is known
        return x

    trace(model, tensor(X))
    weight = nn.Parameter(X)
    for callee in (made, program):
        with pytest.raises((TraceError, InputError), match="while tracing"):
            needle_tvm.compile(lambda x, c=callee: x + c(weight), tensor(X))
    np.testing.assert_array_equal(made(weight).numpy(), expected)
