"""Faults in the rules of a user's op are reported by the op's name before anything runs."""

import numpy as np
import pytest

import needle_tvm
from needle import ops
from needle.autograd.shapes import Spec
from needle.op import REGISTRY, Binary, Elementwise, Op, register
from needle.op.samples import error, unary
from needle_runtime.errors import UsageError
from needle_tvm import MismatchError
from needle_tvm.errors import StageError, TranslationError
from needle_tvm.stages import STAGES
from needle_tvm.testing import OpCheckError, check_op
from tests.needle_tvm.conftest import tensor


@pytest.fixture
def own():
    """A function that makes an op: y = x unless given other rules."""

    def make(base=Elementwise, **rules):
        REGISTRY.pop("own", None)
        given = {
            "__doc__": "y = x.",
            "__module__": __name__,
            "compute": lambda self, x: x * 1,
            "gradient": lambda self, out_grad, node: out_grad,
            "reference": lambda self, x: x * 1,
            "emit_te": lambda self, k, x: k.topi.identity(x),
        }
        return register(type("Own", (base,), {**given, **rules}))()

    yield make
    REGISTRY.pop("own", None)


@pytest.fixture
def x(rng):
    return tensor(rng.standard_normal((4, 5), dtype=np.float32))


def compiled(op, *inputs, stage="noopt", **options):
    return needle_tvm.compile(lambda *a: ops.exp(op(*a)), *inputs, stage=stage, **options)


def float_of(k, value):
    return k.tirx.const(value, "float32")


def raising(k, x):
    raise KeyError("planted")


