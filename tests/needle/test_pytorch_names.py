"""PyTorch's names of functions and methods of tensors mean what they mean in PyTorch."""

import inspect
import itertools
import threading

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from needle.backend_ndarray import DTYPES
from needle.errors import ShapeError, TraceError
from needle.methods.in_place import InPlaceMethods
from needle.trace import trace

torch = pytest.importorskip("torch")


def pair(array, grad=False):
    """The array as a tensor of needle's and one of PyTorch's."""
    grad = grad and array.dtype.kind == "f"
    return ndl.tensor(array, requires_grad=grad), torch.tensor(array, requires_grad=grad)


def same(ours, theirs, **options):
    assert ours.shape == tuple(theirs.shape) and ours.dtype == str(theirs.dtype)[6:]
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), **options)


def check(call, *arrays, rtol=1e-12):
    """`call(framework, *tensors)` in both: the result, and the gradients of its sum with random
    weights."""
    ours, theirs = zip(*(pair(x, True) for x in arrays), strict=True)
    mine, other = call(ndl, *ours), call(torch, *theirs)
    same(mine, other, rtol=rtol, atol=1e-12)
    if not other.requires_grad:
        return
    weights = np.random.default_rng(1).normal(size=mine.shape)
    (mine * ndl.tensor(weights)).sum().backward()
    (other * torch.tensor(weights)).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        if y.grad is not None:
            grad = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
            np.testing.assert_allclose(grad, y.grad.numpy(), rtol=rtol, atol=1e-12)


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


# Devices


def test_the_accelerator_is_a_gpu_or_none():
    accelerator = ndl.accelerator.current_accelerator()
    assert ndl.accelerator.is_available() == ndl.cuda().enabled() == (accelerator is not None)
    assert ndl.zeros(2).to(accelerator or "cpu").device == (accelerator or ndl.cpu())
    if not torch.accelerator.is_available():
        assert accelerator is None and torch.accelerator.current_accelerator() is None


# Numbers in text, extents, limits


@pytest.mark.parametrize("value", [1.5, -3, True, float("nan"), 1e300, 12345])
@pytest.mark.parametrize("spec", ["", ".4f", "8.2e", ">12", "g", "%"])
def test_a_number_is_formatted_as_pytorch_does(value, spec):
    ours, theirs = ndl.tensor(value, dtype=ndl.double), torch.tensor(value, dtype=torch.double)
    assert f"{ours:{spec}}" == f"{theirs:{spec}}"


def test_more_than_a_number_has_no_format_but_its_text():
    x = ndl.ones(2, requires_grad=True)
    assert f"{x}" == repr(x) and f"loss {(x * 2).sum():.1f}" == "loss 4.0"
    with pytest.raises(TypeError, match=r"'.4f' .* shape \(2,\)"):
        format(x, ".4f")
    with pytest.raises(TraceError, match="value"):
        trace(lambda x: x * float(f"{x.sum():.4f}"), x)
    assert len(trace(lambda x: x * len(f"{x.sum()}"), x).nodes) > 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 4)])
def test_size_is_a_number_and_gives_extents(shape):
    ours, theirs = pair(np.zeros(shape))
    assert ours.size() == tuple(theirs.size()) and ours.size == ours.numel() == theirs.numel()
    assert [ours.size(i) for i in range(-len(shape), len(shape))] == [*shape, *shape]
    assert type(ours.size + 0) is int and type(ours.numel()) is int
    with pytest.raises(ShapeError, match="size: axis"):
        ours.size(len(shape))


def test_size_of_an_open_shape():
    n = ndl.Dim("n", max=8)

    def model(x):
        batch, width = x.size()
        y = x.reshape(x.size(0) * width) * (x.size / (batch * width))
        return y, x.flatten().reshape(x.size)

    graph = trace(model, ndl.ones(4, 3), dims={0: {0: n}})
    assert [output.spec.shape for output in graph.outputs] == [(3 * n,), (3 * n,)]


