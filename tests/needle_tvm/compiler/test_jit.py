"""`needle_tvm.jit`: signatures, surroundings, gradients, errors, the cache, threads."""

import copy
import gc
import inspect
import pickle
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from needle.errors import TraceError
from needle.op import Elementwise
from needle_tvm.compiler import jit as module
from needle_tvm.errors import (
    EagerWarning,
    InputError,
    RecompilationWarning,
    TranslationError,
    UsageError,
)
from tests.needle_tvm.conftest import make_mlp, tensor

plain = needle_tvm.jit(stage="noopt")  # the least to compile


def ones(*shape):
    return tensor(np.ones(shape, "float32"))


def compilations(function):
    return function.cache_info().compilations


# Signatures


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
    small = f(array.astype("int8"))  # needle stores int32
    assert small.dtype == "int32" and small.numpy().tolist() == (array * 2).tolist()
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
    with pytest.raises(InputError, match=r"f: argument 'axes' is a list .*cannot be hashed"):
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


# What a function reads around it


def test_train_mode_and_attributes_of_modules():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x):
            return self.inner(x) * (self.scale if self.training else 1.0)

    model, other = Scaled(), Scaled()
    f = plain(lambda x, m: model(x) + m(x))
    x = ones(2, 3)

    def check(count):
        wanted = (model(x) + other(x)).numpy()
        np.testing.assert_allclose(f(x, other).numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert compilations(f) == count

    check(1)
    model.eval()
    check(2)
    other.eval()
    check(3)
    model.train()
    other.train()
    check(3)  # as the first
    other.scale = -1.0
    check(4)
    other.inner.weight.requires_grad = False
    check(5)
    other.inner = nn.Linear(3, 3)  # other weights of the first kind
    check(4 + 1)
    model.inner = nn.Linear(3, 3, bias=False)
    check(6)


def test_tensors_of_a_closure_are_followed():
    shift = tensor(np.array([1.0, 2.0], "float32"))
    tables = {"scale": [tensor(np.array([3.0, 4.0], "float32"))]}
    f = plain(lambda x: x * tables["scale"][0] + shift)
    x = ones(2)
    assert f(x).numpy().tolist() == [4, 6]
    shift.data = tensor(np.array([10.0, 20.0], "float32"))
    assert f(x).numpy().tolist() == [13, 24]
    tables["scale"][0] = tensor(np.array([0.0, 1.0], "float32"))
    assert f(x).numpy().tolist() == [10, 21]
    shift = tensor(np.array([0.0, 0.0], "float32"))
    assert f(x).numpy().tolist() == [0, 1]
    assert compilations(f) == 1
    shift = tensor(np.zeros((2, 2), "float32"))  # of another shape
    assert f(x).numpy().tolist() == [[0, 1], [0, 1]]
    assert compilations(f) == 2
    with pytest.raises(TraceError, match="shift"):
        plain(lambda x: x * float(shift.sum()))(x)


def test_values_of_variables_are_part_of_the_signature():
    factor, act = 2.0, ops.exp

    def helper(x):
        return act(x) * factor

    f, x = plain(lambda x: helper(x)), ones(2)

    def check(count):
        for _ in range(2):
            np.testing.assert_allclose(f(x).numpy(), helper(x).numpy(), rtol=1e-6)
        assert compilations(f) == count

    check(1)
    factor = 3.0
    check(2)
    act = ops.tanh
    check(3)
    factor, act = 2.0, ops.exp
    check(3)


def test_a_variable_with_the_name_of_an_attribute_is_no_surrounding():
    names = {"plain": plain, "__name__": "a_script", "data": 0}
    exec("f = plain(lambda x: x.data * factor)\nfactor = 2.0", names)
    for turn in range(2):
        names["data"] = turn
        assert names["f"](ones(2)).numpy().tolist() == [2, 2]
    assert compilations(names["f"]) == 1
    names["factor"] = 3.0
    assert names["f"](ones(2)).numpy().tolist() == [3, 3]
    assert compilations(names["f"]) == 2


def test_another_layer_in_a_list_is_seen():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    layers = [*model.modules]

    def run(x):
        for layer in layers:
            x = layer(x)
        return x

    f, x = plain(run), tensor(np.array([[1.0, -2.0, 0.5]], "float32"))
    np.testing.assert_allclose(f(x).numpy(), run(x).numpy(), rtol=1e-5, atol=1e-6)
    layers[1] = nn.Tanh()  # has no weights by which to tell
    np.testing.assert_allclose(f(x).numpy(), run(x).numpy(), rtol=1e-5, atol=1e-6)
    assert compilations(f) == 2


class Scaled:
    """An object that is no Module."""

    def __init__(self, factor, power):
        self.factor, self.power = tensor(np.array(factor, "float32")), power

    @plain
    def apply(self, x):
        """Scale x."""
        return (x * self.factor) ** self.power

    @staticmethod
    @plain
    def double(x):
        return x + x


def test_methods():
    before = compilations(Scaled.apply)
    one, two = Scaled(2, 1), Scaled(3, 2)
    x = ones(2)
    assert one.apply(x).numpy().tolist() == [2, 2] and two.apply(x).numpy().tolist() == [9, 9]
    one.factor = tensor(np.array(5, "float32"))
    assert one.apply(x).numpy().tolist() == Scaled.apply(one, x).numpy().tolist() == [5, 5]
    assert compilations(Scaled.apply) == before + 2
    one.power = 2
    assert one.apply(x).numpy().tolist() == [25, 25]
    assert one.apply.cache_info().compilations == before + 3
    assert Scaled.double(x).numpy().tolist() == one.double(x).numpy().tolist() == [2, 2]
    bound = plain(Scaled(4, 1).apply.__func__.__wrapped__.__get__(two))  # of a bound method
    assert bound(x).numpy().tolist() == [9, 9]
    two.factor.data = tensor(np.array(1, "float32"))
    assert bound(x).numpy().tolist() == [1, 1]


def test_modules_as_arguments_and_as_the_function(rng):
    models = [make_mlp(4, 4), make_mlp(4, 4)]
    f = plain(lambda x, ms, last: last(ms[1](ms[0](x))))
    x, last = tensor(rng.standard_normal((2, 4)).astype("float32")), nn.Linear(4, 2)
    for _ in range(2):
        wanted = last(models[1](models[0](x))).numpy()
        np.testing.assert_allclose(f(x, models, last).numpy(), wanted, rtol=1e-5, atol=1e-6)
        for p in models[1].parameters():
            p.data = tensor(rng.standard_normal(p.shape).astype("float32"))
    assert compilations(f) == 1
    fast = plain(models[0])
    np.testing.assert_allclose(fast(x).numpy(), models[0](x).numpy(), rtol=1e-5, atol=1e-6)
    assert fast.cache_info().currsize == 1 and not hasattr(fast, "modules")


def test_functions_without_arguments_follow_their_weights():
    weight = nn.Parameter(np.ones(3, "float32"))
    norm = plain(lambda: (weight * weight).sum())
    assert norm().item() == 3
    weight.data = tensor(np.full(3, 2, "float32"))
    assert norm().item() == 12 and compilations(norm) == 1


# Gradients


def test_gradients_that_would_be_lost_are_refused():
    model = make_mlp(3, 2)
    x = ndl.Tensor(np.ones((2, 3), "float32"))

    @plain
    def loses(x):
        loss = model(x).sum()
        loss.backward()
        return loss

    with pytest.raises(TraceError, match=r"loses: .*gradient in model\.modules\.0\.\w+\.grad"):
        loses(x)
    assert all(p.grad is None for p in model.parameters()) and x.grad is None

    @plain
    def clips(x):
        loss = model(x).sum()
        loss.backward()
        return [p.grad * 0.5 for p in model.parameters()]  # not themselves, but what follows

    @plain
    def saliency(x):
        return ndl.autograd.grad(model(x).sum(), [x])[0]

    model(x).sum().backward()
    for found, p in zip(clips(x), model.parameters(), strict=True):
        np.testing.assert_allclose(found.numpy(), p.grad.numpy() / 2, rtol=1e-6)
    np.testing.assert_allclose(saliency(x).numpy(), x.grad.numpy(), rtol=1e-6)
    assert not saliency(x).requires_grad


def test_no_gradient_passes_through_a_call_unseen():
    weight = nn.Parameter(np.ones(3, "float32"))
    f = plain(lambda x: (x * weight, x * 2.0, (x * weight).detach()))
    x = ones(3)
    with_weight, of_input, detached = f(x)
    assert [y.requires_grad for y in (with_weight, of_input, detached)] == [True, False, False]
    with pytest.raises(RuntimeError, match=r"no gradient passes through .*jit function .*lambda"):
        (with_weight + weight).sum().backward()
    assert weight.grad is None
    (with_weight.detach() * weight + of_input).sum().backward()
    assert weight.grad.numpy().tolist() == [1, 1, 1]
    with ndl.no_grad():
        assert not any(y.requires_grad for y in f(x))


# Errors


def test_what_cannot_be_traced_is_an_error_that_names_function_and_line():
    class Keeps:
        def run(self, x):
            self.kept = x
            return x

    model = make_mlp(3, 3)

    def reads(x):
        return x * float(ops.exp(x).sum())

    def branches(x):
        return x if x.sum() > 0 else -x

    def draws(x):
        return x + ndl.init.rand(3)

    def writes(x):
        model.modules[0].bias.data = ones(1, 3)
        return x

    def returns_a_number(x):
        return x, x.shape[0]

    def returns_nothing(x):
        return None

    line = inspect.getsourcelines(reads)[1] + 1
    here = Path(__file__).name
    for function, match in (
        (reads, rf"reads: .*made by op 'summation'.*{here}:{line} \(return x \* float"),
        (branches, rf"branches: .*op 'compare'.*{here}:\d+ \(return x if"),
        (draws, rf"draws: .*random numbers.*{here}:\d+ \(return x \+ ndl"),
        (writes, rf"writes: .*writes to 'model\.modules\.0\.bias'.*{here}:\d+"),
        (returns_a_number, "returns_a_number: the result holds a int"),
        (returns_nothing, "returns_nothing: the result holds no tensor"),
    ):
        compiled = plain(function)
        for _ in range(2):
            with pytest.raises(TraceError, match=match):
                compiled(ones(3))
        assert compiled.cache_info() == (0, 16, 0)


def test_exceptions_of_the_function_pass_through():
    broken = [True]

    @plain
    def f(x):
        if broken:
            raise ZeroDivisionError("mine")
        return x + 1.0

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        f(ones(2))
    with pytest.raises(ndl.ShapeError, match="matmul"):
        plain(lambda a, b: a @ b)(ones(2, 3), ones(2, 3))
    broken.clear()
    assert f(ones(2)).numpy().tolist() == [2, 2]


def test_fallback_to_eager_is_said_once():
    @needle_tvm.jit(fallback="eager", stage="noopt")
    def f(x):
        return x * float(x.sum()), "a note"

    with pytest.warns(EagerWarning, match=r"f: runs eagerly: .*reads the value") as seen:
        for size in (2, 2, 3):
            found, note = f(np.ones(size, "float32"))
            assert found.numpy().tolist() == [size] * size and note == "a note"
    assert len(seen) == 1 and seen[0].filename == __file__
    assert f.cache_info() == (0, 16, 2)

    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    g = needle_tvm.jit(model, fallback="eager", stage="noopt")
    with pytest.warns(EagerWarning, match="Sequential: runs eagerly: .*random"):
        g(ones(2, 3))
    model.eval()  # can be traced
    np.testing.assert_allclose(g(ones(2, 3)).numpy(), model(ones(2, 3)).numpy(), rtol=1e-5)
    assert compilations(g) == 1


def test_an_op_that_cannot_be_translated_is_named():
    @dataclass(frozen=True, eq=False)
    class Untold(Elementwise):
        name, arity = "untold", 1

        def compute(self, x):
            return x

    f = plain(lambda x: Untold()(x))
    with pytest.raises(TranslationError, match=r"<lambda>: .*'?untold'?.*emit_te is not defined"):
        f(ones(2))


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"static": ("z",)}, "static='z': f has no such argument"),
        ({"static": ("rest",)}, "static='rest'"),
        ({"static": "x"}, "static='x': must be names"),
        ({"maxsize": 0}, "maxsize=0"),
        ({"fallback": "numpy"}, "fallback='numpy'"),
        ({"log": 3}, "log=3"),
        ({"stage": "best"}, "best"),
        ({"target": "abacus"}, "abacus"),
    ],
)
def test_bad_keywords_are_refused_at_once(keywords, match):
    def f(x, *rest):
        return x

    with pytest.raises(UsageError, match=match):
        needle_tvm.jit(f, **keywords)


