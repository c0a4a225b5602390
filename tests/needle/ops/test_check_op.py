"""check_op finds faults of ops: each test plants one."""

import numpy as np
import pytest

import needle as ndl
from needle.autograd.shapes import Spec
from needle.errors import ShapeError
from needle.op import REGISTRY, Binary, Elementwise, Op, register
from needle.op.samples import Arg, binary, error, sample, unary
from needle.testing import OpCheckError, assert_close, check_op, tolerance
from tests.planted_results import RIGHT, WRONG


class Cube(Elementwise):
    """y = x ** 3."""

    reads = frozenset({"inputs"})
    samples = unary(shapes=((), (3, 4)))
    error_samples = (error(TypeError, "takes 1 input", (2,), (2,)),)
    infer_first = True

    def dtype_of(self, dtype):
        if dtype == "bool":
            raise TypeError(f"{self.name}: no bool")
        return dtype

    def reference(self, x):
        return x * x * x

    def compute(self, x):
        return x * x * x

    def gradient(self, out_grad, node):
        return out_grad * (node.inputs[0] * node.inputs[0] * 3)

    def emit_te(self, k, x):
        return k.topi.multiply(x, k.topi.multiply(x, x))


@pytest.fixture
def planted():
    """A function that makes a variant of Cube with some rules replaced."""

    def make(**rules):
        REGISTRY.pop("planted", None)
        rules = {"__doc__": Cube.__doc__, "__module__": __name__, **rules}
        return register(type("Planted", (Cube,), rules))

    yield make
    REGISTRY.pop("planted", None)


def test_a_right_op_passes(planted):
    check_op(planted())


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({"compute": lambda self, x: x * x}, "forward"),
        ({"gradient": lambda self, g, node: g * (node.inputs[0] * 3)}, "gradient"),
        ({"gradient": lambda self, g, node: g * (node.inputs[0].detach() ** 2 * 3)}, "second"),
        ({"gradient": lambda self, g, node: (g, g)}, "2 results for 1 inputs"),
        ({"infer": lambda self, x: Spec((*x.shape, 1), x.dtype, x.device)}, "infer says"),
        ({"infer": lambda self, x: Spec(x.shape, "float32", x.device)}, "infer says"),
        ({"reads": frozenset()}, "released"),
        ({"samples": ()}, "no samples"),
        ({"error_samples": ()}, "no error_samples"),
        ({"error_samples": (error(ShapeError, "x", (2,)),)}, "raises nothing"),
        ({"error_samples": (error(TypeError, "else", (2,), (2,)),)}, "does not say"),
        ({"error_samples": (error(ValueError, "", (2,), (2,)),)}, "expected ValueError"),
        ({"__doc__": ""}, "docstring"),
        ({"emit_te": Op.emit_te}, "emit_te"),
        ({"reference": None}, "reference"),
        ({"infer_first": False}, "refuses the dtype"),
    ],
)
def test_a_fault_is_found(planted, rules, complaint):
    with pytest.raises((OpCheckError, RuntimeError), match=complaint):
        check_op(planted(**rules))


def test_compute_that_writes_to_its_input_is_found(planted):
    def compute(self, x):
        out = x * x * x
        x[...] = out
        return out

    with pytest.raises(OpCheckError, match="changed its inputs"):
        check_op(planted(compute=compute))


def test_a_forgotten_layout_is_found(planted):
    def compute(self, x):
        return (x * x * x) if x.is_compact else x * x

    with pytest.raises(OpCheckError, match="strided"):
        check_op(planted(compute=compute))


def test_a_lost_nan_is_found(planted):
    def compute(self, x):
        y = x * x * x
        return ndl.backend_ndarray.where(y.isnan(), 0.0, y) if x.dtype.startswith("float") else y

    with pytest.raises(OpCheckError, match="NaN"):
        check_op(planted(compute=compute))


def test_an_integer_magnitude_taken_in_floats_is_found(planted):
    rules = {
        "reads": frozenset({"inputs"}),
        "reference": lambda self, x: np.absolute(x),
        "gradient": lambda self, out_grad, node: out_grad * ndl.ops.sign(node.inputs[0]),
    }
    check_op(planted(**rules, compute=lambda self, x: x.abs()))

    def compute(self, x):
        return x.astype("float64").abs().astype(x.dtype)

    with pytest.raises(OpCheckError, match="extreme integers: forward"):
        check_op(planted(**rules, compute=compute), dtypes=["int64"])


class FloorDivide(Binary):
    """y = floor(a / b) of integers."""

    infer_first = True
    samples = (sample((3, 4), Arg((3, 4), -1, 0, special=False)),)  # the only divisor is -1
    error_samples = (error(TypeError, "no integer dtype", (2,), (2,)),)

    def dtype_of(self, a, b):
        if a not in ("int32", "int64"):
            raise TypeError(f"{self.name}: {a} is no integer dtype")
        return a

    def reference(self, a, b):
        return np.floor_divide(a, b)

    def compute(self, a, b):
        return -a  # at the least value it wraps around, as NumPy's

    def gradient(self, out_grad, node):
        return None, None

    def emit_te(self, k, a, b):
        return k.topi.floor_divide(a, b)


