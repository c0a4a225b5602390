"""Converters of functions of elements: results and gradients as PyTorch's, also in corners."""

from math import inf, nan

import pytest

import needle_tvm

torch = pytest.importorskip("torch")

from needle.torch.reading import array_of  # noqa: E402
from tests.needle.torch.rows import check, compare, row  # noqa: E402

F, special, tensor = torch.nn.functional, torch.special, torch.tensor
pytestmark = pytest.mark.peer

X = tensor([-3.0, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.5, 7.0])
Y = tensor([2.0, 0.7, 0.5, 1.0, -1.0, -0.4, 0.2, 3.0, -2.0, -7.0])
EDGES = tensor([-inf, inf, nan, 1.0, -1.0, 0.0])
OTHER = tensor([1.0, nan, 1.0, -inf, 0.5, nan])
WHOLE, DIVISORS = tensor([-7, -3, 0, 2, 5, 100]), tensor([2, -2, 3, -3, 4, 7])
EVERY_BYTE = torch.arange(256, dtype=torch.uint8)
SMALL = tensor([-128, -1, 5, 127], dtype=torch.int8)
BYTES = tensor([0, 1, 200, 255], dtype=torch.uint8)
BOOLS = tensor([True, False, True])
HALF, FLOAT16 = X.bfloat16(), X.half()
WITHIN = tensor([0.05, 0.3, 0.5, 0.9])


def of(name, *inputs, **options):
    """A row of a function of torch, torch.special or torch.nn.functional."""
    function = next(getattr(m, name) for m in (torch, special, F) if hasattr(m, name))
    kinds = " ".join(str(x.dtype).removeprefix("torch.") for x in inputs)
    given = " ".join(f"{k}={v}" for k, v in options.items())
    return row(f"{name} {kinds} {given}", lambda *args: function(*args, **options), *inputs)


def by(name, x, *numbers, **options):
    """A row of a function of a tensor and numbers."""
    function = next(getattr(m, name) for m in (torch, special, F) if hasattr(m, name))
    return row(f"{name} {x.dtype} {numbers}", lambda x: function(x, *numbers, **options), x)


