"""Keywords: names of an axis, wrong ones, and what `to` and `save` are given."""

import inspect
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops, optim
from needle.nn import functional as F

X = np.random.default_rng(0).random((2, 3, 4)).astype("float32")

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "var", "std")
AXIS = {"axis", "axes", "dim", "dims"}


def options(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def functions():
    found = [(f"ops.{n}", getattr(ops, n)) for names in ops._NAMES.values() for n in names]
    found += [(f"F.{name}", getattr(F, name)) for name in F.__all__]
    return [(name, f) for name, f in found if inspect.isfunction(f)]


def test_a_method_does_not_count_its_tensor_among_its_arguments():
    x = ndl.Tensor(X)
    checked = 0
    for name in dir(ndl.Tensor):
        method = getattr(ndl.Tensor, name)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        with pytest.raises(TypeError, match="zzz") as caught:
            method(x, zzz=1)
        _, takes, listed = str(caught.value).partition("it takes ")
        if takes:
            checked += 1
            wrapped = inspect.unwrap(method)
            own = list(inspect.signature(wrapped).parameters)
            assert listed.split(", ") == own[1:], name
    assert checked > 50


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("keyword", ["axis", "axes", "dim"])
@pytest.mark.parametrize("keep", ["keepdims", "keepdim"])
def test_a_reduction_takes_every_name_of_an_axis(name, keyword, keep):
    x = ndl.Tensor(X)
    for axis in (1, (0, 2)):
        expected = getattr(np, name)(X, axis=axis, keepdims=True)
        found = getattr(x, name)(**{keyword: axis, keep: True})
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("name", "function"), functions(), ids=[n for n, _ in functions()])
def test_every_function_names_the_right_keyword(name, function):
    names = options(function)
    checked = hasattr(function, "__wrapped__")
    axis = [n for n in names if n in AXIS]
    assert checked or not axis
    if not checked:
        return
    wrong = names[-1] + "x"
    with pytest.raises(TypeError, match=f"there is no argument '{wrong}'; did you mean '"):
        function(**{wrong: 1})
    if len(axis) == 1 and axis != names[:1]:
        other = "dim" if axis[0] != "dim" else "axis"
        with pytest.raises(TypeError, match="are one argument; give it once"):
            function(**{axis[0]: 7, other: 7})


@pytest.mark.parametrize("call", [lambda x: F.softmax(x, axis=1), lambda x: ops.softmax(x, dim=1)])
def test_functions_with_one_axis(call):
    assert np.array_equal(call(ndl.Tensor(X)).numpy(), ops.softmax(ndl.Tensor(X), 1).numpy())


def test_a_default_beside_another_name_counts_as_not_given():
    x = ndl.Tensor(X)
    for found in (x.sum(None, axis=1), x.sum(axes=None, dim=1), ops.summation(x, None, dim=1)):
        np.testing.assert_allclose(found.numpy(), X.sum(1), rtol=1e-6)


