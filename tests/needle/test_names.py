"""Names of other frameworks lead to needle's."""

import copy
import functools
import pickle

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle.common.framework_names import _CALLED

X = np.array([[0.3, -0.4], [0.5, 0.2]], np.float32)
_ARGUMENTS = {  # of the names that do not take one array
    "expand_dims": (X, 1),
    "invert": (X > 0,),
    "mod": (X, np.float32(0.15)),
    "permute_dims": (X, (1, 0)),
}


@pytest.mark.parametrize("name", _CALLED)
def test_each_is_absent_and_the_one_given_is_there(name):
    target = _CALLED[name]
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': needle has {target}$"):
        getattr(ndl, name)
    root, *rest = target.split(".")
    owner = {"ndl": ndl, "needle_tvm": needle_tvm}[root]
    assert callable(functools.reduce(getattr, rest, owner))


@pytest.mark.parametrize("name", sorted(set(_CALLED) & set(dir(np)) - {"array", "asarray"}))
def test_it_computes_what_numpy_does(name):
    given = _ARGUMENTS.get(name, (X,))
    tensors = [ndl.Tensor(x) if isinstance(x, np.ndarray) else x for x in given]
    found = getattr(ndl, _CALLED[name].removeprefix("ndl."))(*tensors)
    np.testing.assert_allclose(found.numpy(), getattr(np, name)(*given), rtol=1e-6, atol=1e-7)


def test_tensors_say_so_too():
    x = ndl.Tensor(X)
    with pytest.raises(
        AttributeError, match=r"'Tensor' object has no attribute 'rint': .*ndl\.round"
    ):
        x.rint()
    with pytest.raises(AttributeError, match="'trunc_': no such in-place method; 'trunc'"):
        x.trunc_()
    with pytest.raises(AttributeError, match=r"no attribute 'no_such'$") as caught:
        _ = x.no_such
    assert caught.value.name == "no_such" and caught.value.obj is x
    assert not hasattr(x, "__array_interface__")


def test_copies_and_pickles_meet_no_tensor_that_is_half_made():
    x = ndl.Tensor(X, requires_grad=False)
    for made in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        np.testing.assert_array_equal(made.numpy(), X)
    with pytest.raises(AttributeError, match="'_data'"):
        _ = object.__new__(ndl.Tensor)._data
