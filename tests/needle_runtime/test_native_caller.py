"""The native caller by itself, with functions of Python for the code and hostile arguments."""

import gc
import weakref

import numpy as np
import pytest

from needle import backend_ndarray as nd
from needle_runtime._tvm.ffi import load_ffi, native
from needle_runtime.errors import InputError
from tests.needle_runtime.ways import arrays_in, compiled, drawn, like
from tests.needle_tvm.conftest import tensor

X = drawn(3, 4)
INPUT = (X.shape, X.dtype, 2, 32, None, 64)


def arguments(function, **changes):
    """The arguments of a caller of a function of one input and one result."""
    usual = {
        "function": function,
        "inputs": (INPUT,),
        "outputs": (X.dtype,) * 3,
        "result": None,
        "bare": True,
        "tuple": False,
        "threads": 1,
    }
    return {**usual, **changes}


class Code:
    """A function of TVM's that does in Python what a test asks for."""

    def __init__(self, function, **changes):
        module, ffi = native(), load_ffi()
        self.function = ffi.convert(function)
        self.caller = module.Caller(**arguments(self.function, **changes))
        self.tensor = ffi.from_dlpack(like(X))

    def __call__(self, *arrays):
        return self.caller((), *arrays)


@pytest.fixture(scope="module")
def pair():
    return compiled(lambda x, y: [x - y, {"a": (x, y)}], tensor(X), tensor(X))


class Custom(Exception):
    pass


@pytest.mark.parametrize("message", ["", "plain", "grüße\n\t\0 end", "x" * 100_000, "%s %d {0}"])
@pytest.mark.parametrize(
    "kind", [ValueError, TypeError, RuntimeError, KeyError, MemoryError, Custom]
)
def test_the_codes_errors(kind, message):
    """They are those of a call of the function itself, and the next call is right."""
    wrong = [True]

    def function(x):
        if wrong[0]:
            raise kind(message)
        return code.tensor

    code = Code(function)
    for given in (X, like(X, 4), tensor(X)):
        wrong[0] = True
        with pytest.raises(Exception) as found:
            code(given)
        with pytest.raises(Exception) as expected:
            code.function(code.tensor)
        assert found.type is expected.type and str(found.value) == str(expected.value)
        wrong[0] = False
        np.testing.assert_array_equal(code(given), X)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_code_is_raised(error):
    def function(x):
        raise error

    code = Code(function)
    with pytest.raises(BaseException) as expected:
        code.function(code.tensor)
    with pytest.raises(expected.type):
        code(X)


def test_code_that_returns_or_keeps_its_input_is_left_to_python():
    kept = []

    def keep(x):
        kept[:] = [x]
        return code.tensor

    code = Code(lambda x: x)
    for given in (X, like(X, 4), nd.array(X), tensor(X)):
        assert code(given) is NotImplemented
    code = Code(keep)
    assert code(X) is NotImplemented
    del kept[:]
    several = {"inputs": (INPUT,) * 2, "bare": False, "tuple": True}
    code = Code(lambda x, y: [code.tensor, y, code.tensor], **several)
    assert code(X, X) is NotImplemented
    code = Code(lambda x, y: [code.tensor, code.tensor, code.tensor], **several)
    assert [each.tobytes() for each in code(X, X)] == [X.tobytes()] * 3


class Hooked(nd.NDArray):
    """An array that does something when its memory is first asked for."""

    __slots__ = ("hook",)

    @property
    def view(self):
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return nd.NDArray.view.__get__(self)

    @view.setter
    def view(self, value):
        nd.NDArray.view.__set__(self, value)


def hooked(array, hook):
    made = object.__new__(Hooked)
    made.hook = None
    made.device, made.view, made.hook = nd.cpu(), nd.array(array).view, hook
    return made


