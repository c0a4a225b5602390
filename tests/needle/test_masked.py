"""A masked array's mask is never dropped silently: every function of arrays refuses it by name."""

import numpy as np
import pytest

import needle as ndl
from needle import backend_ndarray as nd
from needle import nn
from needle.data import Dataset, NDArrayDataset, batchify

MASKED = np.ma.array([1.0, 2.0], np.float32, mask=[False, True])
INDEX = np.ma.array([0, 1], np.int64, mask=[False, True])


class WithUnit(np.ndarray):
    """A subclass without a mask, such as np.matrix and np.memmap."""


class OtherLibrarys(np.ndarray):
    """A masked array of another library than NumPy."""

    mask = np.array([False, True])


def assign(x, value):
    x[:] = value


def assign_at(x, key):
    x[key] = 0.0


class Items(Dataset):
    def __getitem__(self, index):
        return (MASKED,)

    def __len__(self):
        return 2


TAKERS = {
    "Tensor": ndl.Tensor,
    "Tensor of a list": lambda x: ndl.Tensor([x, x]),
    "Tensor of nested tuples": lambda x: ndl.Tensor([[1.0, 2.0], (x, x)]),
    "Tensor of another dtype": lambda x: ndl.Tensor(x, dtype="float64"),
    "nd.array": nd.array,
    "nd.array of a list": lambda x: nd.array([x]),
    "NDArray": nd.NDArray,
    "ndl.from_dlpack": ndl.from_dlpack,
    "nd.from_dlpack": nd.from_dlpack,
    "Tensor + x": lambda x: ndl.Tensor([1.0, 2.0]) + x,
    "x * Tensor": lambda x: x * ndl.Tensor([1.0, 2.0]),
    "NDArray + x": lambda x: nd.array([1.0, 2.0]) + x,
    "x - NDArray": lambda x: x - nd.array([1.0, 2.0]),
    "an assigned value": lambda x: assign(nd.array([1.0, 2.0]), x),
    "a dataset": NDArrayDataset,
    "a dataset's items": lambda x: Items().batch(np.arange(2)),
    "a transform's result": lambda x: Dataset([lambda _: x]).apply_transforms(1),
    "batchify": lambda x: batchify(x, 1),
}
INDEX_TAKERS = {
    "an index of a Tensor": lambda x: ndl.Tensor([1.0, 2.0])[x],
    "an index of an NDArray": lambda x: nd.array([1.0, 2.0])[x],
    "an assignment's index": lambda x: assign_at(nd.array([1.0, 2.0]), x),
    "one_hot": lambda x: ndl.init.one_hot(3, x),
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("array", [MASKED, MASKED[:1], np.ma.array([1.0])])
def test_masked_arrays_are_refused(name, array):
    with pytest.raises(TypeError, match=r"has a mask, .* give x\.filled\(value\)"):
        TAKERS[name](array)


@pytest.mark.parametrize("name", INDEX_TAKERS)
def test_masked_indices_are_refused(name):
    with pytest.raises(TypeError, match=r"MaskedArray has a mask"):
        INDEX_TAKERS[name](INDEX)


def test_the_masked_element_is_refused():
    for values in (np.ma.masked, [1.0, np.ma.masked], MASKED[1]):
        with pytest.raises(TypeError, match="MaskedConstant has a mask"):
            ndl.Tensor(values)


def test_another_librarys_masked_arrays_are_refused_too():
    with pytest.raises(TypeError, match="OtherLibrarys has a mask"):
        ndl.Tensor(np.ones(2).view(OtherLibrarys))


def test_a_state_with_a_masked_array_changes_nothing():
    layer = nn.Linear(2, 1)
    before = {name: value.numpy() for name, value in layer.state_dict().items()}
    state = {"weight": np.zeros((2, 1), np.float32), "bias": np.ma.zeros((1, 1), np.float32)}
    with pytest.raises(TypeError, match="load_state_dict: 'bias': MaskedArray has a mask"):
        layer.load_state_dict(state)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_subclasses_without_a_mask_are_taken():
    array = np.array([[1.0, 2.0]]).view(WithUnit)
    for made in (ndl.Tensor(array), nd.array(array), ndl.Tensor([array, array])[0]):
        np.testing.assert_array_equal(made.numpy(), np.asarray(array, made.dtype))
    np.testing.assert_array_equal(ndl.Tensor(MASKED.filled(7)).numpy(), [1, 7])