def test_t_and_limits():
    for shape in ((), (3,), (2, 3)):
        check(lambda fw, x: x.t(), normal(*shape))
    with pytest.raises(ShapeError, match="t: shape"):
        ndl.ones(2, 3, 4).t()
    array, bounds = normal(4, 3), (normal(3) - 1, normal(4, 1) + 1)
    for low, high in itertools.product((None, -0.5), (None, 0.4)):
        if low is not None or high is not None:
            check(lambda fw, x, low=low, high=high: fw.clamp(x, low, high), array)
            check(lambda fw, x, low=low, high=high: x.clamp(min=low, max=high), array)
    check(lambda fw, x, low, high: x.clamp(low, high), array, *bounds)
    check(lambda fw, x, high: fw.clamp(x, max=high), array, bounds[1])
    check(lambda fw, x: x.clamp_min(0.1).clamp_max(0.7), array)


# Making tensors

VALUES = [
    1,
    2.5,
    True,
    [1, 2],
    [1, 2.5],
    [[True], [False]],
    [],
    np.float64(1.5),
    np.arange(3),
    np.ones((2, 2)),
    np.array([1, 2], "int8"),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("dtype", [None, "float64", "int64"])
def test_tensor_is_pytorchs(value, dtype):
    ours = ndl.tensor(value, dtype=dtype)
    theirs = torch.tensor(value, dtype=dtype and getattr(torch, dtype))
    same(ours, theirs)
    assert not ours.requires_grad and ours.is_leaf


def test_tensor_copies_what_it_is_given():
    array, source = np.zeros(2, "float32"), ndl.Tensor([1.0, 2.0])
    copies = [ndl.tensor(x) for x in (array, source, source.cached_data, [source, source * 2])]
    array[0] = 9
    with ndl.no_grad():
        source += 5
    assert [x.tolist() for x in copies] == [[0, 0], [1, 2], [1, 2], [[1, 2], [2, 4]]]
    assert not any(x.requires_grad for x in copies)
    assert ndl.tensor(source, requires_grad=True).requires_grad
    with pytest.raises(TypeError, match="tensor: a int64 tensor cannot require"):
        ndl.tensor([1], requires_grad=True)
    shared = [ndl.as_tensor(array), ndl.from_numpy(array)]
    array[1] = 7
    assert all(x.tolist() == [9, 7] for x in shared) and ndl.as_tensor(source) is source
    assert ndl.as_tensor([1, 2], dtype=ndl.half).dtype == "float16"


def test_every_dtype_has_its_names():
    for name in DTYPES:
        assert getattr(ndl, name) == name == ndl.zeros(1, dtype=getattr(ndl, name)).dtype
    for name in "half float double short int long bool bfloat16".split():
        wanted = str(getattr(torch, name))[6:]
        assert getattr(ndl, name) == wanted == getattr(ndl.ones(1), name)().dtype
        assert ndl.ones(1).to(getattr(ndl, name)).dtype == ndl.ones(1).type(wanted).dtype == wanted
    for name in ("float16", "bfloat16", "float32", "float64"):
        ours, theirs = ndl.finfo(getattr(ndl, name)), torch.finfo(getattr(torch, name))
        assert all(float(getattr(ours, k)) == getattr(theirs, k) for k in ("min", "max", "eps"))
    for name in ("int8", "uint8", "int16", "int32", "int64"):
        ours, theirs = ndl.iinfo(name), torch.iinfo(getattr(torch, name))
        assert (ours.min, ours.max) == (theirs.min, theirs.max)
    with pytest.raises(TypeError, match="finfo: int8 is not floating"):
        ndl.finfo(ndl.int8)


def test_new_tensors_like_one_and_conversions_to_another():
    ours, theirs = pair(normal(2, 3).astype("float32"))
    for call in (
        lambda x: x.new_zeros(2, 1),
        lambda x: x.new_ones((3,)),
        lambda x: x.new_full((2,), 4),
        lambda x: x.new_tensor([1, 2]),
        lambda x: x.double().type_as(x),
        lambda x: x.double().to(x),
        lambda x: x.view_as(x.new_ones(3, 2)),
    ):
        same(call(ours), call(theirs))
    assert ours.is_floating_point() and ndl.is_tensor(ours) and ndl.numel(ours) == 6
    assert ours.element_size() == 4 and ours.nbytes == theirs.nbytes and ours.pin_memory() is ours
    assert ours.is_contiguous() and not ours.t().is_contiguous()
    assert ndl.device("cpu").type == ndl.device("cpu", 0).type == "cpu" and not ours.is_cuda
    assert ndl.cuda.is_available() == ndl.cuda().enabled()
    assert ours.to("cpu", non_blocking=True) is ours


# Comparisons


def test_close_is_pytorchs():
    numbers = [0.0, 1.0, 1.000001, 1.1, -1.0, np.inf, -np.inf, np.nan, 1e-9]
    a, b = (np.array(x) for x in zip(*itertools.product(numbers, numbers), strict=True))
    for nan, (rtol, atol) in itertools.product((False, True), ((1e-5, 1e-8), (0, 0.2))):
        options = {"rtol": rtol, "atol": atol, "equal_nan": nan}
        (x, y), (u, v) = pair(a), pair(b)
        same(ndl.isclose(x, u, **options), torch.isclose(y, v, **options))
        for i in range(a.size):
            ours = ndl.allclose(x[i], u[i], **options)
            assert ours is torch.allclose(y[i], v[i], **options)
    x = ndl.tensor([1, 2])
    assert x.allclose(x) and not x.allclose(x + 1) and x.isclose(x).tolist() == [True, True]
    large = ndl.tensor([2**62])  # which float64 does not tell from the next integer
    assert large.allclose(large, 0, 0) and not large.allclose(large + 1, 0, 0)
    with pytest.raises(ValueError, match="isclose: rtol -1"):
        x.isclose(x, rtol=-1)
    with pytest.raises(TypeError, match="allclose: b is a list"):
        x.allclose([1, 2])
    with pytest.raises(ShapeError, match="isclose: shapes"):
        ndl.isclose(x, ndl.ones(3))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.5, float("inf")])
