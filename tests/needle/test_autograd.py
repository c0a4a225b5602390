"""Tensors and differentiation."""

import copy
import pickle

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ShapeError


def tensor(values, device, **options):
    return ndl.Tensor(np.asarray(values, "float64"), device=device, **options)


# Making tensors


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, 2.0], "float32"),
        ([1, 2], "int64"),
        ([True, False], "bool"),
        (3.5, "float32"),
        (3, "int64"),
        (np.ones(2), "float64"),
        (np.ones(2, "float32"), "float32"),
        (np.ones(2, "uint8"), "uint8"),
        (np.ones(2, "float16"), "float16"),
        (np.float64(2), "float64"),
    ],
)
def test_dtype_of_what_a_tensor_is_made_from(values, dtype, device):
    x = ndl.Tensor(values, device=device)
    assert (x.dtype, x.device) == (dtype, device)
    assert x.requires_grad == dtype.startswith("float")
    np.testing.assert_array_equal(x.numpy(), values)


def test_unsupported_dtypes_are_refused(device):
    for values in (np.ones(2, "complex64"), np.array(["a"]), np.array([None])):
        with pytest.raises(TypeError):
            ndl.Tensor(values, device=device)
    with pytest.raises(TypeError):
        ndl.Tensor([1.0], device=device, dtype="quaternion")


def test_numpy_is_copied_and_ndarrays_are_shared(device):
    source = np.ones(3, "float32")
    x = ndl.Tensor(source, device=device)
    source[:] = 5
    assert x.numpy().tolist() == [1, 1, 1]
    assert ndl.Tensor(x.cached_data).cached_data is x.cached_data
    x.numpy()[:] = 7
    assert x.numpy().tolist() == [1, 1, 1]


def test_properties(device):
    x = tensor(np.zeros((2, 3)), device)
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
    assert x.is_leaf and x.op is None and x.inputs == ()
    y = x + x
    assert not y.is_leaf and y.op.name == "add" and len(y.inputs) == 2
    assert y.inputs[0].node is x.node
    assert "requires_grad=True" in repr(x) and repr(device) in repr(x)
    with pytest.raises(TypeError, match="0-d"):
        len(x.sum())


def test_scalars_from_tensors(device):
    x = tensor(2.5, device)
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and x.item() == 2.5
    with pytest.raises(ValueError, match="exactly one"):
        bool(tensor([1, 2], device))


def test_tensors_hash_by_identity_and_compare_by_element(device):
    x, y = tensor([1, 2], device), tensor([1, 3], device)
    assert len({x, y, x}) == 2
    for result, expected in [
        (x == y, [True, False]),
        (x != y, [False, True]),
        (x < y, [False, True]),
        (x <= 1, [True, False]),
        (x > 1.5, [False, True]),
        (2 >= x, [True, True]),
    ]:
        assert result.dtype == "bool" and result.numpy().tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("other", [2, 3.0, np.float32(2), np.float64(2), np.int64(2), True])
def test_operators_with_scalars_are_numpys(dtype, other, device):
    a = np.array([1, 2, 4], dtype)
    x = ndl.Tensor(a, device=device)
    weak = other.item() if isinstance(other, np.generic) else other
    for symbol in ("+", "-", "*", "/"):
        for left, right in ((x, other), (other, x)):
            got = eval(f"p {symbol} q", {"p": left, "q": right})
            sides = [a if side is x else weak for side in (left, right)]
            expected = eval(f"p {symbol} q", {"p": sides[0], "q": sides[1]})
            assert got.dtype == expected.dtype.name, symbol
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_operators_with_numpy_arrays(device):
    x = tensor([1, 2], device)
    a = np.array([[3.0], [4.0]])
    for got, expected in [
        (x + a, [[4, 5], [5, 6]]),
        (a - x, [[2, 1], [3, 2]]),
        (a / x, [[3, 1.5], [4, 2]]),
        (a**x, [[3, 9], [4, 16]]),
        (x.reshape(1, 2) @ a, [[11]]),
    ]:
        assert isinstance(got, ndl.Tensor)
        np.testing.assert_allclose(got.numpy(), expected)
    assert (2**x).numpy().tolist() == [2, 4]
    with pytest.raises(TypeError):
        x + "a"


