"""Calls through the C interface: Python's bits, the caller's memory, open sizes, refusals."""

import ctypes
import re
import threading
from ctypes import byref, c_void_p

import numpy as np
import pytest

import needle_runtime
from needle_runtime._tvm import versions
from needle_runtime.errors import InputError
from tests.needle_runtime.capi.library import (
    DTYPES,
    Array,
    C,
    Call,
    Failed,
    Kind,
    Options,
    Program,
    Status,
    check,
    error,
    extents,
    numpy_dtype,
    prefix,
)
from tests.needle_runtime.capi.models import HALVES

MODELS = ("mlp", "open", "pair", "tied")


def inputs_of(program, seed=0):
    """Arrays that fit the inputs of a program, with 3 for sizes that a call chooses."""
    draw = np.random.default_rng(seed)
    for _, dtype, shape in program.arrays(Kind.INPUTS):
        shape = [3 if extent == -1 else extent for extent in shape]
        yield draw.integers(0, 6, shape).astype(numpy_dtype(DTYPES.index(dtype)))


def at_offset(array, offset):
    """A copy whose memory begins `offset` bytes past a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    view = memory[start : start + array.nbytes]
    view[:] = np.frombuffer(array.tobytes(), np.uint8)
    return view


@pytest.fixture
def mlp(models):
    return Program(models / "mlp")


@pytest.fixture
def growing(models):
    """A program whose calls choose the number of rows, 1 to 64."""
    return Program(models / "open")


def test_the_version_is_the_distributions():
    assert C.needle_version().decode() == versions.installed("needle-runtime")


def test_the_numbers_are_those_of_the_header():
    header = (prefix() / "include" / "needle_runtime.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    found = {}
    for body, name in re.findall(
        r"typedef enum \w+ NEEDLE_INT \{(.*?)\} (\w+);", header, re.DOTALL
    ):
        found[name] = re.findall(r"NEEDLE_(\w+)", body)
        assert re.findall(r"= (\d+)", body)[0] == "0"
    assert [name.removeprefix("ERROR_") for name in found["needle_status"]] == [*Status.__members__]
    assert [name.lower() for name in found["needle_dtype"]] == [*DTYPES]
    assert found["needle_kind"] == [*Kind.__members__]
    declared = set(re.findall(r"NEEDLE_API [\w *]*?\bneedle_(\w+)\(", header))
    from tests.needle_runtime.capi.library import SIGNATURES

    assert declared == set(SIGNATURES)


def test_dtypes_have_numpys_names_and_sizes():
    for number, name in enumerate(DTYPES):
        assert C.needle_dtype_name(number).decode() == name
        assert C.needle_dtype_size(number) == numpy_dtype(number).itemsize
    for number in (-1, len(DTYPES), 2**31 - 1):
        assert C.needle_dtype_name(number) is None and C.needle_dtype_size(number) == 0


@pytest.mark.parametrize("name", MODELS)
def test_descriptions_are_pythons(models, name):
    ours, theirs = Program(models / name), needle_runtime.load(models / name)
    for kind, described in ((Kind.INPUTS, theirs.inputs), (Kind.WEIGHTS, theirs.params)):
        assert [*ours.arrays(kind)] == [
            (
                each["name"],
                each["dtype"],
                tuple(n if isinstance(n, int) else -1 for n in each["shape"]),
            )
            for each in described
        ]
    assert [name for name, *_ in ours.arrays(Kind.OUTPUTS)] == [
        f"output.{number}" for number in range(len(theirs.outputs))
    ]
    assert [*ours.arrays(Kind.STATE)] == []


def test_names_are_found_in_their_kind(mlp):
    index = ctypes.c_size_t()
    for number, (name, *_) in enumerate(mlp.arrays(Kind.WEIGHTS)):
        check(C.needle_find(mlp.handle, Kind.WEIGHTS, name.encode(), byref(index)))
        assert index.value == number
    with pytest.raises(Failed, match=r"^no output is named 'x'; there are 'output\.0'$") as raised:
        check(C.needle_find(mlp.handle, Kind.OUTPUTS, b"x", byref(index)))
    assert raised.value.status == Status.INPUT


@pytest.mark.parametrize("name", MODELS)
def test_results_have_pythons_bits(models, name):
    ours, theirs = Program(models / name), needle_runtime.load(models / name)
    call = Call(ours)
    for seed in range(3):
        inputs = [*inputs_of(ours, seed)]
        results = theirs(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        found = call.on(*inputs)
        assert len(found) == len(results)
        for ours_, theirs_ in zip(found, results, strict=True):
            assert (ours_.dtype, ours_.shape) == (theirs_.dtype, theirs_.shape)
            assert ours_.tobytes() == theirs_.tobytes()


@pytest.mark.parametrize(
    "dtype", [name for name in DTYPES if name not in ("bool", "uint16", "uint32", "uint64")]
)
def test_each_dtype(models, dtype):
    program = Program(models / f"dtype-{dtype}")
    x = np.arange(1, 7).reshape(2, 3).astype(numpy_dtype(DTYPES.index(dtype)))
    (y,) = program(x)
    assert y.dtype == x.dtype and (y == x + x).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8, 32, 60])
def test_memory_at_any_address(models, name, offset):
    program = Program(models / name)
    inputs = [*inputs_of(program)]
    expected = program(*inputs)
    call, names = Call(program), [each for each, *_ in program.arrays(Kind.OUTPUTS)]
    for (each, *_), array in zip(program.arrays(Kind.INPUTS), inputs, strict=True):
        call.input(each, at_offset(array, offset), array.shape)
    memory = [at_offset(np.full_like(each, 7), offset) for each in expected]
    for each, array in zip(names, memory, strict=True):
        call.output(each, array)
    for _ in range(2):
        call.run()
        for each, array, wanted in zip(names, memory, expected, strict=True):
            assert array.tobytes() == wanted.tobytes()
            assert call.result(each).ctypes.data == array.ctypes.data


def test_runs_read_the_elements_of_their_time(mlp):
    call, (x,) = Call(mlp), inputs_of(mlp)
    x = at_offset(x, 0).view(np.float32).reshape(x.shape)
    call.on(x)
    x += 1
    (expected,) = mlp(x.copy())
    call.run()
    assert (call.result("output.0") == expected).all()


def test_outputs_return_to_the_calls_memory(mlp):
    call, (x,) = Call(mlp), inputs_of(mlp)
    memory = np.zeros((4, 5), np.float32)
    call.output("output.0", memory)
    (first,) = call.on(x)
    assert (memory == first).all()
    call.output("output.0", None)
    memory[:] = 7
    (again,) = call.on(x)
    assert (again == first).all() and (memory == 7).all()
    assert call.result("output.0").ctypes.data != memory.ctypes.data


def test_calls_of_one_program_are_apart(growing):
    one, two = Call(growing), Call(growing)
    x, y = (np.full((n, 16), n, np.float32) for n in (2, 5))
    (kept,) = one.on(x)
    two.on(y)
    assert (one.result("output.0") == kept).all()
    assert two.result("output.0").shape == (5, 5)


def test_open_sizes_change_from_call_to_call(models, growing):
    theirs, call = needle_runtime.load(models / "open"), Call(growing)
    for rows in (1, 64, 2, 33, 64, 1, 7):
        x = np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)
        (found,) = call.on(x)
        assert found.tobytes() == theirs(x).tobytes()


REFUSED = {
    "too many": (65, 16),
    "none": (0, 16),
    "a closed size": (3, 15),
    "axes": (3, 16, 1),
    "no axes": (),
}


@pytest.mark.parametrize("shape", REFUSED.values(), ids=REFUSED)
def test_wrong_sizes_are_refused_in_pythons_words(models, growing, shape):
    x = np.zeros(shape, np.float32)
    with pytest.raises(InputError) as theirs:
        needle_runtime.load(models / "open")(x)
    with pytest.raises(Failed) as ours:
        growing(x)
    assert (ours.value.status, str(ours.value)) == (Status.INPUT, str(theirs.value))


@pytest.mark.parametrize("wrong", [-8, 7, -(2**63), 2**63 - 1])
def test_indices_are_checked(models, wrong):
    program, theirs = Program(models / "tied"), needle_runtime.load(models / "tied")
    call, x = Call(program), np.arange(6)
    (kept,) = call.on(x)
    x[3] = wrong
    with pytest.raises(InputError) as expected:
        theirs(x)
    with pytest.raises(Failed) as found:
        call.on(x)
    assert (found.value.status, str(found.value)) == (Status.INPUT, str(expected.value))
    assert (call.result("output.0") == kept).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_an_index_or_not(models, dtype):
    """The result for each of the 65,536 patterns of bits is a class of 7, or a refusal."""
    program = Program(models / f"classes-{dtype}")
    halves = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(DTYPES.index(dtype)))
    wide = halves.astype(np.float32)
    valid = (wide > -1) & (wide < 7)  # they are truncated towards zero; NaN is neither
    call, x = Call(program), halves[:1].copy()
    call.input("numbers", x)
    found = []
    for each in halves:
        x[0] = each
        found.append(C.needle_run(call.handle))
    assert (np.array(found) == np.where(valid, Status.OK, Status.INPUT)).all()


def test_a_failed_run_leaves_the_last_result(growing):
    """Its shape too: a larger one would have the caller read past the memory."""
    call, small, large = Call(growing), np.ones((2, 16), np.float32), np.ones((60, 16), np.float32)
    (kept,) = call.on(small)
    call.input("x", large)
    call.output("output.0", np.zeros((3, 5), np.float32))
    with pytest.raises(Failed, match=r"is float32\(60, 5\), which has 1200 bytes, and .* 60$"):
        call.run()
    assert call.result("output.0").shape == (2, 5)
    assert (call.result("output.0") == kept).all()
    call.output("output.0", None)
    call.run()
    assert call.result("output.0").shape == (60, 5)


def test_memory_that_overlaps_is_refused(models):
    memory = np.zeros(64, np.float32)
    a, b = memory[:12].reshape(3, 4), memory[16:24].reshape(4, 2)
    for outputs, match in [
        ({"output.0": memory[11:17]}, "^output 'output.0' overlaps input 'a'$"),
        ({"output.2": memory[23:31]}, "^output 'output.2' overlaps input 'b'$"),
        (
            {"output.0": memory[32:38], "output.2": memory[37:45]},
            "^output 'output.2' overlaps output 'output.0'$",
        ),
    ]:
        call = Call(Program(models / "pair"))
        for name, array in outputs.items():
            call.output(name, array)
        with pytest.raises(Failed, match=match) as raised:
            call.on(a, b)
        assert raised.value.status == Status.INPUT and not memory.any()
    call = Call(Program(models / "pair"))
    call.output("output.0", memory[32:38])  # they may touch
    call.output("output.2", memory[38:46])
    call.on(a, b)


def test_wrong_amounts_of_memory_are_refused(mlp):
    call, (x,) = Call(mlp), inputs_of(mlp)
    with pytest.raises(Failed, match=r"^input 'x' was not set$"):
        call.run()
    with pytest.raises(Failed, match=r"^output 'output.0': nothing has been run yet$"):
        call.result("output.0")
    (kept,) = call.on(x)
    for array, match in [
        (x[:3], r"float32\(4, 16\) has 256 bytes, and the memory given has 192"),
        (np.zeros((5, 16), np.float32), "and the memory given has 320"),
    ]:
        with pytest.raises(Failed, match=match):
            call.input("x", array, None)
        with pytest.raises(Failed, match="which has 80 bytes"):
            call.output("output.0", array)
    call.run()
    assert (call.result("output.0") == kept).all()


def test_shapes_are_needed_for_open_sizes(growing):
    x = np.zeros((3, 16), np.float32)
    with pytest.raises(Failed, match="sizes that may differ from call to call: pass its shape"):
        Call(growing).input("x", x, None)
    with pytest.raises(Failed, match=r"has 0 bytes|is float32"):
        Call(growing).input("x", x, (2**62, 16))
    with pytest.raises(Failed):
        Call(growing).input("x", x, (-3, 16))


def test_null_pointers_are_refused(models, mlp):
    call, (x,) = Call(mlp), inputs_of(mlp)
    data, size, index, found = x.ctypes.data_as(c_void_p), x.nbytes, ctypes.c_size_t(), c_void_p()
    path, array = bytes(models / "mlp"), Array()
    step = [
        (C.needle_open, (path, None, None)),
        (C.needle_open, (None, None, byref(found))),
        (C.needle_describe, (None, 0, 0, byref(array))),
        (C.needle_describe, (mlp.handle, 0, 0, None)),
        (C.needle_find, (None, 0, b"x", byref(index))),
        (C.needle_find, (mlp.handle, 0, None, byref(index))),
        (C.needle_find, (mlp.handle, 0, b"x", None)),
        (C.needle_load_weights, (None, path)),
        (C.needle_load_weights, (mlp.handle, None)),
        (C.needle_set_weights, (None, None, 0)),
        (C.needle_set_weights, (mlp.handle, None, 1)),
        (C.needle_save_state, (None, path)),
        (C.needle_save_state, (mlp.handle, None)),
        (C.needle_load_state, (None, path)),
        (C.needle_load_state, (mlp.handle, None)),
        (C.needle_get_state, (None, b"x", data, size)),
        (C.needle_get_state, (mlp.handle, None, data, size)),
        (C.needle_get_state, (mlp.handle, b"x", None, size)),
        (C.needle_set_state, (None, None, 0)),
        (C.needle_set_state, (mlp.handle, None, 1)),
        (C.needle_new_call, (None, byref(found))),
        (C.needle_new_call, (mlp.handle, None)),
        (C.needle_set_input, (None, b"x", data, size, None, 0)),
        (C.needle_set_input, (call.handle, None, data, size, None, 0)),
        (C.needle_set_input, (call.handle, b"x", None, size, None, 0)),
        (C.needle_set_input, (call.handle, b"x", data, size, None, 2)),
        (C.needle_set_input, (call.handle, b"x", data, size, extents((4, 16)), -1)),
        (C.needle_set_output, (None, b"output.0", None, 0)),
        (C.needle_set_output, (call.handle, None, None, 0)),
        (C.needle_run, (None,)),
        (C.needle_output, (None, b"output.0", byref(array))),
        (C.needle_output, (call.handle, None, byref(array))),
        (C.needle_output, (call.handle, b"output.0", None)),
    ]
    for function, arguments in step:
        assert function(*arguments) == Status.USAGE, (function.__name__, arguments)
        assert "a null pointer" in error() or "ndim is negative" in error()
    assert not found.value
    assert C.needle_count(None, 0) == 0
    C.needle_close(None)
    C.needle_free_call(None)


def test_numbers_out_of_range_are_refused(models, mlp):
    array, opened = Array(), c_void_p()
    for kind in (-1, 4):
        assert C.needle_count(mlp.handle, kind) == 0
        assert C.needle_describe(mlp.handle, kind, 0, byref(array)) == Status.USAGE
    assert C.needle_describe(mlp.handle, Kind.INPUTS, 1, byref(array)) == Status.USAGE
    assert error() == "index 1: there are 1 arrays of that kind"
    for options, match in [(Options(8, None, 0), "sizeof"), (Options(24, None, -1), "threads")]:
        assert C.needle_open(bytes(models / "mlp"), byref(options), byref(opened)) == Status.USAGE
        assert match in error() and not opened.value


def test_errors_belong_to_their_thread(mlp):
    with pytest.raises(Failed):
        Call(mlp).run()
    here, there = error(), []

    def fail():
        there.append(error())
        C.needle_run(None)
        there.append(error())

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert there == ["", "call: a null pointer"] and error() == here == "input 'x' was not set"


def test_the_reason_is_one_line(models):
    with pytest.raises(Failed) as raised:
        Program(models / "no\nsuch\x1b[2Jfolder")
    assert str(raised.value).isprintable() and "no?such?[2Jfolder: no artifact" in str(raised.value)