def test_distances(p):
    check(lambda fw, a, b: fw.cdist(a, b, p), normal(2, 5, 3), normal(4, 3), rtol=1e-9)
    if p:
        of = {ndl: F, torch: torch.nn.functional}
        check(lambda fw, a: of[fw].pdist(a, p), normal(5, 3), rtol=1e-9)
        for keepdim in (False, True):
            check(
                lambda fw, a, b, k=keepdim: of[fw].pairwise_distance(a, b, p, 0.1, k),
                normal(4, 3),
                normal(3),
                rtol=1e-9,
            )


def test_distances_of_many_rows_and_of_equal_ones():
    check(lambda fw, a, b: fw.cdist(a, b), normal(30, 4), normal(3, 4), rtol=1e-9)
    check(lambda fw, a: fw.cdist(a, a), normal(5, 3), rtol=1e-9)
    x = ndl.tensor([[np.nan, 1.0]])
    assert np.isnan(ndl.cdist(x, x).item())
    with pytest.raises(ShapeError, match=r"cdist: shapes \(1, 2\) and \(1, 3\)"):
        ndl.cdist(x, ndl.ones(1, 3))
    with pytest.raises(ValueError, match="pdist: p -1 is not >= 0"):
        F.pdist(x, -1)


# Functions made of ops, and names of ops