def test_an_arguments_code_may_call_again(pair):
    """As a signal's handler or a destructor may."""
    for callee in pair:
        inner = []
        nested = hooked(X, lambda c=callee, i=inner: i.append(c(drawn(3, 4, seed=8), X)))
        first = like(X + 1, 4)
        for args in ((first, nested), (X + 1, nested)):
            nested.hook = lambda c=callee, i=inner: i.append(c(drawn(3, 4, seed=8), X))
            outer = arrays_in(callee(*args))
            assert outer[1].tobytes() == (X + 1).tobytes()
            np.testing.assert_array_equal(outer[0], 1)
            assert arrays_in(inner.pop())[1].tobytes() == drawn(3, 4, seed=8).tobytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_of_an_arguments_code_is_raised(pair, error):
    def interrupt():
        raise error

    for callee in pair:
        for args in ((hooked(X, interrupt), X), (like(X, 4), hooked(X, interrupt))):
            with pytest.raises(error):
                callee(*args)
            assert arrays_in(callee(X, X))[1].tobytes() == X.tobytes()


def test_an_error_of_an_arguments_code_is_pythons(pair):
    def fail():
        raise ValueError("once")

    for callee in pair:  # the second time, Python's way, it gives its memory
        assert arrays_in(callee(hooked(X, fail), X))[1].tobytes() == X.tobytes()


def spec(**changes):
    """An input's description with some of its parts changed."""
    names = ("shape", "dtype", "code", "bits", "limits", "alignment")
    return tuple({**dict(zip(names, INPUT, strict=True)), **changes}.values())


@pytest.mark.parametrize(
    "changes",
    [
        *({"function": wrong} for wrong in (None, 3, lambda x: x)),
        *({"inputs": wrong} for wrong in ([INPUT], (INPUT[:-1],), (3,), None)),
        *({"inputs": (spec(shape=wrong),)} for wrong in ((-1,), (2**62,), (2**40, 2**40), "a", 3)),
        *({"inputs": (INPUT, spec(limits=wrong))} for wrong in ((1,), (0, 2**63), 3)),
        *({"inputs": (INPUT, spec(alignment=wrong))} for wrong in (0, -1, 3, 128, None)),
        *({"outputs": wrong} for wrong in ([X.dtype], None)),
        *({"result": wrong} for wrong in (int, 3, np.ndarray)),
    ],
)
def test_it_refuses_what_it_cannot_use(changes):
    function = load_ffi().convert(lambda x: x)
    with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)):
        native().Caller(**arguments(function, **changes))


def test_it_refuses_other_calls():
    usual = arguments(load_ffi().convert(lambda x: x))
    for wrong in ([], list(usual.values())[:-1], [*usual.values(), 0, 1]):
        with pytest.raises(TypeError):
            native().Caller(*wrong)
    with pytest.raises(TypeError):
        type("Sub", (native().Caller,), {})
    caller = native().Caller(**usual)
    for args in ((), ((),), ((), X, X), (None, X)):
        assert caller(*args) is NotImplemented
    assert caller((), x=X) is NotImplemented
    for weights in ([], 3, (3,), (X,), (None,)):
        with pytest.raises((TypeError, AttributeError)):
            caller(weights, X)
    assert caller((), X) is NotImplemented  # its result is its input


def test_an_owner_in_python_takes_its_memory_back_after_an_error(pair):
    """It runs while the call raises."""

    class Owner(np.ndarray):
        def __del__(self):
            taken.append(int(np.ones(3).sum()))

    def interrupt():
        raise KeyboardInterrupt

    for callee in pair:
        taken = []
        for error in (hooked(X, interrupt), X[:2], None):
            given = nd.from_dlpack(like(X).view(Owner))
            with pytest.raises((KeyboardInterrupt, InputError)):
                callee(given, error)
            del given
        assert taken and set(taken) == {3}


def test_a_circle_through_a_caller_is_collected():
    class Kind(nd.NDArray):
        __slots__ = ()

    Kind.caller = native().Caller(**arguments(Code(lambda x: x).function, result=Kind))
    gone = weakref.ref(Kind)
    del Kind
    gc.collect()
    assert gone() is None