def test_only_functions_are_taken():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for wrong in (generator, coroutine, nn.Linear, 3):
        with pytest.raises(UsageError, match="jit: "):
            needle_tvm.jit(wrong)
    with pytest.raises(TypeError, match="unexpected keyword"):
        needle_tvm.jit(lambda x: x, size=3)


# Inside other traces


def test_calls_inside_other_traces_are_inlined():
    weight = nn.Parameter(np.full(3, 2, "float32"))
    inner = plain(lambda x: x * weight)
    outer = plain(lambda x: inner(x) + 1.0)
    x = ones(3)
    assert outer(x).numpy().tolist() == [3, 3, 3]
    compiled = needle_tvm.compile(outer, x, stage="noopt")
    weight.data = tensor(np.full(3, 5, "float32"))
    assert outer(x).numpy().tolist() == compiled(x).numpy().tolist() == [6, 6, 6]
    assert (compilations(inner), compilations(outer)) == (0, 1)

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(np.full(3, 3, "float32"))

        @plain
        def scaled(self, x):
            return x * self.scale

        def forward(self, x):
            return self.scaled(x)

    model = Uses()
    model.eval()
    compiled = needle_tvm.compile(model, x, stage="noopt")
    assert [each["name"] for each in compiled.program.params] == ["scale"]
    assert compiled(x).numpy().tolist() == [3, 3, 3] and compilations(Uses.scaled) == 0


