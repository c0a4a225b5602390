"""DLPack's C exchange tables of Tensor and NDArray: other libraries' C code reads and makes them."""

import contextlib
import ctypes
import gc
import itertools
import sys
import threading
import weakref

import ml_dtypes  # noqa: F401 (NumPy's bfloat16)
import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle import nn
from needle import tensor as tensor_module
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
    watched = [*given, x.cached_data.view, nd.cpu(), released]
    before = list(map(sys.getrefcount, watched))
    classes = sys.getrefcount(ndl.Tensor), sys.getrefcount(nd.NDArray)
    objects, memory = sys.getallocatedblocks(), nd.cpu().memory_allocated()
    repeat(500)
    assert list(map(sys.getrefcount, watched)) == before
    assert abs(sys.getrefcount(ndl.Tensor) - classes[0]) < 50
    assert abs(sys.getrefcount(nd.NDArray) - classes[1]) < 50
    assert sys.getallocatedblocks() - objects < 300 and nd.cpu().memory_allocated() == memory


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


# The functions of the tables by themselves


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class CTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
FAIL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Managed._fields_ = (
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", CTensor),
)
_OUT = ctypes.POINTER(ctypes.POINTER(Managed))


class Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CTensor), _OUT, ctypes.c_void_p, FAIL)),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _OUT)),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Managed), ctypes.POINTER(ctypes.py_object))),
        ("view_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(CTensor))),
        ("current_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))),
    )  # fmt: skip


def table(cls):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Table.from_address(pointer(cls.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


KINDS = pytest.mark.parametrize("kind", [nd.NDArray, ndl.Tensor])


def extents(*values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


class Foreign:
    """Another library's tensor of ones, which counts how often it is given back."""

    def __init__(self, shape=(2, 3), strides=None, dtype=(2, 32), **changes):
        self.deleted = 0
        self.memory = np.ones(64, np.uint8)
        self.memory[:] = np.ones(16, np.float32).view(np.uint8)
        self.managed = Managed(1, 0)
        self.managed.deleter = DELETER(self._delete)
        c = self.managed.tensor
        c.data, c.device, c.ndim = self.memory.ctypes.data, Device(1, 0), len(shape)
        c.dtype = DataType(*dtype, 1)
        self.shape = extents(*shape)
        c.shape = self.shape
        if strides is not None:
            self.strides = extents(*strides)
            c.strides = self.strides
        for name, value in changes.items():
            setattr(self.managed if name in ("flags", "major") else c, name, value)

    def _delete(self, _):
        self.deleted += 1

    def given_to(self, kind):
        out = ctypes.py_object()
        made = table(kind).to_object(ctypes.byref(self.managed), ctypes.byref(out))
        assert made == 0
        value = out.value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))  # ctypes took one of its own
        return value


@KINDS
def test_versions_and_streams(kind):
    t, stream = table(kind), ctypes.c_void_p(3)
    assert (t.major, t.minor, t.previous) == (1, 3, None)
    assert t.current_stream(1, 0, ctypes.byref(stream)) == 0 and stream.value is None


@KINDS
def test_a_foreign_tensor_is_given_back_once(kind):
    for shape, strides in [((2, 3), None), ((2, 3), (3, 1)), ((3, 2), (1, 3)), ((), None), ((4, 3), (0, 1)),
                           ((1, 3), (2**62, 1)), ((0, 3), (5, -7)), ((0,), None)]:  # fmt: skip
        foreign = Foreign(shape, strides)
        found = foreign.given_to(kind)
        assert type(found) is kind and found.shape == shape and (found.numpy() == 1).all()
        assert foreign.deleted == (0 in shape)
        view = found[:1] if shape and shape[0] else found
        del found
        assert foreign.deleted == (0 in shape)
        del view
        assert foreign.deleted == 1
    foreign = Foreign((2, 3), (-3, -1), byte_offset=20)
    assert (foreign.given_to(kind).numpy() == 1).all()
    assert foreign.deleted == 1


@KINDS
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"flags": 1}, "read-only"),
        ({"major": 2}, "version 2"),
        ({"major": 0}, "version 0"),
        ({"dtype": (2, 128)}, "not stored"),
        ({"dtype": (1, 8)}, "not stored"),
        ({"dtype": (5, 64)}, "not stored"),
        ({"device": Device(2, 0)}, "CUDA|cuda|device"),
        ({"device": Device(7, 0)}, "device"),
        ({"shape": (-1, 3)}, "negative|-1"),
        ({"shape": (2**62, 2**62)}, "bytes|elements|shape"),
        ({"shape": (1,) * 17}, "17 dimensions"),
        ({"ndim": -1}, "-1 dimensions"),
        ({"strides": (2**62, 2**62), "shape": (3, 3)}, "overflow"),
        ({"strides": (-(2**63), 1)}, "overflow"),
        ({"data": None}, "null"),
        ({"byte_offset": 1}, "aligned"),
    ],
)
def test_what_is_not_taken_is_given_back_once(kind, options, error):
    foreign = Foreign(**options)
    for _ in range(2):
        before = foreign.deleted
        with pytest.raises((BufferError, TypeError, ValueError), match=error):
            foreign.given_to(kind)
        assert foreign.deleted == before + 1