def test_a_required_axis_and_one_of_a_tuple():
    x = ndl.Tensor(X)
    np.testing.assert_allclose(ops.cumsum(x, dim=1).numpy(), X.cumsum(1), rtol=1e-6)
    assert np.array_equal(ops.argmax(x, axes=(2,)).numpy(), X.argmax(2))
    assert nn.Softmax(axis=1)(x).shape == x.shape
    assert nn.Flatten(start_axis=2)(x).shape == x.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.sum(axs=1), "Tensor.sum: there is no argument 'axs'; did you mean 'axes'?"),
        (lambda x: x.sum(frob=1), "Tensor.sum: .* 'frob'; it takes axes, keepdims"),
        (lambda x: ops.cumsum(x), "missing 1 required positional argument: 'axis'"),
        (lambda x: ops.cumsum(dim=0), "missing 1 required positional argument: 'a'"),
        (lambda x: x.sum(0, axis=1), "Tensor.sum: 'axes' and 'axis' are one argument"),
        (lambda x: x.sum(axis=0, dim=1), "'axis' and 'dim' are one argument"),
        (lambda x: x.sum(0, axes=1, keepdim=True), "Tensor.sum: 'axes' is given twice"),
        (lambda x: x.sum(0, True, 3, dim=1), r"takes from 1 to 3 positional arguments but 4"),
        (lambda x: nn.Linear(2, 3, use_bias=False), "Linear: .* did you mean 'bias'?"),
        (lambda x: nn.Conv2d(1, 2, kernel=3), "Conv2d: .* did you mean 'kernel_size'?"),
        (lambda x: nn.Dropout(dropout=0.1), "Dropout: .* did you mean 'p'?"),
        (lambda x: nn.Dropout2d(prob=0.1), "Dropout2d: .* did you mean 'p'?"),
        (lambda x: optim.SGD([x], learning_rate=1), "SGD: .* did you mean 'lr'?"),
        (lambda x: optim.AdamW([x], weight_decy=1), "AdamW: .* did you mean 'weight_decay'?"),
        (lambda x: optim.StepLR(optim.SGD([x]), step=1), "StepLR: .* did you mean 'step_size'?"),
        (lambda x: ndl.data.DataLoader([], batchsize=2), "DataLoader: .* 'batch_size'?"),
        (lambda x: ndl.init.rand(2, lo=3), "rand: .* did you mean 'low'?"),
    ],
)
def test_messages(call, message):
    with pytest.raises(TypeError, match=message):
        call(ndl.Tensor(X))


@pytest.mark.parametrize("module", [nn, optim])
def test_every_constructor_names_the_right_keyword(module):
    for name in module.__all__:
        cls = getattr(module, name)
        if not inspect.isclass(cls) or name in ("Identity", "Form"):
            continue
        if "__init__" in vars(cls) and len(options(cls)) > 0 and name != "Optimizer":
            with pytest.raises(TypeError, match=f"{name}: there is no argument 'qqq'; it takes"):
                cls(qqq=1)


def test_what_follows_a_star_has_a_name_too():
    x = ndl.Tensor(X)
    assert x.reshape(shape=(6, 4)).shape == (6, 4)
    assert x.permute(axes=(2, 0, 1)).shape == x.permute(dims=(2, 0, 1)).shape == (4, 2, 3)
    assert ndl.zeros(shape=(2, 3), dtype="int32").shape == (2, 3)
    assert ops.tile(x, repeats=(1, 2, 1)).shape == (2, 6, 4)
    with pytest.raises(TypeError, match=r"Tensor.reshape: 'shape' is given twice"):
        x.reshape(6, 4, shape=(6, 4))
    with pytest.raises(TypeError, match=r"zeros: .* 'dtyp'; did you mean 'dtype'"):
        ndl.zeros(2, dtyp="int32")
    with pytest.raises(TypeError, match=r"Tensor.reshape: .* 'newshape'; did you mean 'shape'"):
        x.reshape(newshape=(6, 4))


def test_errors_inside_of_a_function_stay_as_they_are():
    with pytest.raises(TypeError, match=r"'int' object is not iterable|int") as caught:
        ops.concat(3, axis=0)
    assert "there is no argument" not in str(caught.value)


def test_functions_can_be_pickled():
    for function in (ops.softmax, F.softmax, ndl.init.rand, F.relu):
        assert pickle.loads(pickle.dumps(function)) is function


def test_signatures_and_docstrings_are_the_functions():
    assert options(ops.summation) == ["a", "axes", "keepdims", "dtype"]
    assert options(nn.Linear)[:2] == ["in_features", "out_features"]
    assert ops.summation.__doc__


# to