def test_mixed_devices_are_refused():
    devices = [d for d in (ndl.cpu(), ndl.cpu_numpy()) if d.enabled()]
    if len(devices) < 2:
        pytest.skip("one device only")
    x, y = (tensor([1.0], d) for d in devices)
    with pytest.raises(ValueError, match=r"add: .*different devices"):
        x + y
    assert x.to(devices[1]).device is devices[1]


def test_errors_name_op_and_shapes(device):
    x = tensor(np.ones((2, 3)), device)
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2, 3\) and \(2, 3\)"):
        x @ x
    with pytest.raises(ShapeError, match=r"add: shapes \(2, 3\) and \(2,\)"):
        x + tensor([1, 2], device)
    with pytest.raises(TypeError, match="add: input 1 is a str, not a Tensor"):
        ops.add(x, "1")
    with pytest.raises(TypeError, match="exp: takes 1 input, 2 given"):
        ops.Exp()(x, x)


# Gradients


def test_gradient_of_a_shared_subexpression(device):
    x = tensor([1.0, 2.0, 3.0], device)
    y = x * x
    z = (y + y * x).sum()
    z.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() + 3 * x.numpy() ** 2)
    assert y.grad is None


def test_gradients_accumulate_until_reset(device):
    x = tensor([2.0], device)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.numpy() == 8
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.numpy() == 3


def test_every_handle_of_a_leaf_has_its_gradient(device):
    x = tensor([2.0], device)
    y = x * x
    y.sum().backward()
    assert y.inputs[0].grad.numpy() == x.grad.numpy() == 4


def test_out_grad_weights_and_is_checked(device):
    x = tensor([1.0, 2.0], device)
    y = x * 2
    y.backward(tensor([1.0, 10.0], device))
    assert x.grad.numpy().tolist() == [2, 20]
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        y.backward(tensor([1, 2, 3], device))
    with pytest.raises(TypeError, match="float"):
        y.backward(1.0)
    with pytest.raises(ShapeError, match="grad has shape"):
        x.grad = tensor([1.0], device)
    with pytest.raises(TypeError):
        x.grad = 1.0


def test_backward_without_gradient_is_refused(device):
    x = tensor([1.0], device, requires_grad=False)
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        (x * 2).backward()
    with ndl.no_grad():
        y = tensor([1.0], device) * 2
    with pytest.raises(RuntimeError, match="no_grad"):
        y.backward()


def test_only_leaves_that_require_it_get_a_gradient(device):
    x, w = tensor([1.0], device, requires_grad=False), tensor([2.0], device)
    (x * w).sum().backward()
    assert x.grad is None and w.grad.numpy() == 1
    w.requires_grad = False
    assert not (x * w).requires_grad
    with pytest.raises(RuntimeError, match="leaves"):
        w.requires_grad = True
        (x * w).requires_grad = False
    with pytest.raises(TypeError, match="int64"):
        ndl.Tensor([1], device=device).requires_grad = True


