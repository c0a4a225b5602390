"""The course's names and paths, and that nothing of them is there without `install`."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
import needle.course
from needle import backend_ndarray as nd
from needle import nn
from needle.course.modules import PATHS


@pytest.fixture
def course():
    needle.course.install()
    yield
    needle.course.uninstall()


def test_needle_does_not_import_it():
    code = "import sys, needle; assert 'needle.course' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_install_its_paths_are_not_there():
    needle.course.install()
    needle.course.uninstall()
    for path in (*PATHS, "needle.backend_selection", "needle.backend_numpy"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(path)
    assert not hasattr(ndl.ops, "EWiseAdd")
    assert not hasattr(nd, "exp")
    assert type(ndl.Tensor([1.0]).is_leaf) is bool


@pytest.mark.parametrize("path", PATHS)
def test_a_path_has_its_names(path, course):
    module = importlib.import_module(path)
    for name in PATHS[path][1].split():
        assert callable(getattr(module, name))


def test_names_of_layers_are_needles_own(course):
    from needle.nn.nn_basic import Linear
    from needle.nn.nn_conv import Conv

    assert Linear is nn.Linear
    assert Conv is nn.Conv


def test_parameters_and_modules_in_containers(course):
    from needle.nn.nn_basic import _child_modules, _unpack_params

    linear = nn.Linear(2, 3)
    assert len(_unpack_params({"a": [linear], "b": linear.bias})) == 3
    assert _child_modules([linear, 3, (nn.ReLU(),)])[0] is linear
    assert nn.Residual(linear)._children() == [linear]


@pytest.mark.parametrize(
    ("op", "shapes", "expected"),
    [
        (lambda o: o.EWiseAdd(), ((2, 3), (2, 3)), lambda a, b: a + b),
        (lambda o: o.EWiseMul(), ((2, 3), (2, 3)), lambda a, b: a * b),
        (lambda o: o.EWiseDiv(), ((2, 3), (2, 3)), lambda a, b: a / b),
        (lambda o: o.EWisePow(), ((2, 3), (2, 3)), lambda a, b: a**b),
        (lambda o: o.AddScalar(2), ((2, 3),), lambda a: a + 2),
        (lambda o: o.MulScalar(2), ((2, 3),), lambda a: a * 2),
        (lambda o: o.DivScalar(2), ((2, 3),), lambda a: a / 2),
        (lambda o: o.PowerScalar(2), ((2, 3),), lambda a: a**2),
        (lambda o: o.MatMul(), ((2, 3), (3, 4)), lambda a, b: a @ b),
        (lambda o: o.Transpose(), ((2, 3, 4),), lambda a: a.swapaxes(1, 2)),
        (lambda o: o.Transpose((0, 2)), ((2, 3, 4),), lambda a: a.swapaxes(0, 2)),
        (lambda o: o.Reshape([3, 2]), ((2, 3),), lambda a: a.reshape(3, 2)),
        (lambda o: o.BroadcastTo([4, 3]), ((1, 3),), lambda a: np.broadcast_to(a, (4, 3))),
        (lambda o: o.Summation(), ((2, 3),), lambda a: a.sum()),
        (lambda o: o.Summation([1]), ((2, 3),), lambda a: a.sum(1)),
        (lambda o: o.Negate(), ((2, 3),), lambda a: -a),
        (lambda o: o.Log(), ((2, 3),), np.log),
        (lambda o: o.Exp(), ((2, 3),), np.exp),
        (lambda o: o.ReLU(), ((2, 3),), lambda a: np.maximum(a, 0)),
        (lambda o: o.Tanh(), ((2, 3),), np.tanh),
        (lambda o: o.Stack(1), ((2, 3), (2, 3)), lambda a, b: np.stack([a, b], 1)),
        (lambda o: o.Flip((0,)), ((2, 3),), lambda a: a[::-1]),
        (lambda o: o.LogSoftmax(), ((2, 3),), lambda a: a - np.log(np.exp(a).sum(1))[:, None]),
        (lambda o: o.LogSumExp((1,)), ((2, 3),), lambda a: np.log(np.exp(a).sum(1))),
    ],
)
def test_op_classes(op, shapes, expected, course):
    arrays = [np.random.default_rng(0).random(shape).astype("float32") + 0.5 for shape in shapes]
    found = op(ndl.ops)(*map(ndl.Tensor, arrays))
    np.testing.assert_allclose(found.numpy(), expected(*arrays), rtol=1e-5)


def test_stack_takes_a_tuple_and_split_undoes_it(course):
    parts = [ndl.Tensor(np.full((2, 3), float(i))) for i in range(3)]
    stacked = ndl.ops.Stack(0)(ndl.ops.make_tuple(*parts))
    assert stacked.shape == (3, 2, 3)
    again = ndl.ops.Split(0)(stacked)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(again, parts, strict=True))


def test_dilate_and_undilate(course):
    x = np.arange(6.0).reshape(2, 3)
    wide = ndl.ops.Dilate((0,), 1)(ndl.Tensor(x))
    assert wide.shape == (4, 3)
    assert np.array_equal(ndl.ops.UnDilate((0,), 1)(wide).numpy(), x)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": (1, 1)}])
def test_conv_takes_numbers(options, course):
    rng = np.random.default_rng(0)
    x, w = ndl.Tensor(rng.random((1, 5, 5, 2))), ndl.Tensor(rng.random((3, 3, 2, 4)))
    expected = ndl.ops.conv(x, w, **{"stride": 1, "padding": 0, **options})
    assert np.array_equal(ndl.ops.Conv(**options)(x, w).numpy(), expected.numpy())


def test_every_op_is_at_the_top(course):
    for name in ("exp", "matmul", "summation", "divide_scalar", "logsumexp", "undilate", "conv"):
        assert callable(getattr(ndl, name))


def test_array_functions(course):
    x = np.random.default_rng(0).random((2, 3))
    a = nd.array(x)
    for name in ("log", "exp", "tanh"):
        np.testing.assert_allclose(getattr(nd, name)(a).numpy(), getattr(np, name)(x))
    np.testing.assert_allclose(nd.sum(a, axis=1, keepdims=True).numpy(), x.sum(1, keepdims=True))
    np.testing.assert_allclose(nd.maximum(a, 0.5).numpy(), np.maximum(x, 0.5))
    assert nd.reshape(a, (3, 2)).shape == (3, 2)
    assert nd.broadcast_to(a, (4, 2, 3)).shape == (4, 2, 3)
    assert np.array_equal(nd.flip(a, (0,)).numpy(), x[::-1])
    assert np.array_equal(nd.stack([a, a], 1).numpy(), np.stack([x, x], 1))
    assert nd.prod((2, 3)) == 6


def test_arrays_say_whether_they_are_compact_in_both_ways(course):
    a = nd.array(np.zeros((2, 3)))
    assert a.is_compact and a.is_compact()
    b = a.permute((1, 0))
    assert not b.is_compact and not b.is_compact()
    assert repr(b.is_compact) == "False"
    assert b.compact().is_compact()


def test_views_have_the_same_memory(course):
    a = nd.NDArray.make((4, 4), device=nd.cpu())
    assert a[1:, 2:]._handle.ptr() == a._handle.ptr()
    again = nd.NDArray.make((2, 2), device=nd.cpu(), handle=a._handle, offset=5)
    assert again._handle.ptr() == a._handle.ptr()
    assert again._offset == 5
    assert a.process_slice(slice(-2, None), 0) == slice(2, 4, 1)


def test_matmul_of_tiles(course):
    device, tile = nd.cpu(), nd.cpu().__tile_size__
    rng = np.random.default_rng(0)
    x, y = rng.random((2 * tile, 3 * tile)), rng.random((3 * tile, tile))

    def tiled(a):
        rows, columns = (n // tile for n in a.shape)
        return a.reshape(rows, tile, columns, tile).swapaxes(1, 2)

    out = nd.empty((2, 1, tile, tile), "float64")
    a, b = nd.array(tiled(x)), nd.array(tiled(y))
    device.matmul_tiled(a._handle, b._handle, out._handle, *x.shape, y.shape[1])
    np.testing.assert_allclose(out.numpy(), tiled(x @ y))


def test_next_of_a_loader(course):
    loader = ndl.data.DataLoader(ndl.data.NDArrayDataset(np.arange(5)), batch_size=2)
    seen = [next(loader)[0].numpy().tolist() for _ in range(3)]
    assert seen == [[0, 1], [2, 3], [4]]
    with pytest.raises(StopIteration):
        next(loader)
    assert next(loader)[0].numpy().tolist() == [0, 1]
    iter(loader)
    assert next(loader)[0].numpy().tolist() == [0, 1]
    assert len(list(loader)) == 3


def test_wrong_arguments():
    with pytest.raises(ValueError, match="backend 'cupy' is not one of nd, np"):
        needle.course.install(backend="cupy")
    with pytest.raises(ValueError, match="semantics 'both' is not one of needle, course"):
        needle.course.install(semantics="both")