@pytest.mark.parametrize("dtype", ["float16", "float64", np.float16, np.dtype("int32")])
def test_to_a_dtype(dtype):
    x = ndl.Tensor(X)
    name = np.dtype(dtype).name
    assert x.to(dtype).dtype == x.to(dtype=dtype).dtype == name
    assert x.to("cpu_numpy", dtype).device is ndl.cpu_numpy()
    if name.startswith("float"):
        x.to(dtype).sum().backward()  # a cast is an op of the graph
        assert np.array_equal(x.grad.numpy(), np.ones_like(X))


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "cpu_numpy", ndl.cpu(), ndl.cpu_numpy()])
def test_to_a_device(device):
    x = ndl.Tensor(X)
    y = x.to(device)
    assert str(y.device).rstrip("()") == str(device).rstrip("()").removesuffix(":0")
    assert np.array_equal(y.numpy(), X)
    assert (y is x) == (y.device is ndl.cpu())
    assert x.to(None) is x


def test_a_model_to_both():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert model.to("float16") is model
    assert {p.dtype for p in model.parameters()} == {"float16"}
    model.to("cpu_numpy", "float64")
    assert {p.dtype for p in model.parameters()} == {"float64"}
    assert {b.device for b in model.buffers()} == {ndl.cpu_numpy()}
    model.to(device=None, dtype=None)


@pytest.mark.skipif(ndl.cuda().enabled(), reason="needs a machine without a GPU")
def test_to_a_gpu_that_is_not_there():
    with pytest.raises(RuntimeError, match="cuda"):
        ndl.Tensor(X).to("cuda")
    with pytest.raises(RuntimeError, match="cuda"):
        nn.Linear(2, 3).to("cuda:1")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("floot",), TypeError, "'floot' is neither a device nor a dtype; devices are cpu"),
        ((3,), TypeError, "3 is neither"),
        (([],), TypeError, r"\[\] is neither"),
        (("float16", "float32"), TypeError, "float16 and float32 are two dtypes"),
        (("cpu", ndl.cpu_numpy()), TypeError, "are two devices"),
        (("cpu:1",), ValueError, "there is one CPU device"),
    ],
)
def test_to_anything_else(given, error, message):
    for owner in (ndl.Tensor(X), nn.Linear(2, 3)):
        with pytest.raises(error, match=message):
            owner.to(*given)
    with pytest.raises(TypeError, match="device 'float16' is not a device"):
        ndl.Tensor(X).to(device="float16")


# save


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("make", [lambda m: m, lambda m: m.state_dict()])
def test_save_in_both_orders(swap, make, tmp_path):
    model = nn.Linear(2, 3)
    given = (tmp_path / "x", make(model))
    ndl.save(*(given[::-1] if swap else given), metadata={"a": "b"})
    assert np.array_equal(ndl.load(tmp_path / "x")["weight"].numpy(), model.weight.numpy())
    ndl.save(path=str(tmp_path / "y"), values=given[1])
    assert (tmp_path / "x").stat().st_size > (tmp_path / "y").stat().st_size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a", "b"), "a str and a str: one must be a path"),
        (({}, nn.Linear(2, 3)), "a dict and a Linear: one must be a path"),
        ((nn.Linear(2, 3), 5), "path 5 is a int"),
        ((3, {}), "path 3 is a int"),
        (("a", [1]), "a list is not a Module"),
    ],
)
def test_save_of_anything_else(given, message):
    with pytest.raises(TypeError, match=message):
        ndl.save(*given)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: ndl.Tensor([1.0], device=device),
        lambda device: ndl.zeros(2, device=device),
        lambda device: ndl.arange(2, device=device),
        lambda device: ndl.rand(2, device=device),
        lambda device: nn.Linear(2, 3, device=device).weight,
        lambda device: ndl.backend_ndarray.array([1.0], device=device),
    ],
)
def test_a_device_may_be_a_name_where_tensors_are_made(make):
    assert make("cpu").device is make(None).device is ndl.cpu()
    assert make("cpu_numpy").device is ndl.cpu_numpy()
    with pytest.raises(TypeError, match=r"device 'gpu' is a str, not a Device"):
        make("gpu")
    with pytest.raises(ValueError, match="there is one CPU device"):
        make("cpu:1")