BINARY = "add sub mul div atan2 remainder fmod maximum minimum fmax fmin".split()
ARITHMETIC = [
    *(of(name, X, Y) for name in BINARY),
    *(of(name, HALF, Y.bfloat16()) for name in BINARY),
    *(of(name, WHOLE, DIVISORS) for name in BINARY),
    *(of(name, X, tensor(0.7)) for name in ("add", "mul", "maximum")),
    *(of(name, BOOLS, BOOLS.flip(0)) for name in ("add", "mul", "div", "maximum")),
    *(of(name, BOOLS, tensor([3, 4, 5])) for name in ("add", "mul", "pow")),
    *(of(name, SMALL, BYTES) for name in ("add", "mul", "maximum", "div")),
    *(of(name, HALF, tensor(0.7)) for name in ("add", "mul", "div", "sub")),
    *(by(name, x, c) for name in BINARY[:3] for x in (HALF, WHOLE, SMALL, BYTES) for c in (2, 3)),
    *(by(name, x, 0.7) for name in ("add", "mul", "pow", "remainder") for x in (HALF, X, WHOLE)),
    *(by("pow", x, c) for x in (X + 4, HALF + 4, FLOAT16 + 4) for c in (0, 2, 3, -1, 0.5, -0.5)),
    of("pow", tensor([2, -1, 3, -1, 1, 0]), tensor([62, -3, 45, -4, -5, 0])),
    of("pow", EVERY_BYTE[:, None], EVERY_BYTE),
    of("pow", EVERY_BYTE.to(torch.int8)[:, None], EVERY_BYTE.to(torch.int8)),
    of("pow", SMALL, tensor([3, 5, 7, 100], dtype=torch.int8)),
    of("pow", X.abs() + 1, Y),
    row("2 ** x", lambda x: 2**x, X),
    row("2 ** n", lambda x: 2**x, tensor([0, 3, 40])),
    row("1 - x", lambda x: 0.1 - x, HALF),
    by("rsub", X, 2, alpha=3),
    of("add", X, Y, alpha=0.3),
    of("sub", WHOLE, DIVISORS, alpha=2),
    of("add", HALF, HALF.flip(0), alpha=0.3),
    of("addcmul", X, Y, X, value=0.3),
    of("addcdiv", X, Y, X + 9, value=0.3),
    of("lerp", X, Y, tensor(0.7)),
    row("lerp by a number", lambda x, y: torch.lerp(x, y, 0.3), HALF, HALF.flip(0)),
    *(of("div", X, Y, rounding_mode=mode) for mode in ("floor", "trunc")),
    *(of("div", WHOLE, DIVISORS, rounding_mode=mode) for mode in ("floor", "trunc")),
    *(by("div", SMALL, -3, rounding_mode=mode) for mode in ("floor", "trunc")),
    *(
        by(name, x)
        for name in ("abs", "neg", "sign", "square")
        for x in (X, WHOLE, SMALL, BYTES, HALF)
    ),
    *(of(name, WHOLE, DIVISORS) for name in ("gcd", "lcm")),
    of("gcd", SMALL, tensor([0, 4, 100, 89], dtype=torch.int8)),
    *(of(name, X, Y) for name in ("hypot", "logaddexp", "logaddexp2", "float_power")),
    of("ldexp", X, tensor([3])),
]
EXTREMES = [
    *(of(name, EDGES, OTHER) for name in (*BINARY, "hypot", "copysign", "nextafter", "logaddexp")),
    *(by("clamp", EDGES, *bounds) for bounds in ((nan, 1), (-0.5, 0.7), (1, -1), (None, nan))),
    *(by("clamp", nan * X, *bounds) for bounds in ((None, 1), (0, None))),
    row("clamp between tensors", torch.clamp, EDGES, OTHER, OTHER.flip(0)),
    *(
        by("clamp", x, *b)
        for x in (WHOLE, SMALL)
        for b in ((-3, 5), (None, 2), (-1.5, 2.5), (5, 2))
    ),
    by("clamp_min", BOOLS, 1),
    *(by(name, EDGES) for name in ("sign", "isinf", "isposinf", "relu", "hardtanh", "nan_to_num")),
    by("nan_to_num", EDGES, 1.0, 2.0, 3.0),
    by("round", X * 1.23456, decimals=2),
    by("round", X * 12.5, decimals=-1),
    of("xlogy", tensor([0.0, 0.0, 2.0]), tensor([0.0, nan, 3.0])),
    of("heaviside", EDGES, OTHER),
    by("i0", tensor([80.0, 88.0, 91.0, 1e3, 1e20])),
    by("i1", tensor([-80.0, 1e20])),
    of("zeta", tensor([0.5, 1.0, 2.0, 3.0, 2.5, 200.0]), tensor([2.0, 2.0, -2.5, -2.5, -0.5, 2.0])),
    by("lgamma", tensor([-inf, inf, 0.0, 1.0, 2.0, -3.0, 1e20])),
    by("digamma", tensor([0.0, -0.0, -2.0, 1e20])),
    by("ndtri", tensor([0.0, 1.0, 1e-20, -0.1])),
    of("igamma", tensor([0.0, 2.0, 0.0, inf, -1.0]), tensor([1.0, inf, 0.0, 1.0, 1.0])),
]
TRUTHS = [
    *(of(name, X, Y) for name in ("eq", "ne", "lt", "le", "gt", "ge", "isclose", "logical_xor")),
    *(of(name, SMALL, BYTES) for name in ("eq", "lt", "logical_and")),
    *(of(name, WHOLE, X[4:]) for name in ("eq", "lt")),
    *(by(name, x, c) for name in ("eq", "gt") for x in (X, HALF, WHOLE) for c in (0.3, 2)),
    *(by(name, x) for name in ("isnan", "isfinite", "logical_not") for x in (EDGES, WHOLE, BOOLS)),
    row("where", lambda x, y: torch.where(x > 0, x, y), X, Y),
    row("where with a number", lambda x: torch.where(x > 0, x, 1), HALF),
    row("where of numbers", lambda x: torch.where(x > 0, 1, 2.5), X),
    row("where of two dtypes", lambda x, y: torch.where(x > 0, x, y), WHOLE, tensor([0.5])),
    row("masked_fill", lambda x: x.masked_fill(x > 0, -inf), HALF),
    *(of(f"bitwise_{name}", WHOLE, DIVISORS) for name in ("and", "or", "xor")),
    *(by(f"bitwise_{name}", x, 3) for name in ("and", "xor") for x in (SMALL, BYTES)),
    *(by(f"bitwise_{side}_shift", x, 3) for side in ("left", "right") for x in (SMALL, BYTES)),
    *(of(f"bitwise_{side}_shift", SMALL, tensor([-1, 8, 7, 100]).char()) for side in ("right",)),
    *(by("bitwise_not", x) for x in (WHOLE, BYTES, BOOLS)),
]
WHOLE_LINE = """abs asin atan asinh ceil cos cosh erf erfc exp exp2 expm1 floor frac neg reciprocal
round sigmoid sign sin sinc sinh square tan tanh trunc deg2rad""".split()
POSITIVE = "sqrt rsqrt log log2 log10 log1p lgamma digamma bessel_y0 bessel_y1".split()
FUNCTIONS = [
    *(by(name, x) for name in WHOLE_LINE for x in (X + 0.2, HALF + 0.2)),
    *(by(name, x) for name in POSITIVE for x in (X.abs() + 0.5, tensor([1, 2, 9]))),
    *(by(name, WHOLE) for name in ("exp", "sin", "sigmoid", "reciprocal", "floor", "round")),
    *(by(name, WITHIN) for name in ("acos", "atanh", "erfinv", "logit", "ndtri", "entr")),
    by("acosh", X.abs() + 1.5),
    by("angle", X),
    of("xlogy", X, Y.abs()),
    of("xlog1py", X, Y.abs()),
]
ACTIVATIONS = """relu gelu silu mish elu celu selu leaky_relu hardtanh relu6 hardswish hardsigmoid
softplus softshrink hardshrink logsigmoid softsign tanhshrink""".split()
LAYERS = [
    *(by(name, x) for name in ACTIVATIONS for x in (4 * X + 0.1, HALF, FLOAT16)),
    by("gelu", X, approximate="tanh"),
    *(by(name, X, c) for name in ("elu", "celu", "leaky_relu", "softshrink") for c in (0.5, 1.5)),
    by("leaky_relu", X, 0.0),
    by("hardtanh", X, -0.4, 2.0),
    by("softplus", X, 2.0, 3.0),
    by("threshold", HALF, 0.3, 7.1),
    by("rrelu", X, 0.1, 0.3),
    by("glu", X, 0),
    by("relu6", WHOLE),
    row("prelu", lambda x, w: F.prelu(x.reshape(2, 5), w), X, tensor([0.25, 0.3, 0.1, 2.0, 0.0])),
]
BESSEL = """bessel_j0 bessel_j1 modified_bessel_i0 modified_bessel_i1 i0e i1e airy_ai erfcx log_ndtr
spherical_bessel_j0""".split()
OF_POSITIVE = "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k1".split()
SPECIAL = [
    *(by(name, 3 * X) for name in BESSEL),
    *(by(name, X.abs() + 0.2) for name in OF_POSITIVE),
    *(row(f"polygamma {n}", lambda x, n=n: torch.polygamma(n, x), X + 0.2) for n in range(4)),
    row("mvlgamma", lambda x: torch.mvlgamma(x, 3), X.abs() + 2),
    by("i0", HALF),
]
DEGREES = tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 3.0, -2.0])
CHEBYSHEV = [f"chebyshev_polynomial_{kind}" for kind in "tuvw"]
POLYNOMIALS = ["hermite_polynomial_h", "hermite_polynomial_he"]
POLYNOMIALS += ["laguerre_polynomial_l", "legendre_polynomial_p"]
OF_DEGREES = [
    *(of(f"{kind}{name}", X * 0.5, DEGREES) for name in CHEBYSHEV for kind in ("", "shifted_")),
    *(by(name, X * 0.5, n) for name in (*POLYNOMIALS, *CHEBYSHEV) for n in (0, 1, 5)),
]
INCOMPLETE = [
    of(name, tensor([0.1, 1.0, 5.0, 100.0, 2e3]), tensor([0.2, 1.0, 4.0, 101.0, 2e3]))
    for name in ("igamma", "igammac")
]
NUMBERS = tensor([[1.5, -0.0, inf, 1e-42], [-3e38, nan, 1.2e-38, 1e-45]])
DTYPES = [
    getattr(torch, name) for name in "int16 int32 int64 uint8 float16 float32 float64".split()
]
BITS = [
    *(row(f"{x.dtype} as {to}", lambda x, to=to: x.view(to), x)
      for x in (NUMBERS, NUMBERS.half(), NUMBERS.double(), NUMBERS.bfloat16()) for to in DTYPES),
    *(row(f"{x.dtype} as bfloat16", lambda x: x.view(torch.bfloat16), x) for x in (WHOLE, SMALL)),
    *(row(f"{to} of numbers", lambda x, to=to: x.to(to), 30 * X) for to in DTYPES),
    *(row(f"{to} of integers", lambda x, to=to: x.to(to), WHOLE) for to in (*DTYPES, torch.bool)),
    *(by(name, NUMBERS.to(to)) for name in ("frexp", "signbit") for to in DTYPES[4:]),
    *(by("signbit", x) for x in (WHOLE, BYTES)),
    of("copysign", X, -X),
    by("copysign", HALF, -2.0),
    *(of("nextafter", x, -x) for x in (NUMBERS, NUMBERS.double(), NUMBERS.bfloat16())),
]  # fmt: skip


