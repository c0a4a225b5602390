"""Sizes, alignment, lifetime, DLPack, conversion from NumPy and pickling."""

import copy
import gc
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given

from needle import backend_ndarray as nd
from needle.backend_ndarray import _cpu
from tests.needle.backend_ndarray.drawing import DTYPES, NATIVE, NUMPY_DTYPES, arrays, same

BAD_SHAPES = [(-1,), (2**62, 2**62), (2**63,), (2**200,), (0, 2**62, 2**62), (1,) * 17, (2**62,)]


@pytest.mark.parametrize("shape", BAD_SHAPES)
def test_impossible_shapes(device, shape):
    with pytest.raises((ValueError, MemoryError)):
        nd.empty(shape, device=device)


@pytest.mark.parametrize("shape", [(2**31, 2**20), (2**50,)])
def test_more_memory_than_there_is(shape):
    with pytest.raises(MemoryError):
        nd.empty(shape, device=nd.cpu())


def test_huge_views_of_little_memory():
    """A view of 2**62 elements with stride 0 can exist; a copy of it cannot."""
    a = nd.ones((1,), device=nd.cpu()).broadcast_to((2**31, 2**20))
    assert a.size == 2**51 and a[-1, -1].item() == 1
    with pytest.raises((MemoryError, ValueError)):
        a.compact()
    with pytest.raises((MemoryError, ValueError)):
        a + 1


OUTSIDE = [
    ((5,), (1,), 0), ((2,), (4,), 0), ((1,), (1,), 4), ((2,), (-1,), 0), ((2,), (2**62,), 0),
    ((2**31, 2**31), (2**31, 1), 0), ((2,), (1, 1), 0), ((1,), (1,), -1), ((0,), (1,), 5),
    ((2,), (1,), 2**63),
]  # fmt: skip


@pytest.mark.parametrize("layout", OUTSIDE)
def test_as_strided_stays_inside(device, layout):
    a = nd.zeros((4,), device=device)
    with pytest.raises(ValueError):
        a.as_strided(*layout)


def test_as_strided_inside(device):
    a = nd.array(np.arange(6.0), device=device)
    same(a.as_strided((3, 2), (1, 2), 1), [[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]])
    same(a.as_strided((2,), (-3,), 4), [4.0, 1.0])
    assert a.as_strided((0, 2), (9, 9), 6).shape == (0, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alignment(dtype):
    kept = []
    for n in (0, 1, 3, 17, 1000):
        kept.append(nd.empty((n,), dtype, device=nd.cpu()))
        kept.append(kept[-1] == kept[-1])
    assert all(a.view.data_ptr % 64 == 0 for a in kept)


@given(arrays())
def test_numpy_round_trip(pair):
    x, a = pair
    same(a, x)
    same(nd.array(x, device=nd.cpu()), x)
    same(pickle.loads(pickle.dumps(a)), x)
    same(copy.deepcopy(a), x)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        *((value, "float32") for value in (1.5, [1.5], [1, 1.5], [])),
        *((value, "int64") for value in (1, [1, 2], [[True, 2]])),
        *((value, "bool") for value in (True, [True, False])),
        *((np.ones(2, dtype), dtype) for dtype in NUMPY_DTYPES),
        *((np.dtype(dtype).type(1), dtype) for dtype in NUMPY_DTYPES),
    ],
    ids=repr,
)
def test_dtypes_of_what_has_none_of_needles(device, values, dtype):
    """Python floats become float32; Python integers, and what NumPy made, keep NumPy's dtype."""
    a = nd.array(values, device=device)
    assert a.dtype == dtype
    np.testing.assert_array_equal(a.numpy(), np.asarray(values))


@pytest.mark.skipif(NATIVE.name == "cuda", reason="NumPy reads no memory of GPUs")
@given(arrays(dtypes=NUMPY_DTYPES))
def test_dlpack_with_numpy(pair):
    x, a = pair
    same(np.from_dlpack(a), x)
    source = np.array(x)  # writable
    same(nd.from_dlpack(source), source)
    same(nd.from_dlpack(source[..., ::-1] if source.ndim else source),
         source[..., ::-1] if source.ndim else source)  # fmt: skip


def test_dlpack_shares_memory():
    a = nd.zeros((2, 3), device=nd.cpu())
    shared = np.from_dlpack(a)
    a[1, 2] = 5.0
    assert shared[1, 2] == 5
    back = nd.from_dlpack(np.ones(4, np.float32))
    gc.collect()
    assert back.sum().item() == 4
    copied = np.from_dlpack(a, copy=True)
    a.fill(9)
    assert copied[1, 2] == 5


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    for dtype in DTYPES:
        t = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, dtype))
        a = nd.from_dlpack(t.T)
        same(a.astype("float64"), t.T.double().numpy())
        if dtype not in ("bool", "uint16"):  # which PyTorch cannot add
            t += 1
        same(a.astype("float64"), t.T.double().numpy())
        assert a.dtype == dtype
        u = torch.from_dlpack(a.permute(1, 0)[:, 1:])
        assert torch.equal(u, t[:, 1:])
    u = torch.from_dlpack(nd.ones((3,), device=nd.cpu()))
    gc.collect()
    assert u.sum() == 3


