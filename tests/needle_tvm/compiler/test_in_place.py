"""Code that writes new values over the inputs that they replace, beside PyTorch's own writes."""

import copy

import numpy as np
import pytest

import needle_tvm
from needle_tvm.errors import MismatchError
from needle_tvm.lower import in_place

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gradients")

ROWS = 64


@pytest.fixture
def no_gradients():
    torch._dynamo.reset()  # which compiles one function only so often
    with torch.no_grad():
        yield


class Cache(torch.nn.Module):
    """A cache of rows; `step` puts a row in and computes a result."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        rows = torch.randn(1, 4, ROWS, 8, generator=torch.Generator().manual_seed(0))
        self.register_buffer("rows", rows)

    def forward(self, x, place):
        return self.step(self.rows, x, place)


def put(rows, x, place):
    rows.index_copy_(2, place, x)
    return (rows * 2).sum(2)


def add(rows, x, place):
    rows.index_add_(2, place, x)
    return rows.amax(2)


def put_and_read_before(rows, x, place):
    before = rows.sum(2)
    rows.index_copy_(2, place, x)
    return before, rows.sum(2)


def put_flat(rows, x, place):
    rows.view(4, ROWS, 8).index_copy_(1, place, x[0])
    return rows.sum(2)


def put_own_row(rows, x, place):
    rows.index_copy_(2, place, rows[:, :, :1] + 0 * x)
    return rows.sum(2)


def put_own_slice(rows, x, place):
    rows.index_copy_(2, place, rows[:, :, 3:4])
    return x.sum() + rows.sum(2)


def put_and_keep_old(rows, x, place):
    old = rows.clone()
    rows.index_copy_(2, place, x)
    return old, rows.sum(2)


def put_and_return_new(rows, x, place):
    rows.index_copy_(2, place, x)
    return rows.clone()


def put_twice(rows, x, place):
    rows.index_copy_(2, place, x)
    rows.index_copy_(2, (place + 1) % ROWS, x * 2)
    return rows.sum(2)


def scale_and_put(rows, x, place):
    rows.mul_(0.5)
    rows.index_copy_(2, place, x)
    return rows.sum(2)


def put_and_compare(rows, x, place):
    old = rows.clone()
    rows.index_copy_(2, place, x)
    return rows - old


def scale(rows, x, place):
    rows.mul_(0.5)
    return rows.sum(2) + x.sum() + place


# What reads the old rows after the new ones are there.
BESIDE = [put_and_keep_old, put_and_compare]
STEPS = [
    put,
    add,
    put_and_read_before,
    put_flat,
    put_own_row,
    put_own_slice,
    put_and_return_new,
    put_twice,
    scale,
    scale_and_put,
    *BESIDE,
]


def calls(count=5):
    draw = torch.Generator().manual_seed(1)
    for number in range(count):
        yield torch.randn(1, 4, 1, 8, generator=draw), torch.tensor([(number * 37) % ROWS])


def agree(found, wanted):
    found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for have, want in zip(found, wanted, strict=True):
        # A sum of 64 products in float32, in another order.
        np.testing.assert_allclose(np.asarray(have.numpy()), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_state_is_what_pytorch_makes_of_it(step, tmp_path):
    model = Cache(step).eval()
    twin, first = copy.deepcopy(model), next(calls())
    address = model.rows.data_ptr()
    compiled = needle_tvm.compile_torch(model, *first)
    assert bool(compiled.program.artifact.main.in_place) == (step not in BESIDE)
    for inputs in calls():
        agree(compiled(*inputs), twin(*inputs))
        torch.testing.assert_close(model.rows, twin.rows, rtol=0, atol=0)
    assert model.rows.data_ptr() == address
    compiled.export(tmp_path / "model")
    reloaded = needle_tvm.load(tmp_path / "model")
    for inputs in calls():
        agree(reloaded(*inputs), twin(*inputs))
    torch.testing.assert_close(model.rows, twin_of(step).rows, rtol=0, atol=0)


def twin_of(step):
    """The model after one round of calls."""
    model = Cache(step).eval()
    for inputs in calls():
        model(*inputs)
    return model


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_the_backend_writes_what_pytorch_writes(step):
    model = Cache(step).eval()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="needle", fullgraph=True)
    for inputs in calls():
        version = model.rows._version
        agree(compiled(*inputs), twin(*inputs))
        torch.testing.assert_close(model.rows, twin.rows, rtol=0, atol=0)
        assert model.rows._version > version


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x,
        lambda x: x.mT,
        lambda x: torch.stack([x, x])[1],
        lambda x: torch.stack([x, x], 1)[:, 0],
        lambda x: torch.stack([x, x], -1)[..., 0],
    ],
    ids=["dense", "transposed", "offset", "rows apart", "elements apart"],
)
def test_arguments_of_any_layout(made):
    def step(x, place, row):
        x.index_copy_(0, place, row)
        return x.sum(0), x.mT

    compiled = torch.compile(step, backend="needle", fullgraph=True)
    x = made(torch.randn(6, 6))
    twin = x.clone(memory_format=torch.preserve_format)
    place, row = torch.tensor([2]), torch.randn(1, 6)
    total, view = compiled(x, place, row)
    expected, _ = step(twin, place, row)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(x, twin, rtol=0, atol=0)
    assert view.data_ptr() == x.data_ptr()
    assert view.stride() == x.mT.stride()


def test_an_argument_that_is_given_twice():
    def step(x, y, place, row):
        x.index_copy_(0, place, row)
        return y * 2

    x, place, row = torch.randn(6, 6), torch.tensor([2]), torch.randn(1, 6)
    twin = x.clone()
    found = torch.compile(step, backend="needle", fullgraph=True)(x, x, place, row)
    torch.testing.assert_close(found, step(twin, twin, place, row), rtol=0, atol=0)
    torch.testing.assert_close(x, twin, rtol=0, atol=0)


def test_packed_weights_follow_what_other_code_writes_over_them():
    weight, place, row = torch.randn(8, 8), torch.tensor([2]), torch.randn(1, 8)
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight.copy_(weight)
    product = torch.compile(layer, backend="needle")
    write = torch.compile(lambda w: w.index_copy_(0, place, row).sum(), backend="needle")
    x = torch.randn(3, 8)
    for _ in range(2):
        torch.testing.assert_close(product(x), layer(x))
        write(layer.weight.detach())
        row.mul_(3)
    torch.testing.assert_close(product(x), layer(x))


def test_a_wrong_kernel_is_found_before_it_is_used(monkeypatch):
    def writes_nothing(function, taken):
        return function.with_body(in_place.tirx.Evaluate(0))

    monkeypatch.setattr(in_place, "_without_copies", writes_nothing)
    model, inputs = Cache(put).eval(), next(calls())
    with pytest.raises(MismatchError, match=r"the compiled code.s results differ from the model.s"):
        needle_tvm.compile_torch(model, *inputs, recompile=True)
    twin = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="leaves a graph to PyTorch"):
        compiled = torch.compile(model, backend="needle", options={"recompile": True})
        agree(compiled(*inputs), twin(*inputs))
    torch.testing.assert_close(model.rows, twin.rows, rtol=0, atol=0)