class Less(Binary):
    """y = whether a < b."""

    samples = binary()
    error_samples = (error(ShapeError, "broadcast", (2, 3), (4,)),)

    def dtype_of(self, a, b):
        return "bool"

    def reference(self, a, b):
        return np.less(a, b)

    def compute(self, a, b):
        return a < b

    def gradient(self, out_grad, node):
        return None, None

    def emit_te(self, k, a, b):
        return k.topi.less(a, b)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (FloorDivide, lambda self, a, b: (a / b).floor().astype(a.dtype)),  # in float64
        (Less, lambda self, a, b: a - b < 0 if a.dtype != "bool" else a < b),
    ],
)
def test_an_integer_result_wrong_at_the_extremes_is_found(planted, right, wrong):
    def make(**rules):
        REGISTRY.pop("planted", None)
        return register(type("Planted", (right,), {"__doc__": right.__doc__, **rules}))

    check_op(make())
    with pytest.raises(OpCheckError, match="extreme integers: forward"):
        check_op(make(compute=wrong), dtypes=["int32", "int64"])


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({"dtypes": ["float8"]}, TypeError, "dtype 'float8' is not supported"),
        ({"dtypes": None}, TypeError, "dtypes=None is not a list"),
        ({"dtypes": "float32"}, TypeError, "dtypes='float32' is not a list"),
        ({"dtypes": []}, ValueError, r"dtypes=\[\] is empty"),
        ({"devices": ["cpu"]}, TypeError, "device 'cpu' is not a Device"),
        ({"devices": 1}, TypeError, "devices=1 is not a list"),
        ({"op_class": None}, TypeError, "None is not a class of ops"),
        ({"op_class": Cube}, TypeError, "Cube.* is not a class of ops with"),
    ],
)
def test_wrong_arguments_are_named(planted, arguments, error, complaint):
    with pytest.raises(error, match=f"check_op: .*{complaint}"):
        check_op(**{"op_class": planted(), **arguments})


def test_a_wrong_rule_is_found_before_anything_is_compiled(planted):
    def compiled(op, inputs):
        raise AssertionError("compiled")

    op = planted(infer=lambda self, x: Spec((*x.shape, 1), x.dtype, x.device))
    with pytest.raises(OpCheckError, match=r"Planted\(\) on .*float32\[1\]"):
        check_op(op, compiled=compiled)


def test_compiled_results_are_compared(planted):
    def good(op, inputs):
        return inputs[0] ** 3

    def bad(op, inputs):
        return inputs[0] * inputs[0] * 2

    check_op(planted(), compiled=good)
    check_op(planted(), compiled={"does not apply": lambda op, inputs: None})
    with pytest.raises(OpCheckError, match="forward on second"):
        check_op(planted(), compiled={"first": good, "second": bad})


def test_ops_are_equal_when_class_and_attributes_are():
    from needle.ops import AddScalar, MulScalar

    assert AddScalar(2) == AddScalar(2) and hash(AddScalar(2)) == hash(AddScalar(2))
    nan = float("nan")
    assert AddScalar(nan) == AddScalar(nan)
    for other in (AddScalar(2.0), AddScalar(3), MulScalar(2), 2):
        assert AddScalar(2) != other
    with pytest.raises(AttributeError):
        AddScalar(2).scalar = 3


def test_register_refuses_a_taken_name():
    with pytest.raises(ValueError, match="'add' is taken"):

        @register
        class Other(Op):
            """Not add."""

            name = "add"


def test_tolerance_follows_dtype_and_length():
    assert tolerance("int32") == 0
    assert 1e-6 < tolerance("float32") < 2e-5
    assert tolerance("float64") < 1e-12
    assert tolerance("float32", 100) == pytest.approx(10 * tolerance("float32"))


@pytest.mark.parametrize("name", WRONG)
def test_assert_close_finds_differences(name):
    expected, found = WRONG[name]
    with pytest.raises(AssertionError, match=r"shape|dtype|1 of \d+ elements differ; at \["):
        assert_close(found, expected)


@pytest.mark.parametrize("name", RIGHT)
def test_assert_close_lets_right_results_pass(name):
    expected, found = RIGHT[name]
    assert_close(found, expected)


def test_an_op_of_a_tuple_and_attributes():
    @register
    class WeightedSum(Op):
        """y = weight * (sum of the parts of a tuple)."""

        weight: float

        infer_first = True
        samples = (sample([Arg((2, 3)), Arg((2, 3))], weight=2.0),)
        error_samples = (error(TypeError, "tuple", (2,), weight=1.0),)

        def infer(self, parts):
            if isinstance(parts, Spec):
                raise TypeError(f"{self.name}: needs a tuple")
            if parts[0].dtype not in ("float32", "float64"):
                raise TypeError(f"{self.name}: needs floats")
            return parts[0]

        def reference(self, parts):
            return (parts[0] + parts[1]) * parts[0].dtype.type(self.weight)

        def compute(self, parts):
            return (parts[0] + parts[1]) * self.weight

        def gradient(self, out_grad, node):
            return ((out_grad * self.weight,) * 2,)

        def emit_te(self, k, parts):
            return k.topi.add(*parts)

    try:
        check_op(WeightedSum)
    finally:
        del REGISTRY["weighted_sum"]
