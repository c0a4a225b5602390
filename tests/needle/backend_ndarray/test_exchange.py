"""DLPack's C exchange tables: other libraries' C code reads and makes Tensors and NDArrays."""

import contextlib
import gc
import sys
import threading
import weakref

import ml_dtypes  # noqa: F401 (NumPy's bfloat16)
import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle import nn
from needle.autograd import tensor as tensor_module
from needle.backend_ndarray import ndarray as ndarray_module
from needle.errors import TraceError
from needle.trace import trace

pytestmark = pytest.mark.skipif(not nd.cpu().enabled(), reason="the native module is not built")
SHAPES = [(), (0,), (1,), (5,), (2, 3), (0, 3), (2, 0, 4), (1, 1, 1), (2, 3, 4), (1,) * 16]


@pytest.fixture(scope="module")
def echo():
    """C code that makes an object of the class that it reads."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    return tvm_ffi.get_global_func("testing.echo")


def bits(x):
    return x.dtype, x.shape, x.numpy().tobytes()


def numbered(shape, dtype):
    """Distinct numbers where the dtype has as many."""
    return nd.array(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 251, dtype=dtype)


def views(dtype):
    """Arrays of all layouts."""
    yield from (numbered(shape, dtype) for shape in SHAPES)
    a = numbered((4, 3, 6), dtype)
    yield from (a[1:, ::2], a[:, :, 2], a[::-1], a[:, ::-1, ::-2], a.permute((2, 0, 1)), a.flip())
    yield from (a[2:2], a[:, 1:1, ::-1], a[3, 2, 5], a[:1, :, :1], a.broadcast_to((2, 4, 3, 6)))
    yield from (nd.array(1, dtype=dtype).broadcast_to((3, 2)), numbered((9,), dtype)[::-4])


@pytest.mark.parametrize("dtype", nd.DTYPES)
def test_round_trip(echo, dtype):
    for array in views(dtype):
        for given in (array, ndl.Tensor(array), ndl.Tensor(array, requires_grad=False)):
            found = echo(given)
            assert type(found) is type(given) and bits(found) == bits(given)
            assert found.device is nd.cpu()
            data = found if found is not given and type(found) is nd.NDArray else found.cached_data
            if array.size:
                assert data.strides == array.strides
                data[...] = 1  # the same memory
                assert bits(found) == bits(given) and not (given.numpy() != 1).any()


class OwnTensor(ndl.Tensor):
    pass


class OwnArray(nd.NDArray):
    __slots__ = ()


def test_subclasses_become_their_base(echo):
    x = np.arange(3.0, dtype=np.float32)
    for given, kind in (
        (nn.Parameter(x), ndl.Tensor),
        (OwnTensor(x), ndl.Tensor),
        (OwnArray(x), nd.NDArray),
    ):
        found = echo(given)
        assert type(found) is kind and bits(found) == bits(given)
    assert not echo(nn.Parameter(x)).requires_grad and echo(nn.Parameter(x)).is_leaf


def test_results_are_tensors_like_others(echo):
    x = ndl.Tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    found = echo(x * 2)  # one with a history, which is not followed
    assert found.is_leaf and not found.requires_grad and found.grad is None
    found.requires_grad = True
    (found * x).sum().backward()
    np.testing.assert_array_equal(found.grad.numpy(), x.numpy())
    assert x.grad is not None
    assert bits(echo(found)) == bits(found) == bits(found.detach())
    found.data = x
    np.testing.assert_array_equal(found.numpy(), x.numpy())
    assert repr(echo(x)) and len(echo(x)) == 2 and echo(x)[1, 2].item() == 5
    np.testing.assert_array_equal((echo(x) @ echo(x).transpose()).numpy(), x.numpy() @ x.numpy().T)


def test_writes_are_counted(echo):
    array = numbered((3,), "float32")
    found = echo(array)
    for one in (array, found):
        before = nd.cpu().kernels.writes()
        one[0] = 9.0
        assert nd.cpu().kernels.writes() > before and array[0].item() == found[0].item() == 9


def test_the_reference_device_is_read_as_well(echo):
    x = np.arange(6.0).reshape(2, 3)
    for given in (nd.array(x, device=nd.cpu_numpy()), ndl.Tensor(x, device=nd.cpu_numpy())):
        found = echo(given)
        assert (
            type(found) is type(given) and found.device is nd.cpu() and bits(found) == bits(given)
        )


def test_from_dlpack_goes_on_working():
    for array in views("float32"):
        for given in (array, ndl.Tensor(array)):
            found = np.from_dlpack(given)
            assert found.shape == array.shape and found.tobytes() == array.numpy().tobytes()
            back = nd.from_dlpack(given)
            assert bits(back) == bits(array)
    shared = np.from_dlpack(array)
    shared[...] = 7
    assert (array.numpy() == 7).all()


@pytest.mark.peer
@pytest.mark.parametrize("dtype", nd.DTYPES)
def test_pytorch(echo, dtype):
    torch = pytest.importorskip("torch")
    for array in views(dtype):
        if any(step < 0 for step in array.strides):
            continue  # PyTorch has none
        for given in (array, ndl.Tensor(array)):
            found = torch.from_dlpack(given)
            assert tuple(found.shape) == array.shape and dtype in str(found.dtype)
            back = nd.from_dlpack(found)
            assert bits(back) == bits(array)
            if array.size:
                found.fill_(1)
                assert (given.numpy() == 1).all()
    assert type(echo(found)) is torch.Tensor


# Errors


class Hooked(nd.NDArray):
    """An array whose memory cannot be had."""

    error = ValueError

    @property
    def view(self):
        raise self.error("no memory")


def test_what_has_no_memory_is_an_error(echo, monkeypatch):
    released = ndl.Tensor([1.0, 2.0]) * 2
    (released * released).sum().backward()
    released._data = None
    cases = [
        (object.__new__(ndl.Tensor), AttributeError),
        (object.__new__(nd.NDArray), AttributeError),
        (object.__new__(nn.Parameter), AttributeError),
        (released, RuntimeError),
        (object.__new__(Hooked), ValueError),
    ]
    for given, error in cases:
        before = sys.getrefcount(given)
        for _ in range(100):
            with pytest.raises(error):
                echo(given)
        assert sys.getrefcount(given) <= before + 1
    for error in (KeyboardInterrupt, MemoryError, TypeError):
        monkeypatch.setattr(Hooked, "error", error)
        with pytest.raises(error):
            echo(object.__new__(Hooked))


def test_while_tracing_no_value_is_read(echo):
    weight, seen = nn.Parameter([1.0, 2.0]), []

    def model(x):
        for each in (x, x + 1, weight, weight * x):
            with pytest.raises(TraceError, match="while tracing"):
                echo(each)
        seen.append(bits(echo(nd.array([1, 2]))))  # an array is no value of the trace
        thread = threading.Thread(target=lambda: seen.append(bits(echo(weight))))
        thread.start()  # which does not trace
        thread.join()
        return x

    trace(model, ndl.Tensor([1.0, 2.0]))
    assert len(seen) == 2 and seen[1] == bits(weight) == bits(echo(weight))


def test_without_the_native_module_there_is_no_table(monkeypatch):
    for error in (RuntimeError("not built"), ImportError("broken")):

        def load(self, error=error):
            raise error

        device = nd.Device("cpu")
        monkeypatch.setattr(nd.Device, "_load", load)
        monkeypatch.setattr(ndarray_module, "_CPU", device)
        monkeypatch.setattr(
            ndl.Tensor, "__dlpack_c_exchange_api__", tensor_module._TensorExchange()
        )
        monkeypatch.setattr(
            nd.NDArray, "__dlpack_c_exchange_api__", ndarray_module._ArrayExchange()
        )
        for owner in (ndl.Tensor, nd.NDArray, nn.Parameter, object.__new__(ndl.Tensor)):
            assert not hasattr(owner, "__dlpack_c_exchange_api__")
        monkeypatch.undo()
    assert hasattr(ndl.Tensor, "__dlpack_c_exchange_api__")


def test_one_table_for_each_class():
    tables = [
        [each.__dlpack_c_exchange_api__ for each in group]
        for group in (
            (ndl.Tensor, nn.Parameter, OwnTensor, ndl.Tensor([1.0])),
            (nd.NDArray, OwnArray, nd.array([1])),
        )
    ]
    for group in tables:
        assert all(each is group[0] for each in group)
    assert tables[0][0] is not tables[1][0]
    assert not hasattr(ndl.TensorTuple, "__dlpack_c_exchange_api__")


# Lifetime


@pytest.mark.parametrize("kind", [nd.NDArray, ndl.Tensor])
def test_results_and_sources_outlive_each_other(echo, kind):
    gc.collect()
    allocated = nd.cpu().memory_allocated
    before = allocated()
    for order in ("source first", "result first"):
        source = kind(np.arange(1000.0))
        found = echo(source)
        gone = weakref.ref(source), weakref.ref(found)
        values = source.numpy()
        if order == "source first":
            del source
            gc.collect()
            assert gone[0]() is None
            np.testing.assert_array_equal(found.numpy(), values)
            chain = echo(echo(found))
            del found
            np.testing.assert_array_equal(chain.numpy(), values)
            assert allocated() - before == 8000
            del chain
        else:
            del found
            np.testing.assert_array_equal(source.numpy(), values)
            del source
        gc.collect()
        assert allocated() == before and not any(each() for each in gone)


def test_nothing_stays(echo):
    x = ndl.Tensor(np.arange(6.0))
    given = [x, x.cached_data, nn.Parameter(x), nd.array([1.0, 2.0], device=nd.cpu_numpy())]
    released = object.__new__(ndl.Tensor)

    def repeat(count):
        for _ in range(count):
            for each in given:
                echo(each)
            with contextlib.suppress(AttributeError):
                echo(released)

    repeat(20)
    gc.collect()
    watched = [*given, x.cached_data.view, nd.cpu(), released]
    before = list(map(sys.getrefcount, watched))
    classes = sys.getrefcount(ndl.Tensor), sys.getrefcount(nd.NDArray)
    objects, memory = sys.getallocatedblocks(), nd.cpu().memory_allocated()
    repeat(500)
    gc.collect()
    assert list(map(sys.getrefcount, watched)) == before
    assert abs(sys.getrefcount(ndl.Tensor) - classes[0]) < 50
    assert abs(sys.getrefcount(nd.NDArray) - classes[1]) < 50
    assert sys.getallocatedblocks() - objects < 1000  # other threads' included; a leak has 500 * 5
    assert nd.cpu().memory_allocated() == memory


def test_many_threads(echo):
    arrays = [numbered((50,), "int64") + k for k in range(8)]
    shared = ndl.Tensor(arrays[0].numpy(), requires_grad=False)
    allowed = {each.numpy().tobytes() for each in arrays}
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            found = echo(shared)
            if found.numpy().tobytes() not in allowed:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(300):
        shared.data = ndl.Tensor(arrays[number % 8])
        echo(shared)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