def test_dlpack_refusals():
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    for source, error in [
        (read_only, BufferError),
        (np.ones(3, np.complex64), TypeError),
        (np.ones(3, np.uint32), TypeError),
        (3, TypeError),
    ]:
        with pytest.raises(error):
            nd.from_dlpack(source, nd.cpu())
    with pytest.raises(TypeError):
        _cpu.from_dlpack(3)
    capsule = _cpu.to_dlpack(nd.ones((2,), device=nd.cpu()).view, False)
    _cpu.from_dlpack(capsule)
    with pytest.raises(TypeError):
        _cpu.from_dlpack(capsule)  # taken over already
    _cpu.to_dlpack(nd.ones((2,), device=nd.cpu()).view, True)  # never taken over: freed


def test_foreign_layouts():
    """Byte-swapped, misaligned, read-only, Fortran-order, structured sources are copied right."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    record = np.zeros(5, dtype=[("a", "i1"), ("b", "f4")])
    record["b"] = np.arange(5)
    raw = np.zeros(17, np.uint8)
    raw[1:] = np.arange(4, dtype=np.float32).view(np.uint8)
    odd = raw[1:].view(np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    for source in (x.astype(">f4"), record["b"], odd, frozen, np.asfortranarray(x), x[::-1, ::2]):
        same(nd.array(source, device=nd.cpu()), source.astype(np.float32))


@pytest.mark.parametrize("source", ["abc", None, [1, "a"], [[1, 2], [3]], np.array(["a"]), 1j,
                                    np.ones(2, np.complex128), np.ones(2, object)])  # fmt: skip
def test_bad_sources(device, source):
    with pytest.raises((TypeError, ValueError)):
        nd.array(source, device=device)


def test_kernels_refuse_what_is_no_view():
    a = nd.ones((2,), device=nd.cpu()).view
    for make in (_cpu.View, lambda: _cpu.View.__new__(_cpu.View), lambda: copy.copy(a),
                 lambda: object.__new__(_cpu.View)):  # fmt: skip
        with pytest.raises(TypeError):
            make()
    calls = [
        _cpu.exp,
        _cpu.compact,
        lambda v: _cpu.copy(v, a),
        lambda v: _cpu.copy(a, v),
        lambda v: _cpu.matmul(a, v),
        lambda v: _cpu.where(v, a, a),
        lambda v: _cpu.sum(v, (0,), False),
        lambda v: _cpu.to_dlpack(v, True),
    ]
    for bad in (None, 3, "x", object(), _cpu.View):
        for call in calls:
            with pytest.raises((TypeError, ValueError)):
                call(bad)


def test_kernels_refuse_bad_arguments():
    a = nd.ones((2,), device=nd.cpu()).view
    for call in (
        lambda: _cpu.sum(a, (5,), False),
        lambda: _cpu.sum(a, (0, 0), False),
        lambda: _cpu.sum(a, (2**70,), False),
        lambda: _cpu.sum(a, (-1,), False),
        lambda: _cpu.argmax(a, 7, False),
        lambda: _cpu.argmax(a, -1, False),
        lambda: _cpu.gather(a, a, 0),
        lambda: _cpu.empty((2,), "float8"),
        lambda: _cpu.empty(3, "float32"),
        lambda: _cpu.cast(a, 3),
        lambda: _cpu.add(1, 2),
        lambda: _cpu.from_numpy(np.ones(2, np.uint32)),
        lambda: _cpu.from_numpy([1]),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


def test_memory_is_given_back():
    """A long loop of results, views and capsules does not make the process larger."""
    resource = pytest.importorskip("resource")

    def loop(n):
        a = nd.ones((256, 256), device=nd.cpu())
        for _ in range(n):
            a = (a + 1.0).permute(1, 0)[:, ::-1].compact()
            np.from_dlpack(a)
            nd.from_dlpack(a.numpy())

    loop(200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loop(1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB; 768 MB made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizer_steps(device, dtype):
    rng = np.random.default_rng(0)
    draw = lambda: nd.array(rng.standard_normal((5, 7)).astype(dtype), device=device)  # noqa: E731
    k = device.kernels
    eps = np.finfo(dtype).eps
    p, g, v = draw().permute(1, 0), draw().permute(1, 0), draw().permute(1, 0)
    x, y, z = p.numpy(), g.numpy(), v.numpy()
    k.sgd_step(p.view, g.view, v.view, 0.1, 0.9, 0.0, 0.01)
    z = 0.9 * z + (y + 0.01 * x)
    np.testing.assert_allclose(v.numpy(), z, rtol=8 * eps, atol=8 * eps)
    np.testing.assert_allclose(p.numpy(), x - 0.1 * z, rtol=8 * eps, atol=8 * eps)
    m, s = draw(), draw() * 0.0
    p, g = draw(), draw()
    x, y, n = p.numpy(), g.numpy(), m.numpy()
    k.adam_step(p.view, g.view, m.view, s.view, 0.1, 0.9, 0.99, 1e-8, 0.01, 0.5, 0.25, False)
    y = y + 0.01 * x
    n, r = 0.9 * n + 0.1 * y, 0.01 * y * y
    np.testing.assert_allclose(
        p.numpy(), x - 0.1 * (n / 0.5) / (np.sqrt(r / 0.25) + 1e-8), rtol=32 * eps, atol=32 * eps
    )
    with pytest.raises(ValueError):
        k.sgd_step(p.view, g[1:].view, None, 0.1, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "bool"])
@pytest.mark.parametrize("value", [1.5, -1.5, -0.5, 0, 3, True, 1e30, -1e30, float("nan")])
def test_fill_casts_as_numpy_does(device, dtype, value):
    array = nd.empty((3,), dtype, device=device)
    array.fill(value)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.full(3, value).astype(dtype)
    np.testing.assert_array_equal(array.numpy(), expected)