# The cache


def test_python_runs_once_for_each_signature():
    runs = []

    @plain
    def f(x):
        runs.append(x.shape)
        return x + 1.0

    for size in (2, 3, 2, 3):
        f(ones(size))
    assert runs == [(2,), (3,)]


def mapped():
    return len(
        [line for line in Path("/proc/self/maps").read_text().splitlines() if "needle-load" in line]
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_least_recently_used_is_unloaded():
    lines = []
    f = needle_tvm.jit(lambda x: x * 2.0, maxsize=2, log=lines.append, stage="noopt")
    gc.collect()
    before = mapped()
    f(ones(1)), f(ones(2)), f(ones(1))
    two = mapped()
    assert two > before
    with pytest.warns(
        RecompilationWarning, match=r"<lambda>: compiled 3 times, .*2 are kept.*shape"
    ):
        f(ones(3))
    gc.collect()
    assert mapped() == two
    f(ones(1))
    assert f.cache_info() == (3, 2, 2)
    f(ones(2))  # was unloaded, because (1,) was used after it
    assert f.cache_info() == (4, 2, 2)
    f.clear_cache()
    gc.collect()
    assert mapped() == before and f.cache_info() == (4, 2, 0)
    assert lines == [
        "<lambda>: compilation 1: this is its first call",
        "<lambda>: compilation 2: argument x: shape is (2,) instead of (1,)",
        "<lambda>: compilation 3: argument x: shape is (3,) instead of (1,)",
        "<lambda>: compilation 4: argument x: shape is (2,) instead of (1,)",
    ]


def test_inputs_are_not_kept_alive():
    f = plain(lambda xs: xs[0] + 1.0)
    device = ndl.default_device()
    x = ones(1000, 1000)
    result = f([x])
    del x, result
    gc.collect()
    before = device.memory_allocated()
    x = ones(1001, 1000)
    result = f([x])
    del x, result
    gc.collect()
    assert device.memory_allocated() == before


def test_log_to_stderr(capsys):
    f = needle_tvm.jit(lambda x, y=1: x * y, log=True, stage="noopt")
    f(ones(2))
    f(ones(2), 2)
    assert capsys.readouterr().err.splitlines()[1] == (
        "needle_tvm.jit: <lambda>: compilation 2: argument y is 2 instead of 1"
    )


@plain
def at_module_level(x):
    """A docstring."""
    return x


at_module_level.note = "mine"


def test_it_looks_like_the_function():
    assert at_module_level.__name__ == "at_module_level"
    assert at_module_level.__doc__ == "A docstring."
    assert list(inspect.signature(at_module_level).parameters) == ["x"]
    assert at_module_level.__module__ == __name__ and "at_module_level" in repr(at_module_level)
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    model = nn.Linear(2, 2)
    model.helper = at_module_level
    assert copy.deepcopy(model).helper is at_module_level
    assert Scaled(1, 1).apply.__doc__ == "Scale x."


# Threads and interrupts


def test_threads_share_one_compilation_of_each_signature():
    f = plain(lambda x: x * 3.0)
    wrong, start = [], threading.Barrier(8)

    def work(number):
        start.wait()
        for turn in range(40):
            size = 1 + (number + turn) % 3
            if f(ones(size)).numpy().tolist() != [3.0] * size:
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and compilations(f) == 3


def test_an_interrupt_leaves_it_usable(monkeypatch):
    f = plain(lambda x: x + 5.0)
    with monkeypatch.context() as patch:

        def interrupted(*_):
            raise KeyboardInterrupt

        patch.setattr(module, "compile_source", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(ones(2))
    other = threading.Thread(target=lambda: f(ones(2)))  # the lock is free
    other.start()
    other.join(60)
    assert f(ones(2)).numpy().tolist() == [6, 6] and compilations(f) == 1


def test_no_warning_and_no_output_by_default(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(lambda x: x - 1.0)(ones(2))
    assert capsys.readouterr() == ("", "")
