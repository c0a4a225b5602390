"""The pass that adds `main_into`, by example, and what keeps it from doing so."""

import pytest

from needle_tvm._tvm.names import IRModule, structural_equal, tvm
from needle_tvm.lower.caller_memory import INTO, add_into

HEAD = """
@I.ir_module
class Module:
    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 3), "float32")):
        for i, j in T.grid(2, 3):
            with T.sblock("b"):
                v, w = T.axis.remap("SS", [i, j])
                b[v, w] = a[v, w] * T.float32(2)

    @R.function
    def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((2, 3), "float32")):
        R.func_attr({"num_input": 1, "relax.force_pure": True})
        cls = Module
        first = R.builtin.alloc_tensor(R.shape([2, 3]), R.dtype("float32"), 0, "global")
        cls.double(x, first)
        second = R.builtin.alloc_tensor(R.shape([2, 3]), R.dtype("float32"), 0, "global")
        cls.double(w, second)
        renamed = second
        row = R.reshape(renamed, R.shape([6]))
        both = (first, row)
"""

INTO_TEXT = """
    @R.function
    def main_into(
        x: R.Tensor((2, 3), "float32"),
        out0: R.Tensor((2, 3), "float32"),
        out1: R.Tensor((6,), "float32"),
        w: R.Tensor((2, 3), "float32"),
    ):
        R.func_attr({"num_input": 3, "relax.force_pure": True})
        cls = Module
        first = out0
        cls.double(x, first)
        second = R.reshape(out1, R.shape([2, 3]))
        cls.double(w, second)
        renamed = second
        row = R.reshape(renamed, R.shape([6]))
        both = (first, row)
        return both
"""


def module(body: str) -> IRModule:
    return tvm.script.from_source(HEAD + body, check_well_formed=False)


def test_results_become_arguments_and_main_stays():
    before = module("        return both\n")
    after = add_into(before)
    assert structural_equal(after["main"], before["main"])
    expected = module("        return both\n" + INTO_TEXT)[INTO]
    tvm.ir.assert_structural_equal(after[INTO], expected, map_free_vars=True)


@pytest.mark.parametrize("result", ["(first, row)", "first", "row", "both[1]"])
def test_results_by_themselves_and_behind_names(result):
    after = add_into(module(f"        result = {result}\n        return result\n"))
    outputs = 2 if result == "(first, row)" else 1
    assert [each.name for each in after[INTO].params] == (
        ["x", "out0", "out1", "w"] if outputs == 2 else ["x", "out0", "w"]
    )


@pytest.mark.parametrize(
    "result",
    ["(first, first)", "(row, second)", "x", "(first, w)", "R.const(1.0)", "R.add(first, x)"],
    ids=["twice", "two views", "an input", "a parameter", "a constant", "another op's"],
)
def test_results_without_an_allocation_of_their_own(result):
    before = module(f"        result = {result}\n        return result\n")
    after = add_into(before)
    assert structural_equal(after, before)
