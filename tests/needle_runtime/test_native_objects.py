"""tvm_ffi's objects in the native module, beside those of tvm_ffi's own package."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

import needle_tvm
from needle_runtime._tvm.ffi import load_ffi, native
from needle_runtime.artifact.bfloat16 import dlpack_type
from tests.needle_tvm.conftest import make_mlp, tensor

DTYPES = [np.dtype(each) for each in (*"?bhiqBHIQefd", ml_dtypes.bfloat16)]


def wrapped(array):
    return native().tensor(array, array.shape, *dlpack_type(array.dtype))


@pytest.fixture(scope="module")
def identity():
    """A Python function as TVM sees it, called through an Object."""
    function = load_ffi().convert(lambda x: x)
    load_ffi().register_global_func("needle.tests.identity", function, override=True)
    yield native().global_function("needle.tests.identity")
    load_ffi().registry.remove_global_func("needle.tests.identity")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_are_those_of_tvm_ffi(dtype):
    theirs = load_ffi().dtype(str(dtype))
    assert dlpack_type(dtype) == (theirs.type_code, theirs.bits)
    array = np.arange(6).reshape(2, 3).astype(dtype)
    ours = wrapped(array)
    assert (ours.dtype, ours.shape) == (str(theirs), (2, 3))
    found = ours.array(dtype)
    assert found.dtype == dtype and found.tobytes() == array.tobytes()
    assert np.shares_memory(found, array) and ours.data_ptr() == array.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (2, 3, 4)])
def test_shapes_come_back(shape, identity):
    array = np.random.default_rng(0).random(shape)
    for each in (wrapped(array), identity(wrapped(array)), identity(load_ffi().from_dlpack(array))):
        assert each.shape == shape
        np.testing.assert_array_equal(each.array(array.dtype), array)
        np.testing.assert_array_equal(np.from_dlpack(each), array)


@pytest.mark.parametrize(
    "value", [None, True, False, 0, -(2**63), 2**63 - 1, 0.5, "", "grüße", "x" * 1000, [], [1, "a"]]
)
def test_values_come_back(value, identity):
    found = identity(value)
    assert found == value and type(found) is type(value)


def test_the_memory_is_kept_as_long_as_anything_reads_it(identity):
    class Owner(np.ndarray):
        pass

    array = np.arange(5.0).view(Owner)
    gone, ours = weakref.ref(array), identity(wrapped(array))
    del array
    gc.collect()
    view = ours.array(np.dtype(float))
    del ours
    gc.collect()
    assert gone() is not None and list(view) == [0, 1, 2, 3, 4]
    del view
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "error",
    [ValueError("a\nb"), KeyError("k"), StopIteration("s"), OSError("o"), KeyboardInterrupt()],
)
def test_errors_are_those_of_tvm_ffi(error):
    def fail():
        raise error

    function = load_ffi().convert(fail)
    load_ffi().register_global_func("needle.tests.fail", function, override=True)
    with pytest.raises(BaseException) as theirs:
        function()
    with pytest.raises(BaseException) as ours:
        native().global_function("needle.tests.fail")()
    assert ours.type is theirs.type and str(ours.value) == str(theirs.value)


def test_it_refuses_what_it_cannot_use(identity):
    array = np.zeros((2, 3))
    for arguments in (
        ((2, 3), 2, 32),
        ((3,), 2, 64),
        ((-1,), 2, 64),
        ((2**62, 2**62), 2, 64),
        ((2, 3), -1, 64),
        ((2, 3), 2, 300),
        ("a", 2, 64),
    ):
        with pytest.raises((TypeError, ValueError)):
            native().tensor(array, *arguments)
    with pytest.raises((TypeError, ValueError)):
        native().tensor(array.T, (3, 2), 2, 64)
    for call in (
        lambda: wrapped(array).array(np.dtype(np.float32)),
        lambda: wrapped(array)(),
        lambda: wrapped(array)["main"],
        lambda: identity.shape,
        lambda: identity["main"],
        lambda: identity(object()),
        lambda: identity(2**64),
        lambda: native().Object(),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError, OverflowError)):
            call()
    assert native().global_function("needle.tests.nothing") is None


def test_a_model_runs_without_the_package_of_tvm_ffi(tmp_path):
    """It may be imported later, and then reads the same tensors."""
    x = np.ones((2, 8), np.float32)
    needle_tvm.compile(make_mlp(8, 4), tensor(x), stage="fused").export(tmp_path / "mlp")
    script = """
import sys
import numpy as np
import needle_runtime
program = needle_runtime.load(sys.argv[1])
x = np.ones((2, 8), np.float32)
y = program(x)
assert "tvm_ffi" not in sys.modules
import tvm_ffi
(tensor,) = program.executor.call([tvm_ffi.from_dlpack(x)])
assert np.from_dlpack(tensor).tobytes() == y.tobytes() == program(tvm_ffi.from_dlpack(x)).tobytes()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "mlp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