SUMS_INSIDE = "only allowed at the top level"
WRONG = {
    "dtype": (lambda k, x: k.topi.cast(x, "float64"), r"emit_te gives float64\[4, 5\], infer says"),
    "shape": (lambda k, x: k.topi.reshape(x, (20,)), r"float32\[20\], infer says float32\[4, 5\]"),
    "extent": (lambda k, x: k.te.compute((4, 4), lambda i, j: x[i, j]), r"gives float32\[4, 4\]"),
    "axes": (lambda k, x: k.te.compute(x.shape, lambda i: x[i, 0]), r"gives float32\[4\]"),
    "nothing": (lambda k, x: None, "returns NoneType, not a tensor expression"),
    "an array": (lambda k, x: np.zeros((4, 5), "float32"), "returns ndarray, not a tensor"),
    "a number": (lambda k, x: float_of(k, 1), "returns FloatImm, not a tensor"),
    "a tuple": (lambda k, x: (x, x), "returns tuple, infer says one tensor"),
    "a list of one": (lambda k, x: [x], "returns list, infer says one tensor"),
    "raises": (raising, "KeyError: 'planted'"),
    "too large": (lambda k, x: k.topi.multiply(x, float_of(k, 1e300)), "1e.300 exceeds maximum"),
    "extents": (
        lambda k, x: k.topi.add(x, k.te.compute((7, 5), lambda i, j: float_of(k, 1))),
        "InternalError: Incompatible broadcast dims",
    ),
    "another's": (
        lambda k, x: k.topi.add(x, k.te.placeholder((4, 5), "float32", name="other")),
        "reads other, which is not one of its inputs",
    ),
    "behind": (
        lambda k, x: k.te.compute(x.shape, lambda i, j: x[i + 1000000, j]),
        "reads input 0 at 1000000 to 1000003 along axis 0, where it has 4 elements",
    ),
    "one behind": (
        lambda k, x: k.te.compute(x.shape, lambda i, j: x[i, j + 1]),
        "at 1 to 5 along axis 1, where it has 5 elements",
    ),
    "before": (lambda k, x: k.te.compute(x.shape, lambda i, j: x[i - 1, j]), "at -1 to 2 along"),
    "a clamp under a Select": (
        lambda k, x: k.te.compute(
            x.shape,
            lambda i, j: k.tirx.Select(i > 0, x[k.te.max(i - 1, 0), j], float_of(k, 0)),
        ),
        "reads input 0 at .* under a Select: both sides are computed",
    ),
    "no place of it": (
        lambda k, x: k.te.compute(x.shape, lambda i, j: x[k.tirx.floordiv(i, 2) + 100, j]),
        "at 100 to 101 along",
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_expression_is_refused_by_name(case, check, own, x):
    rule, complaint = WRONG[case]
    op = own(emit_te=lambda self, k, x: rule(k, x))
    with pytest.raises(TranslationError, match=complaint) as raised:
        compiled(op, x, check=check)
    assert str(raised.value).startswith("op own on float32[4, 5]: ")
    assert "\n" not in str(raised.value) and "Check failed" not in str(raised.value)


def test_a_refusal_leaves_no_warning_on_the_terminal(own, x, capfd):
    with pytest.raises(TranslationError):
        compiled(own(emit_te=lambda self, k, x: None), x)
    assert capfd.readouterr().err == ""


def test_a_wrong_operator_is_refused_by_name(own, x):
    op = own(emit=lambda self, r, x: r.op.reshape(x, (20,)))
    with pytest.raises(
        TranslationError, match=r"op own on .* emit gives float32\[20\], infer says"
    ):
        compiled(op, x, stage="tuned")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_an_operand_is_a_result(own, stage, dtype):
    x = tensor(np.arange(6).reshape(2, 3).astype(dtype))
    op = own(emit_te=lambda self, k, x: x)
    executable = needle_tvm.compile(lambda x: op(x) + 1, x, stage=stage)
    np.testing.assert_array_equal(executable(x).numpy(), x.numpy() + 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_clamp_may_stand_under_a_select_that_asks_for_values(own, x, stage):
    def emit_te(self, k, x):
        def element(i, j):
            return k.tirx.Select(x[i, j] > 0.0, x[k.te.max(i - 1, 0), j], x[i, j])

        return k.te.compute(x.shape, element)

    def above(self, x):
        values = x.numpy()
        return np.where(values > 0, values[np.maximum(np.arange(len(values)) - 1, 0)], values)

    wanted = above(None, x)
    op = own(compute=lambda self, x: type(x)(above(self, x)), emit_te=emit_te)
    executable = needle_tvm.compile(lambda x: op(x), x, stage=stage, check=False)
    np.testing.assert_array_equal(executable(x).numpy(), wanted)


class Both(Op):
    """y = (x, x)."""

    def infer(self, x):
        return (Spec(x.shape, x.dtype, x.device), Spec(x.shape, x.dtype, x.device))


@pytest.mark.parametrize("stage", STAGES)
def test_one_tensor_is_two_results(own, x, stage):
    def emit_te(self, k, x):
        y = k.topi.negative(x)
        return y, y

    def twice(self, x):
        return -x, -x

    op = own(Both, compute=twice, reference=twice, emit_te=emit_te)
    one, other = needle_tvm.compile(lambda x: op(x), x, stage=stage)(x)
    np.testing.assert_array_equal(one.numpy(), -x.numpy())
    np.testing.assert_array_equal(other.numpy(), -x.numpy())


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (lambda k, x: x, "returns Tensor, infer says a tuple"),
        (lambda k, x: (x, x, x), "gives 3 results, infer says 2"),
        (lambda k, x: (x,), "gives 1 results, infer says 2"),
        (lambda k, x: (x, k.topi.cast(x, "int32")), r"gives int32\[4, 5\] as result 1, infer says"),
        (lambda k, x: (x, None), "returns NoneType, not a tensor"),
    ],
)
def test_the_parts_of_a_tuple_are_counted_and_checked(own, x, rule, complaint):
    op = own(Both, emit_te=lambda self, k, x: rule(k, x))
    with pytest.raises(TranslationError, match=complaint):
        needle_tvm.compile(lambda x: op(x)[0] + 1, x)


def test_what_may_be_read_is(own, x):
    """Reads under conditions, with divisions or at indices from tensors are not refused."""

    def emit_te(self, k, x):
        def body(i, j):
            before = k.tirx.if_then_else(i > 0, x[i - 1, j], float_of(k, 0))
            behind = k.tirx.Select(j < 4, x[i, j + 1], float_of(k, 0))
            return before + behind + x[k.tirx.floordiv(i * 3, 4), 4 - j] + x[i - i, j]

        return k.te.compute(x.shape, body)

    x = x.numpy()
    want = x[np.arange(4) * 3 // 4, ::-1] + x[:1]
    want[1:] += x[:-1]
    want[:, :-1] += x[:, 1:]
    op = own(emit_te=emit_te)
    executable = needle_tvm.compile(lambda x: op(x), tensor(x), check=False)
    np.testing.assert_allclose(executable(tensor(x)).numpy(), want, rtol=1e-6)


def doubled(self, k, x):
    return k.topi.add(x, x)


@pytest.mark.parametrize("stage", STAGES)
def test_a_mismatch_of_an_op_without_a_reference_is_one(own, x, stage):
    with pytest.raises(MismatchError, match=r"the first to differ is own;") as raised:
        compiled(own(reference=None, emit_te=doubled), x, stage=stage)
    assert "np.float64" not in str(raised.value)
    # The error does not recommend the plainest stage if that is wrong too.
    assert ("stage='noopt' has own wrong, too" in str(raised.value)) is (stage != "noopt")
    assert "is right" not in str(raised.value)


def test_the_plainest_stage_is_named_where_it_was_found_right(own, x):
    op = own(emit=lambda self, r, x: r.op.add(x, x))
    with pytest.raises(MismatchError, match="first to differ is own; stage='noopt' is right;"):
        compiled(op, x, stage="fused")


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        (lambda self, x: raising(None, x), "op own: reference raises KeyError: 'planted'"),
        (lambda self, x: x[:2], r"op own: reference gives shapes \[\(2, 5\)\], infer says"),
    ],
)
def test_a_wrong_reference_is_named(own, x, reference, complaint):
    with pytest.raises(MismatchError, match=complaint):
        compiled(own(reference=reference, emit_te=doubled), x)


