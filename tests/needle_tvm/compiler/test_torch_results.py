"""Results, writes and dtypes of PyTorch's programs."""

import numpy as np
import pytest

import needle_tvm
from needle_tvm.errors import TranslationError
from tests.needle_tvm.compiler.torch_checks import STAGES, Applied, check

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
WHOLE = torch.tensor([3, -2, 5], dtype=torch.int32)
MASK = torch.tensor([True, False, True])
REAL = torch.tensor([[0.5, -1.25, 3.0], [2.0, 0.0, -0.75]])
DOUBLE = torch.tensor(1.5, dtype=torch.float64)

# A 0-d tensor, or a number, widens another tensor only if it is of a higher kind.
PROMOTED = {
    "booleans": lambda i, m, x, d: (
        *(m + 1, m * 2, m + m, m * m, m + 1.5, m / 2, 2 - m.int()),
        *(m == 1, m > 0, m < 0.5, m > ~m, m + torch.tensor(2)),
    ),
    "a number of float64": lambda i, m, x, d: (
        *(x * d, d - x, x / d, x > d, x.double() * d),
        *(x * x.double().sum(), torch.where(x > 0, x, d), i * d),
    ),
    "a number of int64": lambda i, m, x, d: (
        *(i + torch.tensor(2), i * i.sum(), i > i.sum(), i * i.long()),
        *(i // torch.tensor(2), i % i.sum(), i / i.sum(), i.char() + i),
    ),
    "halves": lambda i, m, x, d: (
        *(x.half() * d, x.half() + torch.tensor(2.0), x.half() > d),
        *(x.half() * x, x.bfloat16() > 1, x.half() > x),
    ),
    "of more axes": lambda i, m, x, d: (
        *(torch.clamp(i, x - 1, x + 1), torch.clamp(x[0], max=x.double())),
        *(torch.maximum(x.half(), d), torch.fmax(d, x.half()) * 1),
        *(torch.copysign(x[0], x.double()), torch.logaddexp(x.half(), x)),
        *(torch.sub(x.half(), i, alpha=0.5), torch.atan2(x.half(), i)),
    ),
    "kinds compared": lambda i, m, x, d: (
        *(i > 2.5, i == 3, x > i, i > m, i.byte() == i),
        *(i <= i.long(), x.double() > x, torch.exp2(i)),
    ),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_dtypes_are_promoted_as_pytorch_does(name):
    check(PROMOTED[name], [WHOLE, MASK, REAL, DOUBLE], steps=2)


def test_what_is_no_tensor_is_returned_as_it_is():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    check(lambda x: attention(x, x, x, need_weights=False), [x], steps=64, atol=1e-6)
    check(lambda x: {"out": x * 2, "state": None, "more": [x + 1, True, 3, "name"]}, [x])


def test_division_by_zero_and_what_is_made_of_nothing():
    check(lambda x, i: (x / 0, x / -0.0, i / 0, x.half() / 0), [REAL, WHOLE])

    def of_nothing(x):
        return x.mean(0), x.sum(0), x.prod(0), x.any(0), x.all(0), x.logsumexp(0), x.t() @ x + 1

    check(of_nothing, [torch.empty(0, 3)])


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_deviation_of_nothing_keeps_its_dtype(dtype):
    def deviations(x):
        return *torch.var_mean(x, 0), *torch.std_mean(x), x.mean(), x.sum(0)

    check(deviations, [torch.empty(0, 3, dtype=dtype)])


def test_a_negative_number_becomes_a_byte_from_the_end():
    check(lambda x: x.to(torch.uint8).int(), [REAL * 20])


def test_layers_share_the_state_that_they_begin_with():
    one, two = (
        torch.nn.LSTM(n, 3, batch_first=n == 1).eval().requires_grad_(False) for n in (16, 1)
    )
    x, y = torch.randn(2, 1, 16), torch.randn(2, 1)
    # A state lies between -1 and 1, and may be much smaller than the terms it is made of.
    check(lambda x, y: (*one(x)[0].tensor_split(2, 0), two(y)[1][0]), [x, y], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("number", [-3, 300])
def test_numbers_beyond_an_integers_range_wrap_around(dtype, number):
    def fn(x):
        compared = x == number, x != number, x < number, x <= number, x > number, number > x
        return (x + number, number - x, x * number, x // number, x % number, *compared, x / number)

    check(fn, [torch.arange(0, 120, 7, dtype=dtype)])


def test_no_greatest_elements_are_chosen():
    check(lambda x: tuple(x.topk(0)), [torch.randn(3, 4)])
    check(lambda x: tuple(x.topk(0)), [torch.randn(3, 0)])


def test_the_mask_of_bfloat16_attention_may_be_known():
    layer = torch.nn.MultiheadAttention(8, 2).bfloat16().eval().requires_grad_(False)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    x = torch.randn(4, 2, 8).bfloat16()
    needle_tvm.compile_torch(Applied(lambda x: layer(x, x, x, attn_mask=mask)[0]).eval(), x)


def test_constants_keep_their_dtype():
    """TVM narrows constants unless it is given their dtype."""
    x, large = torch.tensor([1, 2**41, -5, 2**50]), 2**33
    check(lambda x: (x // large, x % large, torch.fmod(x, large), x.clamp(min=large)), [x])
    mask = torch.full((4, 4), 1 / 3, dtype=torch.float64).tril()
    attend = torch.nn.functional.scaled_dot_product_attention
    q = torch.randn(2, 2, 4, 8, dtype=torch.float64)
    check(lambda q: attend(q, q, q, attn_mask=mask), [q], atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_a_division_by_zero_gives_zero_and_ends_no_process(dtype):
    """PyTorch raises a RuntimeError for these."""
    x, y = torch.tensor([7, 9, 100, 5]).to(dtype), torch.tensor([2, 3, 7, 0]).to(dtype)

    def fn(x, y):
        return x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")

    for stage in STAGES:
        model = Applied(fn).eval()
        compiled = needle_tvm.compile_torch(model, x, torch.ones_like(y), stage=stage)
        for found, expected in zip(compiled(x, y), fn(x[:3], y[:3]), strict=True):
            assert found.numpy().tolist() == [*expected.tolist(), 0]


OF_UNKNOWN_SHAPE = {
    "nonzero": torch.nonzero,
    "index.Tensor": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0).sum(),
    "unique": lambda x: x.unique(return_counts=True)[1] * 2,
}


@pytest.mark.parametrize("name", OF_UNKNOWN_SHAPE)
def test_shapes_that_depend_on_values_are_refused_by_name(name):
    with pytest.raises(TranslationError, match=rf"^Applied: .*{name}.* shape depends on values"):
        needle_tvm.compile_torch(Applied(OF_UNKNOWN_SHAPE[name]).eval(), REAL)


@pytest.mark.parametrize("number", range(4))
def test_fields_of_several_tuples_are_read_by_one_kernel(number):
    def of_tuples(x, y, z):
        # The orders differ because it depended on addresses which tuple FuseOps saw first.
        tuples = [x.topk(5, 1)[0].chunk(5, 1), y.split((2, 3, 1), 1), z.tensor_split(4, 1)]
        (a, b, c, d, e), (f, g, h), (i, j, k, m) = tuples
        return (a + i) * f[:, 1:] - b.exp() * j + c * h - (d + g[:, :1]) * k + e * m

    x, y, z = torch.randn(3, 8), torch.randn(3, 6), torch.randn(3, 4 + number % 2)[:, :4]
    check(of_tuples, [x, y, z], atol=2e-5)  # terms of up to about 50, which may cancel


def test_writes_to_inputs_are_refused_by_name():
    model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(2, 2)).eval()
    with pytest.raises(TranslationError, match=r"^Sequential: it writes to its input 'input'"):
        needle_tvm.compile_torch(model, torch.ones(2))


def test_moments():
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    check(lambda x: (*torch.var_mean(x), *torch.std_mean(x, 1, keepdim=True)), [x], atol=1e-6)


def test_norms_of_which_nothing_is_left():
    """PyTorch's own result has the rounding errors of x * scale and mean * scale."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.GroupNorm(1, 1, dtype=torch.float64)

        def forward(self, x):
            return self.norm(x)

    model = Model().eval()
    with torch.no_grad():
        model.norm.weight.fill_(1.3)
        model.norm.bias.fill_(0.2)
    x = torch.tensor([[1.1], [-3.7], [12.9]], dtype=torch.float64)
    compiled = needle_tvm.compile_torch(model, x, stage="tuned")
    np.testing.assert_allclose(compiled(x).numpy(), 0.2, rtol=0, atol=1e-12)


DRAWING = {
    "randn": lambda x: x + torch.randn(3),
    "rand_like": torch.rand_like,
    "bernoulli": torch.bernoulli,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=True),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, 0.5, training=True),
    "randperm": lambda x: x[torch.randperm(3)],
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=0.5
    ),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_are_refused(name):
    """If drawn once, they would be a constant, which the check cannot detect."""
    with pytest.raises(TranslationError, match="draws random numbers"):
        needle_tvm.compile_torch(Applied(DRAWING[name]).eval(), torch.ones(3))


def test_dropout_that_drops_nothing():
    functional = torch.nn.functional
    check(
        lambda x: (functional.dropout(x, 0.5, training=False), functional.dropout(x, 0.0), x * 2),
        [torch.ones(3)],
    )


def test_the_order_of_equals_is_left_open():
    """PyTorch does not promise which of equal elements topk and sort name, so any is right; that
    results may differ for it is said."""
    x = torch.randint(0, 3, (5, 20, 4), generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()

    def function(x):
        values, places = x.topk(7, 1)
        ordered, order = x.sort(1)
        return values, places, x.gather(1, places), ordered, order, x.kthvalue(3, 1)

    model = Applied(function).eval()
    with pytest.warns(UserWarning, match="topk.*: among equal elements, needle and PyTorch"):
        compiled = needle_tvm.compile_torch(model, x)
    values, _, gathered, ordered, order, _ = compiled(x)
    assert np.array_equal(values.numpy(), gathered.numpy())
    assert np.array_equal(values.numpy(), x.topk(7, 1)[0].numpy())
    assert np.array_equal(np.take_along_axis(x.numpy(), order.numpy(), 1), ordered.numpy())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
def test_functions_of_floats_take_integers(dtype):
    x = torch.tensor([0, 1, 1, 0]).to(dtype)

    def function(x):
        found = torch.isnan(x), torch.isinf(x), torch.isfinite(x), torch.sinh(x), torch.cosh(x)
        return (*found, torch.copysign(x, ~x), torch.exp2(x), torch.expm1(x), torch.sqrt(x))

    check(function, [x])


def test_small_powers_are_exact_and_print_nothing(capfd):
    x = torch.tensor([-3.0, -1e20, 0.0, 1.1, 40.0, float("nan"), float("inf")])
    check(
        lambda x: (x**3, x**4.0, x.half() ** 3, x.bfloat16().abs() ** 4, (x > 0) ** 3), [x], steps=2
    )
    assert capfd.readouterr().err == ""


def test_axes_of_numbers_and_masks_of_nothing():
    masked, infinity = torch.masked, float("inf")

    def norms(x):
        return *(torch.linalg.vector_norm(x, p, 0) for p in (infinity, -infinity, 0, 1, 2)), x * 2

    check(lambda x: (*norms(x), masked.normalize(x, infinity, 0)), [torch.tensor(-2.5)])
    check(
        lambda x, m: (masked.cumsum(x, -1, mask=m), masked.softmin(x, -1, mask=m), ~m),
        [torch.empty(5, 0, 2), torch.empty(5, 0, 1, dtype=torch.bool)],
    )


def test_functions_of_each_row_and_numbers_that_are_read():
    def function(x):
        rows = torch.vmap(lambda row: row * 2 + row.sum())(x)
        return rows, x * x.sum().item(), x.clamp(max=x.mean().item())

    # The number is read at each call, and not from the example.
    check(function, [REAL], inputs=[REAL * 3 + 1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integers_wrap_around(dtype):
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([most, least, most - 1, least + 1, 1, 2, 3, 100], dtype=dtype)

    def fn(x):
        hashed = (x * 103 + 71) % 97
        return hashed, x + 1 > x, x * x, x - x.flip(0), (x + 100).long(), (x * x).sum(), -x // 3

    check(fn, [x])


HALF_MASKS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", HALF_MASKS.values(), ids=HALF_MASKS)
def test_a_mask_that_is_an_input_stays_a_mask(dtype):
    q, k, v = (torch.randn(1, 2, n, 4).to(dtype) for n in (3, 5, 5))
    mask = torch.tensor([[True, False, True, True, False]])
    attend = torch.nn.functional.scaled_dot_product_attention
    eps = torch.finfo(dtype).eps
    check(lambda *given: attend(*given), [q, k, v, mask], steps=4, atol=4 * eps)


def test_zeros_of_both_signs_are_equal_in_order():
    x = torch.tensor([0.0, -0.0, 0.0, -0.0, -1.0, 1.0, torch.inf, -torch.inf, -1e-45, 1e-45])
    check(
        lambda x: (*x.sort(stable=True), *torch.sort(-x, descending=True, stable=True)),
        [torch.randn(10)],
        [x],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_what_is_no_number_stays_none(dtype):
    """TVM simplifies x * 0 to 0."""
    functional = torch.nn.functional
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, -1.0, 0.0]).to(dtype)

    def fn(x):
        products = x * 0, 0 * x, x * -0.0, 0 / x, x / 0, (x * 0).sum()
        return *products, functional.leaky_relu(x, 0.0), functional.softshrink(x), x**0.5, x**-0.5

    check(fn, [torch.ones(6, dtype=dtype)], [x])


def test_tensors_of_several_dtypes_are_joined():
    ints, floats = torch.ones(2, 3, dtype=torch.int32), torch.randn(2, 3)
    check(lambda a, b, c: torch.cat([a, b, c], -1), [ints, floats.half(), ints.bool()])
    check(lambda a, b: (torch.cat([a, b]), torch.stack([a, b], -1)), [floats, floats.double()])
    check(lambda a, b: torch.cat([a, b]), [ints.to(torch.uint8), -ints.to(torch.int8)])


@pytest.mark.parametrize("value", [0, 1, 5, 0.5])
def test_booleans_are_padded_with_what_a_number_is(value):
    x = torch.tensor([[True, False, True]])
    check(lambda x: torch.nn.functional.pad(x, (1, 2), value=value), [x])


def test_a_layer_of_no_features_gives_its_bias():
    linear = torch.nn.functional.linear
    check(lambda x: linear(x, torch.ones(4, 0), torch.ones(4)), [torch.zeros(0)])
    check(lambda x: linear(x, torch.ones(4, 0)), [torch.zeros(2, 3, 0)])