@KINDS
def test_a_view_lends_memory_shape_and_strides(kind):
    for dtype in nd.DTYPES:
        for array in views(dtype):
            given, out = kind(array) if kind is ndl.Tensor else array, CTensor()
            references = sys.getrefcount(given), sys.getrefcount(array)
            assert table(kind).view_object(given, ctypes.byref(out)) == 0
            assert (sys.getrefcount(given), sys.getrefcount(array)) == references
            assert out.ndim == array.ndim and out.byte_offset == 0 and out.device.type == 1
            assert tuple(out.shape[: out.ndim]) == array.shape
            if array.size:
                assert tuple(out.strides[: out.ndim]) == array.strides
                size = np.dtype(dtype).itemsize
                first = ctypes.string_at(out.data, size)
                assert first == array[(0,) * array.ndim].numpy().tobytes()
            assert (out.dtype.bits, out.dtype.lanes) == (np.dtype(dtype).itemsize * 8, 1)
    for wrong in (object.__new__(kind), kind(np.ones(2), device=nd.cpu_numpy())):
        with pytest.raises((AttributeError, BufferError)):
            table(kind).view_object(wrong, ctypes.byref(out))


@KINDS
def test_allocation(kind):
    failures = []
    fail = FAIL(lambda context, name, message: failures.append((context, name, message)))
    t = table(kind)

    def allocate(shape, element=(2, 32), **changes):
        like, out = CTensor(), ctypes.POINTER(Managed)()
        held = extents(*shape)
        like.shape, like.ndim, like.dtype = held, len(shape), DataType(*element, 1)
        like.device = Device(1, 0)
        for name, value in changes.items():
            setattr(like, name, value)
        code = t.allocate(ctypes.byref(like), ctypes.byref(out), 42, fail)
        return code, out

    before = nd.cpu().memory_allocated()
    codes = {"float32": (2, 32), "float64": (2, 64), "int32": (0, 32), "int64": (0, 64),
             "bool": (6, 8), "float16": (2, 16), "bfloat16": (4, 16)}  # fmt: skip
    assert set(codes) == set(nd.DTYPES)
    for shape, (dtype, code) in itertools.product(SHAPES, codes.items()):
        returned, out = allocate(shape, code)
        assert returned == 0 and out.contents.tensor.data or 0 in shape
        made = ctypes.py_object()
        assert t.to_object(out, ctypes.byref(made)) == 0
        value = made.value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
        assert type(value) is kind and value.shape == shape and value.dtype == dtype
        del value, made
    returned, out = allocate((1000,))
    assert nd.cpu().memory_allocated() == before + 4000
    out.contents.deleter(out)
    gc.collect()
    assert nd.cpu().memory_allocated() == before and not failures
    for arguments, changes, name in [
        (((1,) * 17,), {}, b"BufferError"), (((2,), (1, 8)), {}, b"BufferError"),
        (((-1,),), {}, b"BufferError"), (((2**62, 8),), {}, b"BufferError"),
        (((2**50,),), {}, b"MemoryError"), (((2,),), {"device": Device(2, 0)}, b"BufferError"),
        (((2,),), {"ndim": -1}, b"BufferError"),
        (((2,),), {"dtype": DataType(2, 32, 4)}, b"BufferError"),
    ]:  # fmt: skip
        returned, out = allocate(*arguments, **changes)
        assert returned == -1 and not out
        context, kind_of_error, message = failures.pop()
        assert (context, kind_of_error) == (42, name) and message
