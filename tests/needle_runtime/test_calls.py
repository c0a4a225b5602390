"""A call gives the same, results and errors, whether the native caller serves it or Python does."""

import array
import functools
import operator

import ml_dtypes  # noqa: F401 (NumPy's bfloat16)
import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle import nn
from needle.backend_ndarray.dtypes import DTYPES, ITEMSIZE
from needle_runtime.errors import InputError
from tests.needle_runtime.ways import both_ways, compiled, drawn, like
from tests.needle_tvm.conftest import make_mlp, tensor

X, Y = drawn(2, 3), drawn(2, 3, seed=1)


class Weighted(nn.Module):
    """Returns its input, its parameter, a constant, and one result twice, in nested structures."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(tensor(Y))

    def forward(self, x):
        y = x * self.w
        return {"x": x, "w": self.w, "twice": [y, (y, y)], "c": tensor(np.arange(4.0)), "no": None}


# A function, and arguments by position and by name for a call; the model is traced with the former.
SIGNATURES = {
    "one": (lambda x: x * 2 + 1, [X], {}),
    "tuple": (lambda x: (x * 2, x + 1), [X], {}),
    "tuple of one": (lambda x: (x * 2,), [X], {}),
    "list": (lambda x: [x * 2, x.sum()], [X], {}),
    "list of one": (lambda x: [x * 2], [X], {}),
    "dict of one": (lambda x: {"y": x * 2}, [X], {}),
    "nested": (Weighted().eval(), [X], {}),
    "the input": (lambda x: x, [X], {}),
    "views": (lambda x: (x, x.reshape((6,)), x.reshape((3, 2)), x[1:], x.transpose()), [X], {}),
    "two": (lambda x, y: x - y, [X, Y], {}),
    "the same array twice": (lambda x, y: (x - y, y, x), [X, X], {}),
    "swapped": (lambda x, y: (y, x), [X, Y], {}),
    "nested arguments": (lambda a, b: a["u"] * b[0] - b[1], [{"u": X}, (X, Y)], {}),
    "by name": (lambda x, y: x - y, [X, Y], {"y": Y, "x": X}),
    "half by name": (lambda x, y: x - y, [X, Y], {"y": Y}),
    "fixed": (lambda x, n, mode="a": x * n, [X, 3, "a"], {}),
    "nothing": (lambda: (tensor(np.arange(3.0)), tensor(Y)), [], {}),
    "no result": (lambda x: (), [X], {}),
    "no array in the result": (lambda x: (None, {"a": None}), [X], {}),
    "0-d": (lambda x, y: (x * y, x, x.sum()), [like(np.float32(2)), like(np.float32(3))], {}),
    "empty": (lambda x, y: (x * 2, x.sum(), x, y), [drawn(0, 3), drawn(2, 0, 4)], {}),
    "eight": (lambda *x: functools.reduce(operator.sub, x), [drawn(5)] * 8, {}),
    "many": (lambda *x: x[::-1], [drawn(n, seed=n) for n in range(24)], {}),
    "larger": (make_mlp(40, 30, 9), [drawn(33, 40)], {}),
}  # fmt: skip


def traced(value):
    """Arguments for the compiler."""
    if isinstance(value, dict):
        return {name: traced(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(traced, value))
    return tensor(value) if isinstance(value, np.ndarray) else value


@functools.cache
def of(name):
    function, args, _ = SIGNATURES[name]
    return compiled(function, *map(traced, args))


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_structure(name):
    _, args, kwargs = SIGNATURES[name]
    given = args[: len(args) - len(kwargs)]
    for callee in of(name):
        served, found = both_ways(callee, *given, **kwargs)
        assert served, found
        flat = [each for each in args if isinstance(each, np.ndarray)]
        if isinstance(callee, type(of("one")[1])) and len(flat) == len(callee.inputs):
            found, expected = callee.run(flat), callee.executor.run(flat)
            assert type(found) is list and len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_every_stage(stage):
    for callee in compiled(Weighted().eval(), tensor(X), stage=stage):
        served, found = both_ways(callee, X)
        assert served, found


WRONG = {
    "none": ([], {}),
    "too few": ([X], {}),
    "too many": ([X, Y, X], {}),
    "twice": ([X, Y], {"x": X}),
    "unknown name": ([X, Y], {"z": X}),
    "unknown name alone": ([], {"z": X}),
    "missing name": ([], {"x": X}),
    "not implemented": ([X, NotImplemented], {}),
    "in a list": ([[X, Y]], {}),
    "in a tuple": ([(X, Y)], {}),
    "in a dict": ([{"x": X}, Y], {}),
    "one wrong, the first": ([X[:1], Y], {}),
    "one wrong, the last": ([X, Y[:1]], {}),
    "both wrong": ([X.T, Y.astype("int32")], {}),
    "another number of axes": ([X[None], Y], {}),
    "more than 64 axes": ([X, drawn(2, 3).tolist()], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    args, kwargs = WRONG[name]
    for callee in of("two"):
        served, found = both_ways(callee, *args, **kwargs)
        assert not served and found[0] is InputError, found
        if not kwargs:
            assert both_ways(callee, X, Y)[0]  # the next call is right
    with pytest.raises(InputError):
        of("two")[1].run(args if len(args) != 2 else args[:1])


@pytest.mark.parametrize("values", [X, X[0], iter([X, Y]), {"x": X, "y": Y}, None, 3, "xy"])
def test_what_is_no_list_of_arrays(values):
    program = of("two")[1]
    with pytest.raises(InputError):
        program.run(values)


def test_without_weights():
    model = Weighted().eval()
    executable, program = compiled(model, tensor(X))
    bare = type(program)(executable.artifact)
    for args in ([X], [X[:1]], []):
        served, _ = both_ways(bare, *args)
        assert not served
    bare.set_params({"w": Y})
    assert both_ways(bare, X) == both_ways(program, X)


# Dtypes and layouts


def everything(x):
    """Results that need no arithmetic, which not every dtype has."""
    return x, x.reshape((6,)), x[:, ::-1]


@functools.cache
def of_dtype(dtype):
    return compiled(everything, tensor(drawn(2, 3, dtype=dtype)))


def inputs_of(x):
    """The same array as each class that a call takes."""
    yield x
    yield nd.array(x)
    yield ndl.Tensor(x)
    yield ndl.Tensor(x, requires_grad=False)
    if x.dtype.kind == "f":
        yield nn.Parameter(ndl.Tensor(x))
        yield ndl.Tensor(x) * 1  # with a history


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_class(dtype):
    x = drawn(2, 3, dtype=dtype)
    for callee in of_dtype(dtype):
        expected = both_ways(callee, x)
        for given in inputs_of(x):
            assert both_ways(callee, given) == expected and expected[0], type(given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_other_dtype_is_refused(dtype):
    for other in {*DTYPES, "uint8", "int8", "int16", "uint32", "uint64", "complex64"} - {dtype}:
        x = np.zeros((2, 3), other)
        kinds = [x] if other not in DTYPES else [x, nd.array(x), ndl.Tensor(x)]
        for callee in of_dtype(dtype):
            for given in kinds:
                served, found = both_ways(callee, given)
                assert not served and found[0] is InputError and other in found[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_offset(dtype):
    x = drawn(2, 3, dtype=dtype)
    for callee in of_dtype(dtype):
        _, expected = both_ways(callee, x)
        for offset in range(64):
            given = like(x, offset)
            before = given.tobytes()
            assert both_ways(callee, given) == (True, expected), offset
            assert given.tobytes() == before
            if offset % ITEMSIZE[dtype] == 0 and dtype != "bfloat16":  # NumPy exports none
                shared = nd.from_dlpack(given)
                assert both_ways(callee, shared) == (True, expected), offset
                assert both_ways(callee, ndl.Tensor(shared)) == (True, expected), offset


class Sub(np.ndarray):
    """A subclass without additions."""


def layouts(x):
    """By name: an array with the values of x in another layout, and whether it is served."""
    wide = np.repeat(np.repeat(x, 2, 0), 3, 1)
    frozen = x.copy()
    frozen.flags.writeable = False
    odd = np.frombuffer(b"1" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    a = nd.array(x)
    strided = nd.array(wide)[::2, ::3]
    flipped = nd.array(np.ascontiguousarray(x[::-1, ::-1])).flip()
    return {
        "strided": (wide[::2, ::3], False),
        "columns": (np.concatenate([x, x], 1)[:, :3], False),
        "rows": (np.concatenate([x, x])[:2], True),
        "fortran": (np.asfortranarray(x), False),
        "negative": (np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1], False),
        "read-only": (frozen, True),
        "read-only, misaligned": (odd, True),
        "subclass": (x.view(Sub), False),
        "matrix": (x.view(np.matrix), False),
        "bytes": (np.frombuffer(x.tobytes(), x.dtype).reshape(2, 3), True),
        "dtype with metadata": (x.view(np.dtype(x.dtype, metadata={"a": 1})), False),
        "lists": (x.tolist() if x.dtype == np.float64 else x.view(Sub), False),
        "array of needle's": (a, True),
        "strided of needle's": (strided, False),
        "flipped of needle's": (flipped, False),
        "transposed of needle's": (nd.array(np.ascontiguousarray(x.T)).permute((1, 0)), False),
        "strided Tensor": (ndl.Tensor(strided), False),
        "cpu_numpy": (nd.array(x, device=nd.cpu_numpy()), None),
        "cpu_numpy, strided": (nd.array(wide, device=nd.cpu_numpy())[::2, ::3], None),
        "cpu_numpy Tensor": (ndl.Tensor(x, device=nd.cpu_numpy()), None),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # np.matrix
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_every_layout(dtype):
    x = drawn(2, 3, dtype=dtype)
    for callee in of_dtype(dtype):
        _, expected = both_ways(callee, x)
        for name, (given, serves) in layouts(x).items():
            served, found = both_ways(callee, given)
            assert found == expected, name
            assert serves is None or served is serves, name


REFUSED = {
    "big-endian": X.astype(">f4"),
    "masked": np.ma.masked_array(X, X > 0),
    "masked without a mask": np.ma.masked_array(X),
    "masked in a list": [np.ma.masked_array(X[0], X[0] > 0), X[1]],
    "a field": np.zeros((2, 3), [("a", "f4"), ("b", "f4")]),
    "objects": X.astype(object),
    "text": np.full((2, 3), "a"),
    "dates": np.zeros((2, 3), "M8[s]"),
    "ragged": [[1.0], [1.0, 2.0]],
    "the lists of another dtype": Y.tolist(),
    "a buffer": array.array("f", [1] * 6),
    "bytes": b"123456",
    "None": None,
    "a number": 3.0,
    "a NumPy scalar": np.float32(3),
    "a class": np.ndarray,
    "no value": object.__new__(ndl.Tensor),
    "no array": object.__new__(nd.NDArray),
    "a tuple of tensors": ndl.ops.make_tuple(tensor(X), tensor(Y)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_refusal(name):
    for callee in of_dtype("float32"):
        served, found = both_ways(callee, REFUSED[name])
        assert not served and issubclass(found[0], (InputError, AttributeError)), found
        assert both_ways(callee, X)[0]


# Indices


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_indices_at_the_ends_of_their_range(dtype):
    rows = nn.Embedding(5, 3).eval()

    def table(ids):
        return rows(ids if dtype.startswith("int") else ndl.ops.cast(ids, "int64"))

    for callee in compiled(table, tensor(np.zeros((7, 1), dtype))):
        low, high = -5, 4
        for place in range(7):
            for index in (low - 1, low, -1, 0, high, high + 1):
                for offset in (0, 8):
                    ids = like(np.zeros((7, 1), dtype), offset)
                    ids[place] = index
                    served, found = both_ways(callee, ids)
                    fits = low <= index <= high
                    assert served is (fits and dtype.startswith("int")), index
                    assert fits or (found[0] is InputError and f"index {index}" in found[1])
                    if offset:
                        assert both_ways(callee, ndl.Tensor(ids)) == (served, found)
        ends = np.iinfo(dtype) if dtype.startswith("int") else np.finfo(dtype)
        for index in (ends.min, ends.max, *([np.nan, np.inf, -np.inf] * (dtype[0] == "f"))):
            served, found = both_ways(callee, np.full((7, 1), index, dtype))
            assert not served and found[0] is InputError, found


def test_no_indices():
    for callee in compiled(nn.Embedding(5, 3).eval(), tensor(np.zeros((0, 1), "int64"))):
        served, found = both_ways(callee, np.zeros((0, 1), np.int64))
        assert served, found


# PyTorch's tensors


@pytest.mark.peer
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "uint16"])  # PyTorch lacks its ops
def test_tensors_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = drawn(2, 3, dtype=dtype)
    same = torch.from_dlpack(ndl.Tensor(x))
    apart = torch.stack([same, same], 2)[:, :, 0]
    emptied = same.clone()
    emptied.untyped_storage().resize_(0)
    leaf = same.clone().requires_grad_() if same.is_floating_point() else same
    given = {
        "tensor": (same, True),
        "requires a gradient": (leaf, True),
        "parameter": (torch.nn.Parameter(same, leaf.requires_grad), True),
        "has a history": (leaf.reshape(3, 2).reshape(2, 3), True),
        "strided": (apart, False),
        "strided, requires a gradient": (torch.stack([leaf, leaf], 2)[:, :, 0], False),
        "transposed": (same.T.contiguous().T, False),
        "expanded": (same[:1].expand(2, 3), False),
        "inner": (torch.cat([same, same, same])[1:3], True),
        "sparse": (same.to_sparse(), False),
        "nowhere": (same.to("meta"), False),
        "fake": (FakeTensorMode().from_tensor(same), False),
        "emptied": (emptied, False),
        "other dtype": (same.to(torch.complex64), False),
        "other shape": (same[None], False),
    }
    for callee in of_dtype(dtype):
        for name, (each, serves) in given.items():
            served, found = both_ways(callee, each)
            assert served is serves, (name, found)
            assert (found[0] is InputError) is (name in list(given)[-6:]), (name, found)
    if leaf.requires_grad:
        assert leaf.grad is None and leaf.requires_grad


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16"])
def test_small_integers_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    import needle_tvm

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return x.clone(), y * 2, y > 0

    x, y = np.arange(6, dtype=dtype).reshape(2, 3), drawn(2, 3)
    made = needle_tvm.compile_torch(Model().eval(), torch.from_numpy(x), torch.from_numpy(y))
    for given in (x, like(x, 1), torch.from_numpy(x)):
        served, found = both_ways(made.program, given, y)
        assert served and found[1][0][1] == dtype
        _, found = both_ways(made, given, y)
        assert found[1][0][1][1] == dtype and found[1][1][1][1] == "float32"
