"""Reads of elements near each other become reads of whole vectors and shuffles."""

import numpy as np
import pytest

from needle_tvm._tvm.names import Schedule, te, tirx, tvm
from needle_tvm.lower.libraries import generated_source
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import module_of

N = 96  # elements of results
TARGET = {"kind": "llvm", "mcpu": "skylake-avx512"}


def built(place, count, dtype="float32", lanes=16, target="cpu"):
    """y[i] = x[place(i)] of `count` elements x, in vectors."""
    x = te.placeholder((count,), dtype, name="x")
    y = te.compute((N,), lambda i: x[place(i)], name="y")
    sch = Schedule(module_of(te.create_prim_func([x, y])))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, lanes])[1])
    return tvm.compile(sch.mod, target=resolve(target, 1).to_tvm())


NEAR = {
    "repeated": (lambda i: i // 2, N // 2),
    "repeated, moved on": (lambda i: (i + 1) // 2, N // 2 + 1),
    "repeated four times": (lambda i: i // 4 + 3, N // 4 + 3),
    "of a stride": (lambda i: 2 * i + 1, 2 * N),
    "of a stride of 4": (lambda i: 4 * i, 4 * N),
    "in reverse": (lambda i: N - 1 - i, N),
    "in reverse, of a stride": (lambda i: 2 * N - 1 - 2 * i, 2 * N),
    "in turns": (lambda i: i // 8 * 8 + (i + 3) % 8, N),
    "swapped": (lambda i: i + 1 - i % 2 * 2, N),
}
FAR = {
    "of a stride of 9": (lambda i: 9 * i, 9 * N),
    "repeated three times": (lambda i: i // 3, N // 3),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_elements_are_those_asked_for(dtype):
    for name, (place, count) in {**NEAR, **FAR}.items():
        x = np.arange(count).astype(dtype)
        given, found = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(N, dtype))
        built(place, count, dtype)["main"](given, found)
        expected = x[[int(place(i)) for i in range(N)]]
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)


@pytest.mark.parametrize("name", NEAR)
def test_no_element_is_read_alone(name):
    source = generated_source(built(*NEAR[name], target=TARGET), "ll")
    assert "insertelement" not in source.replace("insertelement <16 x i1>", "")
    assert "shufflevector" in source or "reverse" in source


def test_extents_and_places_may_be_unknown():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((2 * n,), lambda i: x[i // 2], name="y")
    sch = Schedule(module_of(te.create_prim_func([x, y])))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, 8])[1])
    code = tvm.compile(sch.mod, target=resolve("cpu", 1).to_tvm())
    for count in (1, 4, 9):
        given = tvm.runtime.tensor(np.arange(count, dtype="float32"))
        found = tvm.runtime.tensor(np.zeros(2 * count, "float32"))
        code["main"](given, found)
        np.testing.assert_array_equal(found.numpy(), np.arange(count).repeat(2))
