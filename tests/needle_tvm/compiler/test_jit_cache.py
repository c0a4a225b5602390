"""The compiled code that a `jit` function keeps, in one thread and in several."""

import copy
import gc
import inspect
import pickle
import sys
import threading
import warnings
from pathlib import Path

import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle_tvm.compiler import jit as module
from needle_tvm.errors import RecompilationWarning
from tests.needle_tvm.compiler.jitted import compilations, ones, plain


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
        RecompilationWarning, match=r"<lambda>: compiled 3 times, .*2 signatures are kept.*shape"
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
