"""Signatures of a `jit` function: what is compiled anew, and what is one signature."""

from dataclasses import dataclass

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle_runtime.errors import InputError, UsageError
from tests.needle_tvm.compiler.jitted import compilations, ones, plain
from tests.needle_tvm.conftest import tensor


def test_nested_arguments_and_results():
    @plain
    def f(pair, *more, scale, **named):
        a, (b, rest) = pair
        total = a * scale + b["x"] + rest[0]
        for each in more:
            total = total + each
        return {0: total, "parts": [named["last"] * 2, None, (a, b["x"])]}

    arrays = [np.full((2, 3), value, "float32") for value in range(1, 7)]
    a, b, c, d, e, last = map(tensor, arrays)
    found = f((a, [{"x": b}, (c,)]), d, e, scale=3.0, last=last)
    assert list(found) == [0, "parts"] and isinstance(found["parts"], list)
    np.testing.assert_array_equal(found[0].numpy(), arrays[0] * 3 + sum(arrays[1:5]))
    doubled, nothing, (same, other) = found["parts"]
    assert nothing is None
    for one, wanted in ((doubled, arrays[5] * 2), (same, arrays[0]), (other, arrays[1])):
        np.testing.assert_array_equal(one.numpy(), wanted)


def test_one_call_spelled_in_several_ways_is_one_signature():
    @plain
    def f(x, y=None, *, scale=2.0):
        return x * scale if y is None else x * scale + y

    x, y = ones(3), ones(3)
    for found in (f(x, y), f(x, y=y), f(y=y, x=x), f(x, y, scale=2.0)):
        np.testing.assert_array_equal(found.numpy(), np.full(3, 3))
    assert compilations(f) == 1
    assert f(x).numpy().tolist() == f(x, None).numpy().tolist() == [2, 2, 2]
    assert compilations(f) == 2
    with pytest.raises(TypeError, match=r"f\(\): missing a required argument: 'x'"):
        f()
    with pytest.raises(TypeError, match=r"f\(\): .*unexpected keyword argument 'z'"):
        f(x, z=1)


def test_numbers_are_fixed_with_type_and_sign():
    @plain
    def f(x, number):
        return x * number

    x = tensor(np.array([1, 2]))
    for count, number in enumerate((2, 2.0, True, 0.0, -0.0, float("nan"), np.float32(2))):
        for _ in range(2):
            found, eager = f(x, number).numpy(), (x * number).numpy()
            assert found.dtype == eager.dtype and found.tobytes() == eager.tobytes()
        assert compilations(f) == count + 1
    for value in (5.0, 6.0):  # an array is an input
        assert f(x, np.array(value)).numpy().tolist() == [value, 2 * value]
    assert compilations(f) == 8


def test_arrays_of_every_kind_are_inputs():
    torch = pytest.importorskip("torch")

    @plain
    def f(x):
        return x + x

    array = np.arange(6, dtype="float32").reshape(2, 3)
    kinds = (array, tensor(array), tensor(array).cached_data, torch.tensor(array))
    for each in (*kinds, np.asfortranarray(array), np.repeat(array, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(f(each).numpy(), array * 2)
    assert compilations(f) == 1
    small = f(array.astype("int8"))
    assert small.dtype == "int8" and small.numpy().tolist() == (array * 2).tolist()
    assert f(array.astype(">f4")).numpy().tolist() == (array * 2).tolist()
    assert compilations(f) == 2


@dataclass(frozen=True)
class Config:
    width: int


def test_static_arguments():
    @needle_tvm.jit(static=("config", "how", "axes"), stage="noopt")
    def f(x, config, how=ops.exp, *, axes=(1,)):
        return how(x * config.width).sum(axes)

    x = ones(2, 3)
    for config, how, axes in (
        (Config(1), ops.exp, (1,)),
        (Config(2), ops.exp, (1,)),
        (Config(2), ops.tanh, (1,)),
        (Config(2), ops.tanh, (0,)),
        (Config(2), ops.tanh, (False,)),  # equal to (0,), and another type
    ):
        for _ in range(2):
            found = f(x, Config(config.width), how, axes=axes)
            wanted = how(x * config.width).sum(axes)
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
    assert compilations(f) == 5
    with pytest.raises(InputError, match=r"f: argument 'axes' is a list, .*not hashable"):
        f(x, Config(1), axes=[1])
    with pytest.raises(InputError, match=r"f: argument 'how' is a Tensor, which is an input"):
        f(x, Config(1), x)
    with pytest.raises(InputError, match=r"f: argument 'x' is a Config: .*static="):
        f(Config(1), Config(1))
    with pytest.raises(InputError, match=r"f: argument 'x' is a set"):
        f([{1}], Config(1))
    assert compilations(f) == 5


def test_what_gradients_depend_on_is_part_of_the_signature():
    @plain
    def f(x):
        return x * (2.0 if x.requires_grad and ndl.is_grad_enabled() else 3.0)

    x, y = ndl.Tensor(np.ones(2, "float32")), ones(2)
    assert (f(x).numpy()[0], f(y).numpy()[0], compilations(f)) == (2, 3, 2)
    with ndl.no_grad():
        assert f(x).numpy()[0] == 3
    assert (f(x).numpy()[0], compilations(f)) == (2, 3)


def test_sizes_that_dims_leaves_to_the_call():
    n = ndl.Dim("n", max=9)
    weight = nn.Parameter(np.ones((3, 2), "float32"))
    dims = {"x": {0: n}, "extra_b": {0: n}}
    f = plain(lambda x, extra: (x @ weight + extra["b"]).sum(), dims=dims)
    for size in (2, 1, 9, 7):
        x, b = np.full((size, 3), size, "float32"), np.ones((size, 2), "float32")
        assert f(x, {"b": b}).item() == (x @ weight.numpy() + b).sum()
    assert compilations(f) == 1
    f(np.ones((2, 3), "float64"), {"b": b[:2]})
    assert compilations(f) == 2
    with pytest.raises(InputError, match="n"):
        f(np.ones((10, 3), "float32"), {"b": np.ones((10, 2), "float32")})
    with pytest.raises(UsageError, match="'y' is not an input"):
        plain(lambda x: x, dims={"y": {0: n}})(x)

    class Adds:
        @needle_tvm.jit(stage="noopt", dims={0: {-1: n}})
        def run(self, x):
            return x + 1.0

    for size in (2, 5):
        assert Adds().run(ones(1, size)).shape == (1, size)