def in_place(a, b):
    a = a.clone()
    torch._foreach_add_([a], [b])
    torch._foreach_mul_([a], 2.0)
    return a


PAIR = tensor([1.0, 2.0]), tensor([3.0, -4.0])
LISTS = [
    row("add a number", lambda a, b: torch._foreach_add([a, b], 2.0), *PAIR),
    row("add", lambda a, b: torch._foreach_add([a, b], [b, a], alpha=0.5), *PAIR),
    row("divide", lambda a, b: torch._foreach_div([a, b], [2.0, 3.0]), *PAIR),
    row("abs", lambda a, b: torch._foreach_abs([a, b]), *PAIR),
    row("addcdiv", lambda a, b: torch._foreach_addcdiv([a], [b], [a], value=0.5), *PAIR),
    row("addcmul", lambda a, b: torch._foreach_addcmul([a, b], [b, a], [a, a], [0.5, 2]), *PAIR),
    row("lerp", lambda a, b: torch._foreach_lerp([a, b], [b, a], 0.3), *PAIR),
    row("norm", lambda a, b: torch._foreach_norm([a, b]), *PAIR),
    row("in place", in_place, *PAIR),
]
TABLES = {
    name.lower(): (table, gradients)
    for name, table, gradients in (
        *(("ARITHMETIC", ARITHMETIC, True), ("EXTREMES", EXTREMES, False)),
        *(("TRUTHS", TRUTHS, True), ("FUNCTIONS", FUNCTIONS, True), ("LAYERS", LAYERS, True)),
        *(("SPECIAL", SPECIAL, True), ("INCOMPLETE", INCOMPLETE, False)),
        ("DEGREES", OF_DEGREES, False),
        *(("BITS", BITS, False), ("LISTS", LISTS, True)),
    )
}


@pytest.mark.parametrize("name", TABLES)
def test_of_pytorch(name):
    rows, gradients = TABLES[name]
    check(rows, gradients)


# Tables whose code takes long to compile.
LONG = ("arithmetic", "extremes", "functions", "layers", "special", "degrees", "incomplete", "bits")


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        *(pytest.param(n, "tuned", marks=[pytest.mark.slow] * (n in LONG)) for n in TABLES),
        *((n, ("noopt", "fused")[i % 2]) for i, n in enumerate(TABLES) if n not in LONG),
    ],
)
def test_compiled(name, stage):
    rows, _ = TABLES[name]
    loaded, inputs = check(rows, gradients=False)
    arrays = [array_of(x) for x in inputs]
    compare(rows, needle_tvm.compile(loaded, *arrays, stage=stage)(*arrays))
