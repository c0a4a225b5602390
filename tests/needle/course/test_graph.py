"""Own ops, the functions of the course's autograd, and the course's semantics."""

import numpy as np
import pytest

import needle as ndl
import needle.course
from needle import TraceError, nn
from needle import backend_ndarray as nd
from needle.trace import trace


@pytest.fixture
def install():
    yield needle.course.install
    needle.course.uninstall()


def own_op(array_api):
    class ScaledExp(ndl.ops.TensorOp):
        def __init__(self, scale):
            self.scale = scale

        def compute(self, a):
            return array_api.exp(a) * self.scale

        def gradient(self, out_grad, node):
            return out_grad * node.inputs[0].exp() * self.scale

    return ScaledExp


@pytest.mark.parametrize("backend", ["nd", "np"])
def test_an_own_op_with_only_compute_and_gradient(backend, install):
    install(backend=backend)
    from needle.backend_selection import array_api

    x = ndl.Tensor([1.0, 2.0])
    y = own_op(array_api)(3)(x)
    np.testing.assert_allclose(y.numpy(), 3 * np.exp([1, 2]), rtol=1e-6)
    y.sum().backward(create_graph=True)
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp([1, 2]), rtol=1e-6)
    first, x.grad = x.grad, None
    first.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp([1, 2]), rtol=1e-6)
    assert y.dtype == ("float32" if backend == "nd" else "float64")


def test_an_own_op_names_itself(install):
    install()
    op = own_op(nd)(3)
    assert op.name == "scaled_exp"
    assert repr(op) == "ScaledExp(scale=3)"
    assert op == op
    assert op != own_op(nd)(3)
    with pytest.raises(TypeError, match="scaled_exp: input 0 is a list"):
        op([1.0])


def test_an_own_op_of_a_tuple(install):
    install()

    class Halves(ndl.ops.TensorTupleOp):
        def compute(self, a):
            return a[:2], a[2:]

        def gradient(self, out_grad, node):
            return ndl.ops.concat([out_grad[0], out_grad[1]])

    x = ndl.Tensor([1.0, 2.0, 3.0])
    first, second = Halves()(x)
    assert second.numpy().tolist() == [3.0]
    (first.sum() * 2).backward()
    assert x.grad.numpy().tolist() == [2.0, 2.0, 0.0]


def test_an_own_op_cannot_be_traced(install):
    install()
    op = own_op(nd)(3)
    with pytest.raises(TraceError, match="scaled_exp: an op with only compute and gradient"):
        trace(op, ndl.Tensor([1.0]))


def test_topological_order(install):
    install()
    a, b = ndl.Tensor([2.0]), ndl.Tensor([3.0])
    c = a * b
    order = ndl.autograd.find_topo_sort([c + a])
    assert [x.op.name if x.op else "leaf" for x in order] == ["leaf", "leaf", "multiply", "add"]
    visited, found = set(), []
    ndl.autograd.topo_sort_dfs(c, visited, found)
    ndl.autograd.topo_sort_dfs(c, visited, found)
    assert [x.node for x in found] == [a.node, b.node, c.node]


def test_gradients_of_variables(install):
    install()
    x = ndl.Tensor([1.0, 2.0])
    ndl.autograd.compute_gradient_of_variables(x * x, ndl.Tensor([1.0, 10.0]))
    assert x.grad.numpy().tolist() == [2.0, 40.0]
    assert ndl.autograd.sum_node_list([x, x, x]).numpy().tolist() == [3.0, 6.0]
    assert ndl.autograd.TENSOR_COUNTER > 0


def test_tensors(install):
    install()
    x = ndl.Tensor([1.0, 2.0])
    assert x.is_leaf() and x.is_leaf
    assert not (x + 1).is_leaf()
    made = ndl.Tensor.make_from_op(ndl.ops.EWiseAdd(), [x, x])
    assert made.numpy().tolist() == [2.0, 4.0]
    assert not ndl.Tensor.make_const(x.cached_data).requires_grad
    x.cached_data = nd.array(np.array([3.0, 4.0], "float32"))
    assert x.numpy().tolist() == [3.0, 4.0]
    with pytest.raises(ndl.ShapeError, match="cannot be set to shape"):
        x.cached_data = np.zeros(3)
    both = ndl.ops.make_tuple(x, x) + ndl.ops.make_tuple(x, x)
    assert both[1].numpy().tolist() == [6.0, 8.0]