CALLS = {
    "cat": lambda fw, x, y, z: fw.cat([x, y], dim=1),
    "concatenate": lambda fw, x, y, z: fw.concatenate((x, y)),
    "hstack": lambda fw, x, y, z: fw.hstack([x, y]),
    "hstack of vectors": lambda fw, x, y, z: fw.hstack([x[0], y[0], z.sum()]),
    "vstack": lambda fw, x, y, z: fw.vstack([x, y[0]]),
    "narrow": lambda fw, x, y, z: x.narrow(1, -2, 2),
    "select": lambda fw, x, y, z: x.select(1, -1),
    "index_select": lambda fw, x, y, z: fw.index_select(x, 1, fw.tensor([2, 0, 2])),
    "index_add": lambda fw, x, y, z: x.index_add(1, fw.tensor([2, 0, 2, 1]), y, alpha=-0.5),
    "index_fill": lambda fw, x, y, z: fw.index_fill(x, 0, fw.tensor([-1]), 2.0),
    "flips": lambda fw, x, y, z: fw.fliplr(x) * fw.flipud(y),
    "broadcast_tensors": lambda fw, x, y, z: fw.cat(fw.broadcast_tensors(x, y[:1], z[0, 0])),
    "diff": lambda fw, x, y, z: fw.diff(x, n=2, dim=1) * fw.diff(x).sum() + x.diff(dim=0).sum(),
    "isin": lambda fw, x, y, z: fw.isin(fw.cat([x, y]), x[:, ::2]),
    "triangles": lambda fw, x, y, z: fw.triu_indices(3, 4, 1) - fw.tril_indices(4, 3, -1),
    "scatter by names": lambda fw, x, y, z: x.scatter(dim=1, index=fw.tensor([[1]]), src=y[:1, :1]),
    "sums in a dtype": lambda fw, x, y, z: (x > 0).sum(1, dtype=fw.float64) * x.sum(dim=1),
    "means in a dtype": lambda fw, x, y, z: fw.mean((x > 0), dim=1, dtype=fw.double) * x.mean(),
    "ravel": lambda fw, x, y, z: x.t().ravel(),
    "mm": lambda fw, x, y, z: fw.mm(x, z).mm(y[:2]),
    "mv": lambda fw, x, y, z: fw.mv(x, y[0]),
    "addmm": lambda fw, x, y, z: fw.addmm(x[:, :2].sum(0), x, z, beta=0.5, alpha=2.0),
    "addmm of 0": lambda fw, x, y, z: fw.addmm(x.detach()[:, :2] * float("nan"), y, z, beta=0),
    "addcmul": lambda fw, x, y, z: fw.addcmul(x, y, x, value=0.5),
    "addcdiv": lambda fw, x, y, z: x.addcdiv(y, x, value=-2.0),
    "logaddexp": lambda fw, x, y, z: fw.logaddexp(x * 300, y * 300),
    "logit": lambda fw, x, y, z: fw.logit(fw.sigmoid(x), 0.3),
    "where": lambda fw, x, y, z: x.where(x > 0, y),
    "triu": lambda fw, x, y, z: fw.triu(x, diagonal=1) + x.tril(diagonal=-1),
    "sub div mul neg": lambda fw, x, y, z: fw.neg(fw.sub(fw.div(x, y), fw.mul(x, y))),
    "pow": lambda fw, x, y, z: fw.pow(fw.absolute(x), 1.5),
    "comparisons": lambda fw, x, y, z: fw.eq(x, y) | fw.lt(x, y) & fw.ge(x, 0) ^ fw.ne(x, 1),
    "greater": lambda fw, x, y, z: x.greater(y) | x.less_equal(0) & fw.gt(x, y) ^ fw.le(x, y),
    "arcs": lambda fw, x, y, z: fw.arctan(x) + fw.arcsinh(x) + fw.arctan2(x, y),
    "movedim": lambda fw, x, y, z: fw.movedim(x, 0, 1) + fw.swapdims(y, 0, 1),
    "log_softmax": lambda fw, x, y, z: fw.log_softmax(x, dim=1) + fw.fix(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_pytorchs(name):
    check(CALLS[name], normal(3, 4), normal(3, 4) + 0.3, normal(4, 2))


def test_what_is_refused():
    x = ndl.ones(2, 3)
    with pytest.raises(ValueError, match="narrow: 4 elements from 0 on do not fit"):
        x.narrow(1, 0, 4)
    with pytest.raises(ShapeError, match=r"index_select: index has shape \(1, 1\)"):
        x.index_select(0, ndl.tensor([[0]]))
    for call in (
        lambda index, axis: ndl.index_add(x, axis, index, ndl.ones(3)),
        lambda index, axis: x.index_fill(axis, index, 2.0),
    ):
        with pytest.raises(ShapeError, match=r"index_\w+: index has shape \(1, 1\)"):
            call(ndl.tensor([[0]]), 0)
        with pytest.raises(ShapeError, match=r"index_\w+: axis 2 is out of range"):
            call(ndl.tensor([0]), 2)
    with pytest.raises(ShapeError, match=r"broadcast_tensors: shapes \(2,\) and \(3,\) do"):
        ndl.broadcast_tensors(ndl.ones(2), ndl.ones(3))
    assert ndl.broadcast_tensors() == torch.broadcast_tensors() == ()
    with pytest.raises(TypeError, match=r"hstack: parts\[1\] is a int"):
        ndl.hstack([x, 3])


# Whether gradients are recorded


def grad_modes(fw):
    """What is recorded while a program goes through every mode, in all its forms."""
    seen = []

    def note(label=None):
        result = fw.ones(1, requires_grad=True) * 2
        seen.append((label, fw.is_grad_enabled(), result.requires_grad))

    for mode in (fw.no_grad, fw.enable_grad, fw.inference_mode):
        with mode():
            note()
            with fw.enable_grad(), fw.no_grad():
                note()
            note()
        mode()(note)()
        mode(note)()
        note("after")
    for value in (False, True):
        with fw.set_grad_enabled(value):
            note()
        note()
        fw.set_grad_enabled(value)(note)()
        note()
        fw.set_grad_enabled(value)
        note()
    with fw.no_grad(), fw.set_grad_enabled(True), fw.inference_mode(False):
        note()
    try:
        with fw.set_grad_enabled(False):
            raise KeyError
    except KeyError:
        note("after an error")
    return seen


def test_modes_are_pytorchs():
    assert grad_modes(ndl) == grad_modes(torch)
    other = []
    with ndl.set_grad_enabled(False):
        thread = threading.Thread(target=lambda: other.append(ndl.is_grad_enabled()))
        thread.start(), thread.join()
    assert other == [True] and ndl.is_grad_enabled()
    with pytest.raises(TypeError, match="set_grad_enabled: mode 1 is a int"):
        ndl.set_grad_enabled(1)


# In place

_ARGUMENTS = {
    "add_": lambda fw, y: (y,),
    "addcdiv_": lambda fw, y: (y, y * y),
    "addcmul_": lambda fw, y: (y, y),
    "bernoulli_": lambda fw, y: (1.0,),
    "clamp_": lambda fw, y: (0.5, 1.1),
    "clip_": lambda fw, y: (y * 0.5, y),
    "copy_": lambda fw, y: (y[0],),
    "div_": lambda fw, y: (2.5,),
    "fill_": lambda fw, y: (3,),
    "index_add_": lambda fw, y: (1, fw.tensor([2, 0, 2]), y),
    "index_fill_": lambda fw, y: (1, fw.tensor([2, 0]), 0.5),
    "lerp_": lambda fw, y: (y, 0.25),
    "masked_fill_": lambda fw, y: (y > 1, 0.125),
    "mul_": lambda fw, y: (y,),
    "normal_": lambda fw, y: (2.0, 0.0),
    "pow_": lambda fw, y: (2,),
    "scatter_": lambda fw, y: (1, fw.tensor([[0], [2]]), 5.0),
    "scatter_add_": lambda fw, y: (1, fw.tensor([[0, 0], [2, 1]]), y[:, :2]),
    "sub_": lambda fw, y: (y,),
    "uniform_": lambda fw, y: (3.0, 3.0),
}
_NAMES = [name for name, f in vars(InPlaceMethods).items() if inspect.isfunction(f)]
_CONSTANT = ("bernoulli_", "fill_", "normal_", "uniform_", "zero_")
_ELEMENTS = [name for name in _NAMES if name not in ("detach_", "requires_grad_")]


def positive(*shape):
    return np.random.default_rng(3).uniform(0.2, 1.5, shape)


@pytest.mark.parametrize("name", _ELEMENTS)
def test_a_method_in_place_writes_what_pytorchs_does(name):
    """The method returns the tensor, other views see the change, and dtypes stay."""
    arguments = _ARGUMENTS.get(name, lambda fw, y: ())
    for dtype in ("float64", "float32"):
        (x, u), (y, v) = pair(positive(2, 3).astype(dtype)), pair(positive(2, 3) + 0.1)
        y, v = y.to(x.dtype), v.to(u.dtype)
        row, theirs = x[1], u[1]
        assert getattr(x, name)(*arguments(ndl, y)) is x
        getattr(u, name)(*arguments(torch, v))
        same(x, u, rtol=1e-6, atol=1e-7)
        same(row, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in _ELEMENTS if name not in _CONSTANT])
def test_gradients_flow_through_a_change_in_place(name):
    """Of the result of an op; PyTorch is asked without change in place, which it may refuse."""
    arguments = _ARGUMENTS.get(name, lambda fw, y: ())

    def call(fw, x, y):
        z = x * 2.0
        if fw is ndl:
            assert getattr(z, name)(*arguments(fw, y)) is z
            return z
        return getattr(z.clone(), name)(*arguments(fw, y))

    check(call, positive(2, 3), positive(2, 3) + 0.1, rtol=1e-9)


def test_where_a_change_in_place_would_lose_a_gradient_it_is_refused():
    x, y = ndl.Tensor([1.0, 2.0]), ndl.zeros(2)
    changes = [lambda: x.add_(1), lambda: (x * 1)[0].add_(1), lambda: y.add_(x), x.zero_]
    for change in changes:
        with pytest.raises(RuntimeError, match=r"requires a gradient.*no_grad"):
            change()
    assert x.tolist() == [1, 2] and y.tolist() == [0, 0]
    with ndl.no_grad():
        x[1].mul_(5)
        x.data.sub_(1, alpha=0.5).add_(y + 1, alpha=2.0)
    assert x.tolist() == [2.5, 11.5] and x.is_leaf and x.requires_grad
    kept = x * x
    with ndl.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        kept.sum().backward()
    with pytest.raises(TypeError, match="add_: the result is float64"):
        ndl.tensor([1]).add_(0.5)
    with pytest.raises(ShapeError, match="mul_"):
        y.mul_(ndl.ones(3, 2))


def test_gradients_of_one_tensor_by_pytorchs_keywords():
    for fw in (ndl, torch):
        x = fw.ones(3, requires_grad=True)
        y = x * x * 2
        found = fw.autograd.grad(
            outputs=y, inputs=x, grad_outputs=fw.ones(3), create_graph=True, retain_graph=True
        )[0]
        assert found.tolist() == [4, 4, 4] and found.requires_grad
        y.backward(gradient=fw.ones(3) * 2)
        assert x.grad.tolist() == [8, 8, 8]


def test_leaves_and_detached_tensors():
    x = ndl.zeros(2).requires_grad_()
    assert x.requires_grad and not x.requires_grad_(False).requires_grad
    z = x.requires_grad_() * 2
    assert z.detach_() is z and z.is_leaf and not z.requires_grad
    with pytest.raises(TypeError, match="int64 tensor cannot require"):
        ndl.tensor([1]).requires_grad_()


def test_a_trace_follows_values_and_refuses_writes():
    x, state = ndl.tensor([1.0, 2.0]), ndl.zeros(2)

    def model(x):
        y = x * 2
        return y.add_(1).relu_().sum()

    assert model(x).item() == 8.0
    assert [node.op.name for node in trace(model, x).nodes if node.op][-1] == "summation"
    for change in (lambda x: state.add_(x), lambda x: x.add_(1), lambda x: (x * 2)[0].add_(1)):
        with pytest.raises((TraceError, RuntimeError)):
            trace(lambda x, change=change: change(x), x)
    assert state.tolist() == [0, 0]