@pytest.mark.parametrize(
    ("compute", "complaint"),
    [
        (
            lambda self, x: x.astype("float64"),
            r"op own computes float64\[4, 5\], infer says float32",
        ),
        (lambda self, x: x.reshape((20,)), r"op own computes float32\[20\], infer says"),
        (lambda self, x: x.numpy(), r"op own computes ndarray, infer says"),
    ],
)
def test_a_wrong_compute_is_named(own, x, compute, complaint):
    with pytest.raises(MismatchError, match=complaint):
        needle_tvm.compile(own(compute=compute), x)


def test_check_op_says_at_which_stage_a_rule_gives_what(own):
    op = own(
        samples=unary(shapes=((3, 4),)),
        error_samples=(error(TypeError, "takes 1 input", (2,), (2,)),),
        emit_te=lambda self, k, x: k.topi.reshape(x, (12,)),
    )
    complaint = r"stage 'noopt': op own on float32\[3, 4\]: emit_te gives float32\[12\], infer says"
    with pytest.raises(OpCheckError, match=complaint):
        check_op(type(op), dtypes=["float32"])


@pytest.mark.parametrize(
    ("arguments", "wrong", "complaint"),
    [
        ({"stages": ["zz"]}, StageError, "stage 'zz': must be one of noopt, fused, tuned"),
        ({"stages": [["noopt"]]}, StageError, r"stage \['noopt'\]: must be one of"),
        ({"stages": None}, StageError, "stages=None: must be a list"),
        ({"stages": "noopt"}, StageError, "stages='noopt': must be a list"),
        ({"dtypes": ["float8"]}, UsageError, "dtype 'float8' is not supported"),
        ({"devices": ["cpu"]}, UsageError, "device 'cpu' is not a Device"),
        ({"op_class": None}, UsageError, "None is not a class of ops"),
    ],
)
def test_wrong_arguments_of_check_op_are_named(own, arguments, wrong, complaint):
    with pytest.raises(wrong, match=complaint):
        check_op(**{"op_class": type(own()), **arguments})


def toward_zero(x, y):
    return np.sign(x) * np.sign(y) * (abs(x) // np.where(y == 0, 1, abs(y)))


DIVISIONS = {
    "floordiv": np.floor_divide,
    "floormod": np.remainder,
    "truncdiv": toward_zero,
    "truncmod": np.fmod,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_division_of_integers_ends_no_process(own, name, dtype, stage):
    """Like NumPy, x / 0 gives 0, and the least integer divided by -1 gives itself."""

    def emit_te(self, k, x, y):
        return k.te.compute(x.shape, lambda i: getattr(k.tirx, name)(x[i], y[i]))

    op = own(Binary, compute=lambda self, x, y: x * y, emit_te=emit_te)
    x, y = (a.ravel() for a in np.mgrid[-9:10, -4:5].astype(dtype))
    x[0], y[0] = np.iinfo(dtype).min, -1
    found = needle_tvm.compile(op, tensor(x), tensor(y), stage=stage, check=False)
    with np.errstate(divide="ignore", over="ignore"):
        expected = DIVISIONS[name](x, y)
    if name == "truncdiv":
        expected[0] = x[0]
    np.testing.assert_array_equal(found(x, y).numpy(), expected)


@pytest.mark.parametrize("stage", STAGES)
def test_divisions_of_divisions_stay_small(own, stage):
    def emit_te(self, k, x, y):
        def element(i):
            value = y[i]
            for _ in range(12):
                value = k.tirx.floordiv(x[i], k.tirx.floormod(x[i], value) + 1)
            return value

        return k.te.compute(x.shape, element)

    op = own(Binary, compute=lambda self, x, y: x * y, emit_te=emit_te)
    x, y = np.arange(-20, 20), np.arange(40) - 7
    found = needle_tvm.compile(op, tensor(x), tensor(y), stage=stage, check=False)
    expected = y
    with np.errstate(divide="ignore"):
        for _ in range(12):
            expected = x // (x % expected + 1)
    np.testing.assert_array_equal(found(x, y).numpy(), expected)