def test_backward_records_nothing_unless_asked(device):
    x = tensor([2.0], device)
    (x**3).sum().backward()
    assert x.grad.is_leaf and not x.grad.requires_grad
    x.grad = None
    (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    first = x.grad
    x.grad = None
    first.sum().backward(create_graph=True)
    second = x.grad
    x.grad = None
    second.sum().backward()
    assert (first.numpy(), second.numpy(), x.grad.numpy()) == (12, 12, 6)


def test_gradients_have_the_inputs_dtype(device):
    x = ndl.Tensor(np.ones(3, "float32"), device=device)
    y = ndl.Tensor(np.ones(3, "float64"), device=device)
    (x * y + x).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == ("float32", "float64")
    z = ndl.Tensor(np.ones(3, "float32"), device=device)
    z.astype("float64").sum().backward()
    assert z.grad.dtype == "float32"


def test_gradients_through_tuples(device):
    x = tensor([[1.0, 2.0], [3.0, 4.0]], device)
    parts = ops.split(x, 0)
    assert len(parts) == 2
    (parts[1] * 2).sum().backward()  # the other part gets zeros
    assert x.grad.numpy().tolist() == [[0, 0], [2, 2]]
    x.grad = None
    a, b = ops.fused_add_scalars(x, 1.0, 2.0)
    (ops.stack([a, b, a], 0) * 3).sum().backward()
    assert x.grad.numpy().tolist() == [[9, 9], [9, 9]]
    with pytest.raises(IndexError, match="3 parts"):
        ops.make_tuple(x, x, x)[3]


def test_detach_and_data(device):
    x = tensor([1.0, 2.0], device)
    for cut in (x.detach(), x.data):
        assert not cut.requires_grad and cut.cached_data is x.cached_data
    (x.detach() * x).sum().backward()
    assert x.grad.numpy().tolist() == [1, 2]
    x.data = tensor([5.0, 6.0], device)
    assert x.numpy().tolist() == [5, 6] and x.requires_grad
    with pytest.raises(ShapeError, match="cannot be set"):
        x.data = tensor([1.0], device)
    with pytest.raises(TypeError, match="list"):
        x.data = [1.0, 2.0]


def test_gradients_are_those_of_the_values_at_the_time(device):
    x = tensor([2.0], device)
    y = x * x
    x.data = tensor([100.0], device)
    y.sum().backward()
    assert x.grad.numpy() == 4


def test_a_write_in_place_after_the_forward_pass_is_noticed(device):
    w = tensor([2.0], device)
    y = (w * w).sum()
    optimizer = ndl.optim.SGD([w], lr=0.1)
    y.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


# Conversion to and from other libraries


def test_copies_and_pickles_are_leaves(device):
    x = tensor([1.0, 2.0], device)
    for made in (copy.deepcopy(x * 2), pickle.loads(pickle.dumps(x * 2))):
        assert made.is_leaf and made.requires_grad
        assert made.numpy().tolist() == [2, 4] and made.device is device
    p = ndl.nn.Parameter(x)
    assert type(copy.deepcopy(p)) is ndl.nn.Parameter
    assert copy.deepcopy(p).cached_data is not p.cached_data


def test_arrays_from_tensors(device):
    x = tensor([[1.0, 2.0]], device)
    assert np.asarray(x).tolist() == [[1, 2]]
    # NumPy cannot read GPU memory.
    shared = x if device.name == "cuda" else np.from_dlpack(x)
    assert np.asarray(shared).tolist() == [[1, 2]]
    back = ndl.from_dlpack(shared)
    assert back.numpy().tolist() == [[1, 2]] and not back.requires_grad


@pytest.mark.peer
def test_dlpack_with_torch_both_ways():
    torch = pytest.importorskip("torch")
    x = ndl.Tensor(np.arange(6, dtype="float32").reshape(2, 3))
    theirs = torch.from_dlpack(x.detach())
    theirs[0, 0] = 9
    assert x.numpy()[0, 0] == 9
    ours = ndl.from_dlpack(theirs)
    theirs[1, 2] = 7
    assert ours.numpy()[1, 2] == 7
    assert ndl.Tensor(torch.ones(2)).numpy().tolist() == [1, 1]


# Indexing


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        np.int64(1),
        slice(None),
        slice(None, None, -1),
        slice(5, 0, -2),
        (..., 0),
        (slice(1, 3), None, slice(None, None, 2)),
        (0, 1),
        None,
        ...,
        slice(3, 1),
    ],
)
def test_indexing_is_numpys_and_differentiable(key, device):
    a = np.arange(12.0).reshape(3, 4)
    x = tensor(a, device)
    y = x[key]
    np.testing.assert_array_equal(y.numpy(), a[key])
    (y * 2).sum().backward()
    expected = np.zeros_like(a)
    expected[key] = 2
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_bad_indices_are_refused(device):
    x = tensor(np.ones((3, 4)), device)
    for key, error in [
        (3, IndexError),
        ((0, 0, 0), ShapeError),
        (slice(None, None, 0), ShapeError),
        ("a", IndexError),
        ([0, 3], IndexError),
        (1.0, IndexError),
        (True, IndexError),
        (slice("a"), TypeError),
    ]:
        with pytest.raises(error, match=r"slice|index|interpreted as an integer"):
            x[key]
    assert [row.numpy().tolist() for row in x] == [[1] * 4] * 3
