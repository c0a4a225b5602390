"""Operators, numbers as operands, and elementwise functions that are made of ops."""

import operator

import numpy as np
import pytest

import needle as ndl
from needle import ops

INTEGERS = np.array([[7, -7, 5, 0], [-8, 3, -1, 100]], "int32")
FLOATS = np.array([[1.5, -2.5, 0.0, 7.25], [-0.75, 3.0, -9.5, 0.5]], "float32")

BOTH = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}


def const(x):
    return ndl.Tensor(x, dtype=x.dtype, requires_grad=False)


def same(found, wanted):
    assert found.dtype == wanted.dtype.name
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("other", [3, np.int32(2), np.array([1, 2, 3, 4], "int32")], ids=type)
def test_operators_of_integers_on_both_sides(name, other):
    small = np.abs(INTEGERS) % 9
    function = BOTH[name]
    same(function(const(INTEGERS), other), function(INTEGERS, other))
    if not isinstance(other, np.ndarray):  # which would take each element for itself
        small = np.maximum(small, 1)
        same(function(other, const(small)), function(other, small))


@pytest.mark.parametrize("function", [operator.floordiv, operator.mod], ids=["floordiv", "mod"])
def test_divisions_of_floats(function):
    same(function(const(FLOATS), 2), function(FLOATS, 2))
    same(function(7, const(FLOATS + 20)), function(7, FLOATS + 20))
    same(function(const(INTEGERS), 0.75), function(INTEGERS, 0.75))


def test_operators_of_bools_and_one_operand():
    a, b = FLOATS > 0, FLOATS < 2
    same(const(a) & const(b), a & b)
    same(const(a) | const(b), a | b)
    same(const(a) ^ const(b), a ^ b)
    same(~const(a), ~a)
    same(~const(INTEGERS), ~INTEGERS)
    same(abs(const(INTEGERS)), abs(INTEGERS))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x & 1,
        lambda x: ~x,
        lambda x: x << 1,
        lambda x: ops.bitwise_or(x, x),
        lambda x: const(FLOATS > 0) << const(FLOATS > 0),
        lambda x: const(FLOATS > 0) % const(FLOATS > 0),
    ],
)
def test_what_has_no_bits_or_rests_is_refused(made):
    with pytest.raises(TypeError, match=r"integer|bool"):
        made(const(FLOATS))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_do_not_widen(dtype):
    x = const(FLOATS.astype(dtype))
    for y in (
        ops.maximum(x, 0.5),
        ops.maximum(0, x),
        ops.where(x > 0, x, -1e4),
        ops.where(x > 0, np.float64(2), x),
        ops.add(1, x),
        ops.clip(x, -1, 2.5),
    ):
        assert y.dtype == dtype
    same(ops.where(x > 0, x, -1e4), np.where(x.numpy() > 0, x.numpy(), np.array(-1e4, dtype)))
    assert ops.maximum(const(INTEGERS), 0.5).dtype == "float64"
    assert ops.where(x > 0, 1, 2).dtype == "int64"
    assert ops.where(x > 0, 1, 2.0).dtype == "float32"


def test_operands_that_are_no_numbers_are_named():
    x = const(FLOATS)
    for call in (
        lambda: ops.maximum(x, "1"),
        lambda: ops.where(x > 0, [1], x),
        lambda: ops.add(1, 2),
        lambda: ops.clip("1", 0, 1),
        lambda: ops.lerp(x, 1, 0.5),
    ):
        with pytest.raises(TypeError, match="not a Tensor"):
            call()


FUNCTIONS = {
    "clamp": lambda x: ops.clip(x, -1, 2),
    "clamp below": lambda x: ops.clip(x, min=-0.5),
    "clamp by tensors": lambda x: ops.clip(x, -1.0, x * 0 + 2),
    "frac": lambda x: ops.frac(x),
    "square": lambda x: ops.square(x),
    "reciprocal": lambda x: ops.reciprocal(x + 20),
    "lerp": lambda x: ops.lerp(x, x * 2 + 1, 0.25),
    "softplus": lambda x: ops.softplus(x, 2.0, 3.0),
    "logsigmoid": lambda x: ops.logsigmoid(x),
    "nan_to_num": lambda x: ops.nan_to_num(x / (x * 0 + 1)),
    "remainder": lambda x: ops.remainder(x, 2.3),
    "fmod": lambda x: ops.fmod(x, 2.3),
    "atan2": lambda x: ops.atan2(x + 10, x - 11),
}
TORCH = {
    "clamp": lambda t, x: t.clamp(x, -1, 2),
    "clamp below": lambda t, x: t.clamp(x, min=-0.5),
    "clamp by tensors": lambda t, x: t.clamp(x, -1.0, 2.0),
    "frac": lambda t, x: t.frac(x),
    "square": lambda t, x: t.square(x),
    "reciprocal": lambda t, x: t.reciprocal(x + 20),
    "lerp": lambda t, x: t.lerp(x, x * 2 + 1, 0.25),
    "softplus": lambda t, x: t.nn.functional.softplus(x, 2.0, 3.0),
    "logsigmoid": lambda t, x: t.nn.functional.logsigmoid(x),
    "nan_to_num": lambda t, x: t.nan_to_num(x),
    "remainder": lambda t, x: t.remainder(x, 2.3),
    "fmod": lambda t, x: t.fmod(x, 2.3),
    "atan2": lambda t, x: t.atan2(x + 10, x - 11),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    values = FLOATS.astype("float64")
    theirs = torch.tensor(values, requires_grad=True)
    ours = ndl.Tensor(values, dtype="float64")
    wanted, found = TORCH[name](torch, theirs), FUNCTIONS[name](ours)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-12)
    (wanted * wanted).sum().backward()
    (found * found).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-11, atol=1e-11)


def test_numbers_that_are_not_finite():
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 2.0], "float32")
    for name in ("isnan", "isinf", "isfinite"):
        same(getattr(ops, name)(const(x)), getattr(np, name)(x))
    same(ops.nan_to_num(const(x)), np.nan_to_num(x))
    same(ops.nan_to_num(const(x), 1.0, 2.0, 3.0), np.nan_to_num(x, True, 1.0, 2.0, 3.0))
    same(ops.clip(const(x), -1, 1), np.clip(x, -1, 1))
    same(ops.isinf(const(INTEGERS)), np.isinf(INTEGERS))


def test_every_function_is_at_the_top_and_its_method_is_the_same():
    left_out = set(ops.FUNCTIONS) - {n for n in ops.FUNCTIONS if hasattr(ndl, n)}
    assert left_out == {"slice", "unslice", "getitem", "make_tuple", "tuple_get_item"}
    assert not {"abs", "sum", "round"} & set(ndl.__all__)
    x = const(FLOATS)
    for name in ("sin", "exp2", "floor", "isnan", "sigmoid", "square"):
        same(getattr(x, name)(), getattr(ndl, name)(x).numpy())
