"""The functions of DLPack's C exchange tables, called as C code calls them."""

import ctypes
import gc
import itertools
import sys

import ml_dtypes  # noqa: F401 (NumPy's bfloat16)
import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from tests.needle.backend_ndarray.test_exchange import SHAPES, views

pytestmark = pytest.mark.skipif(not nd.cpu().enabled(), reason="the native module is not built")


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
TENSOR, MANAGED = ctypes.POINTER(CTensor), ctypes.POINTER(Managed)
OBJECT, STREAM = ctypes.POINTER(ctypes.py_object), ctypes.POINTER(ctypes.c_void_p)


def function(*arguments, of=ctypes.PYFUNCTYPE):
    return of(ctypes.c_int, *arguments)


class Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        (
            "allocate",
            function(TENSOR, ctypes.POINTER(MANAGED), ctypes.c_void_p, FAIL, of=ctypes.CFUNCTYPE),
        ),
        ("from_object", function(ctypes.py_object, ctypes.POINTER(MANAGED))),
        ("to_object", function(MANAGED, OBJECT)),
        ("view_object", function(ctypes.py_object, TENSOR)),
        ("current_stream", function(ctypes.c_int32, ctypes.c_int32, STREAM)),
    )


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
    for shape, strides in [
        ((2, 3), None), ((2, 3), (3, 1)), ((3, 2), (1, 3)), ((), None), ((4, 3), (0, 1)),
        ((1, 3), (2**62, 1)), ((0, 3), (5, -7)), ((0,), None),
    ]:  # fmt: skip
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
        ({"dtype": (2, 128)}, "has no dtype"),
        ({"dtype": (1, 32)}, "has no dtype"),
        ({"dtype": (5, 64)}, "has no dtype"),
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

    gc.collect()
    before = nd.cpu().memory_allocated()
    codes = {"float32": (2, 32), "float64": (2, 64), "int32": (0, 32), "int64": (0, 64),
             "bool": (6, 8), "int8": (0, 8), "uint8": (1, 8), "int16": (0, 16),
             "uint16": (1, 16), "float16": (2, 16), "bfloat16": (4, 16)}  # fmt: skip
    assert set(codes) == set(nd.DTYPES)
    for shape, (dtype, code) in itertools.product(SHAPES, codes.items()):
        returned, out = allocate(shape, code)
        assert returned == 0 and (out.contents.tensor.data or 0 in shape)
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
        (((1,) * 17,), {}, b"BufferError"), (((2,), (1, 32)), {}, b"BufferError"),
        (((-1,),), {}, b"BufferError"), (((2**62, 8),), {}, b"BufferError"),
        (((2**50,),), {}, b"MemoryError"), (((2,),), {"device": Device(2, 0)}, b"BufferError"),
        (((2,),), {"ndim": -1}, b"BufferError"),
        (((2,),), {"dtype": DataType(2, 32, 4)}, b"BufferError"),
    ]:  # fmt: skip
        returned, out = allocate(*arguments, **changes)
        assert returned == -1 and not out
        context, kind_of_error, message = failures.pop()
        assert (context, kind_of_error) == (42, name) and message