def test_data_of_another_shape_of_the_same_size(install):
    install()
    layer = nn.Linear(3, 4)
    layer.bias.data = ndl.Tensor(np.arange(4, dtype="float32"))
    assert layer.bias.shape == (1, 4)
    assert layer.bias.numpy().tolist() == [[0, 1, 2, 3]]
    with pytest.raises(ndl.ShapeError):
        layer.bias.data = ndl.Tensor(np.zeros(3, "float32"))


def test_scalars_as_arrays(install):
    install()
    x = ndl.Tensor([2.0])
    assert ndl.divide_scalar(x, scalar=np.array([4.0])).item() == 0.5
    assert ndl.power_scalar(x, np.int64(3)).item() == 8.0


def test_needles_semantics_are_the_default(install):
    install()
    x = ndl.Tensor([2.0])
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad.item() == 8.0  # accumulated
    y = x * x
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
    assert ndl.Tensor([1, 2]).dtype == "int64"
    assert x.sum().shape == ()


@pytest.mark.parametrize(("backend", "dtype"), [("nd", "float32"), ("np", "float64")])
def test_the_courses_semantics(backend, dtype, install):
    install(backend=backend, semantics="course")
    x, z = ndl.Tensor([6]), ndl.Tensor([0])
    assert x.dtype == dtype
    assert ndl.Tensor([1], dtype="int64").dtype == "int64"
    y = x * x + x * z
    for _ in range(2):  # the graph stays, and gradients are replaced
        y.backward()
        assert x.grad.item() == 12
    x.grad.backward()
    assert x.grad.item() == 2
    assert z.grad.item() == 1


def test_the_courses_graph_keeps_all_values(install):
    install(semantics="course")
    x = ndl.Tensor([2.0])
    values = [v.item() for v in ndl.autograd.find_topo_sort([(x + 1) + 3 * x - x])]
    assert values == [2.0, 3.0, 6.0, 9.0, -2.0, 7.0]


def test_a_training_step_under_the_courses_semantics(install):
    install(semantics="course")
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = ndl.optim.Adam(model.parameters(), lr=0.05)
    x, y = rng.random((16, 4)), rng.integers(0, 2, 16)
    losses = []
    for _ in range(15):
        loss = nn.SoftmaxLoss()(model(ndl.Tensor(x.astype("float32"))), ndl.Tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.8


@pytest.mark.parametrize("semantics", ["needle", "course"])
def test_models_still_compile(semantics, install):
    needle_tvm = pytest.importorskip("needle_tvm")
    pytest.importorskip("tvm")
    install(semantics=semantics)
    layer, x = nn.Linear(4, 3).eval(), ndl.Tensor(np.ones((2, 4), "float32"))
    compiled = needle_tvm.compile(lambda a: ndl.ops.ReLU()(layer(a)) - a.sum(), x)
    np.testing.assert_allclose(
        compiled(x).numpy(), np.maximum(layer(x).numpy(), 0) - 8, rtol=1e-5, atol=1e-5
    )


def test_layers_begin_and_track_as_the_courses(install):
    def drawn():
        np.random.seed(0)
        layers = nn.Linear(64, 300), nn.Conv(12, 80, 3)
        norm = nn.BatchNorm1d(1, momentum=1.0)
        norm(ndl.Tensor([[0.0], [2.0]]))
        bounds = [np.abs(p.numpy()).max() for each in layers for p in each.parameters()]
        return bounds, norm.running_var.item()

    before, unbiased = drawn()
    install()
    (weight, bias, kernel, shift), biased = drawn()
    needle.course.uninstall()
    # The largest of n uniform values is below 1 - 20 / n of the bound once in e ** 20 draws.
    assert [weight, kernel] == pytest.approx([np.sqrt(6 / 64), np.sqrt(6 / 108)], rel=3e-3)
    assert [bias, shift] == pytest.approx([np.sqrt(6 / 300), 108**-0.5], rel=0.3)
    assert [before[0], before[2]] == pytest.approx([64**-0.5, 108**-0.5], rel=3e-3)
    assert (unbiased, biased) == (2.0, 1.0)
    assert drawn() == (before, unbiased)
