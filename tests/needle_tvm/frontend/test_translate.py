"""The compiled stages compute the eager model's results for graphs of many kinds."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle_tvm.errors import TranslationError
from needle_tvm.stages import STAGES
from tests.needle_tvm.conftest import make_mlp, tensor

pytestmark = pytest.mark.parametrize("stage", STAGES)


def flat(value):
    if isinstance(value, ndl.Tensor):
        return [value.numpy()]
    parts = value.values() if isinstance(value, dict) else value
    return [array for part in parts for array in flat(part)]


def check(stage, fn, *args):
    """Check that compiled and eager results have one structure and differ only by rounding."""
    executable = needle_tvm.compile(fn, *args, stage=stage)
    expected, found = fn(*args), executable(*args)
    if not isinstance(expected, ndl.TensorTuple):
        assert type(found) is type(expected)
    for want, have in zip(flat(expected), flat(found), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)
    return executable


@pytest.fixture
def x(rng):
    return tensor(rng.standard_normal((4, 6), dtype=np.float32))


@pytest.fixture
def y(rng):
    return tensor(rng.standard_normal((4, 6), dtype=np.float32))


def test_several_inputs_and_outputs(stage, x, y):
    check(stage, lambda a, b: (a + b, [a * b, {"d": a - b}]), x, y)


def test_tuple_input(stage, x, y):
    check(stage, lambda pair: pair[0] * 2 + pair[1], (x, y))


def test_named_inputs_are_named_after_the_arguments(stage, x, y):
    executable = check(stage, lambda left, right: left @ right.transpose(), x, y)
    assert [spec["name"] for spec in executable.program.inputs] == ["left", "right"]


def test_tuples_inside_the_graph(stage, x):
    def fn(a):
        parts = ops.split(a, 0)
        return ops.stack([parts[2] + parts[0], parts[1]], 0), parts[3]

    check(stage, fn, x)


def test_tuple_result(stage, x):
    check(stage, lambda a: ops.split(a, 1), x)


def test_shared_subgraph(stage, x):
    def fn(a):
        shared = ops.exp(a)
        return shared + shared * shared

    check(stage, fn, x)


def test_one_input_used_twice(stage, x):
    check(stage, lambda a, b: a * b + a, x, x)


def test_unused_input(stage, x, y):
    check(stage, lambda a, b: a + 1, x, y)


def test_the_same_result_twice(stage, x):
    def fn(a):
        result = ops.exp(a)
        return result, result

    one, two = check(stage, fn, x)(x)
    assert not np.shares_memory(one.numpy(), two.numpy())


def test_output_that_is_an_input(stage, x):
    executable = check(stage, lambda a: (a, a + 1), x)
    array = x.numpy()
    result = executable.program(array)[0]
    result[...] = 0
    assert array.any(), "writing to a result changed the input"


def test_output_that_is_a_reshaped_input(stage, x):
    executable = check(stage, lambda a: a.reshape((3, 8)), x)
    array = x.numpy()
    executable.program(array)[...] = 0
    assert array.any(), "writing to a result changed the input"


def test_output_that_is_a_parameter(stage, x):
    model = make_mlp(6, 3)

    class WithWeight(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, a):
            return self.model(a), model.modules[0].weight

    module = WithWeight()
    module.eval()
    executable = check(stage, module, x)
    executable.program(x.numpy())[1][...] = 0
    np.testing.assert_array_equal(executable(x)[1].numpy(), model.modules[0].weight.numpy())


def test_output_that_is_a_constant(stage, x):
    constant = tensor(np.arange(3.0, dtype=np.float32))
    executable = check(stage, lambda a: (a + 1, constant), x)
    executable.program(x.numpy())[1][...] = 7
    np.testing.assert_array_equal(executable(x)[1].numpy(), [0, 1, 2])


def test_constants_are_part_of_the_program(stage, x):
    for factor in (2.0, 3.0):
        constant = tensor(np.full((4, 6), factor, np.float32))
        check(stage, lambda a, c=constant: a * c, x)


def test_static_arguments_are_part_of_the_program(stage, x):
    executable = check(stage, lambda a, n, flag: a * n if flag else a, x, 3, True)
    with pytest.raises(needle_tvm.NeedleTVMError, match=r"'n' is 4, .*compiled for 3"):
        executable(x, 4, True)


def test_zero_extents(stage):
    empty = tensor(np.zeros((0, 6), np.float32))
    check(stage, make_mlp(6, 5, 3), empty)


def test_scalar_input(stage):
    check(stage, lambda a: a * 2 + 1, tensor(np.float32(3)))


def test_integers(stage):
    check(stage, lambda a: a + 2, tensor(np.arange(5, dtype=np.int32)))


def test_float64(stage, rng):
    model = make_mlp(20, 33, 7, dtype="float64")
    check(stage, model, tensor(rng.standard_normal((5, 20))))


def test_nan_and_infinity_propagate(stage, rng):
    model = make_mlp(16, 16, 16)
    array = rng.standard_normal((4, 16)).astype(np.float32)
    array[0, 3], array[1, 4], array[2, 5] = np.nan, np.inf, -np.inf
    want = model(tensor(array)).numpy()
    have = needle_tvm.compile(model, tensor(array), stage=stage)(array).numpy()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    assert np.isnan(want[0]).all()
    np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)


def test_hundreds_of_ops_in_a_row(stage):
    # A recursion of two frames an op would end at 1000 frames; the tests below have more ops.
    check(stage, lambda a: deep(a, 600), tensor(np.ones((4,), np.float32)))


@pytest.mark.slow
def test_thousands_of_ops_in_a_row(stage):
    depth = 5000 if stage == "noopt" else 1500  # the time of fusing grows faster than the depth
    check(stage, lambda a: deep(a, depth), tensor(np.ones((4,), np.float32)))


@pytest.mark.long
def test_five_thousand_ops_in_a_row(stage):
    check(stage, lambda a: deep(a, 5000), tensor(np.ones((4,), np.float32)))


def deep(value, depth):
    for _ in range(depth // 2):
        value = ops.tanh(value) + 0.25
    return value


def test_layers_with_normalisation(stage, rng):
    model = nn.Sequential(
        nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.LayerNorm1d(9), nn.Dropout(0.5),
        nn.Residual(nn.Linear(9, 9)), nn.Linear(9, 4),
    )  # fmt: skip
    for _ in range(3):  # moves the running statistics away from a new module's
        model(tensor(rng.standard_normal((8, 12)).astype(np.float32)))
    model.eval()
    check(stage, model, tensor(rng.standard_normal((8, 12)).astype(np.float32)))


def test_loss(stage, rng):
    logits = tensor(rng.standard_normal((6, 5)).astype(np.float32))
    labels = tensor(np.array([0, 4, 2, 1, 3, 3], np.int32))
    loss = nn.SoftmaxLoss()
    loss.eval()
    check(stage, loss, logits, labels)


def test_a_model_in_train_mode_is_refused(stage, x):
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"train mode; call model.eval\(\)"):
        needle_tvm.compile(model, x, stage=stage)
    with pytest.raises(ndl.TraceError, match=r"modules.1.*random"):
        needle_tvm.compile(model, x, stage=stage, training=True)


def test_train_mode_when_asked_for(stage, x):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    executable = needle_tvm.compile(model, x, stage=stage, training=True)
    np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=2e-5, atol=2e-5)
    assert model.training


@pytest.mark.parametrize(
    "read",
    [lambda t: t.numpy(), lambda t: float(t.sum()), lambda t: bool(t.sum()), np.from_dlpack],
    ids=["numpy", "float", "bool", "dlpack"],
)
def test_reading_a_value_is_refused_by_name(stage, x, read):
    class Peeks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, a):
            hidden = ops.relu(self.first(a))
            read(hidden)
            return hidden

    model = Peeks()
    model.eval()
    with pytest.raises(ndl.TraceError, match=r"reads the value .*(relu|summation)"):
        needle_tvm.compile(model, x, stage=stage)


def test_an_op_whose_rule_fails_is_named(stage, x, monkeypatch):
    def broken(self, k, a):
        raise RuntimeError("planted")

    monkeypatch.setattr(ops.elementwise.Tanh, "emit_te", broken)
    monkeypatch.setattr(ops.elementwise.Tanh, "emit", None)
    model = nn.Sequential(nn.Identity(), nn.Tanh())
    model.eval()
    with pytest.raises(
        TranslationError, match=r"op tanh \(in modules.1\) on float32\[4, 6\].*planted"
    ):
        needle_tvm.compile(model, x, stage=stage)


@pytest.mark.parametrize("batch", [1, 7, 8, pytest.param(17, marks=pytest.mark.slow), 64])
@pytest.mark.parametrize("widths", [(64, 64), (37, 100, 10), (5, 1), (1, 3), (130, 513, 31)])
def test_dense_layers_of_any_size(stage, rng, batch, widths):
    model = make_mlp(*widths)
    check(stage, model, tensor(rng.standard_normal((batch, widths[0])).astype(np.float32)))
