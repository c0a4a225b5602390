"""Which functions are marked to be captured as one CUDA graph."""

from functools import partial

import pytest

from needle_tvm._tvm.names import Schedule, TensorType, relax, te, tirx
from needle_tvm.lower.cuda_graph import add_graph_functions, cuda_graph, is_marked, mark
from tests.needle_tvm.modules import (
    SM_90,
    Spec,
    check_becomes,
    check_stays,
    emit,
    kernel,
    relax_module,
)

SMALL = Spec(4, 8)


def doubled(x):
    return te.compute(x.shape, lambda *i: x(*i) + x(*i), "doubled")


def chain(x, count=4, step=doubled):
    for number in range(count):
        x = kernel(step, x, name=f"step{number}")
    return x


def marked(module):
    module = module.clone()
    module["main"] = module["main"].with_attr("needle.cuda_graph", True)
    return module


def is_captured(function, *specs, graph_pass=cuda_graph, params=0):
    before = relax_module(function, *specs, params=params)
    check_becomes(graph_pass, before, marked(before), SM_90)


def stays(function, *specs, graph_pass=cuda_graph, params=0):
    check_stays(graph_pass, relax_module(function, *specs, params=params), SM_90)


def of_any_worth(module, target):
    return mark(module)


def test_four_kernels_pay_and_three_do_not():
    """3 us a kernel; 6 for a graph, 2 each for a small input and a small result."""
    is_captured(chain, SMALL)
    stays(partial(chain, count=3), SMALL)
    is_captured(partial(chain, count=3), SMALL, graph_pass=of_any_worth)


def test_each_input_and_result_is_copied():
    def results(count):
        return lambda x: tuple(chain(x, 1) for _ in range(count))

    # 3 * 8 > 6 + 2 * 9 is none more: results of one kernel each never pay by far.
    stays(results(8), SMALL)
    is_captured(results(9), SMALL)
    stays(lambda x, y: chain(x), SMALL, SMALL)
    is_captured(lambda x, y: chain(x, 5), SMALL, SMALL)


def test_parameters_are_not_copied():
    is_captured(lambda x, y: chain(x), SMALL, SMALL, params=1)


def test_large_inputs_cost_more_than_few_kernels_save():
    """At 0.5 MB a microsecond: 2 us more than is left are 1 MB; results count as well."""

    def first(x):
        return kernel(lambda x: te.compute((8,), lambda i: x[i] + x[i]), x, name="first")

    # Five kernels save 15 us; a graph and two copies take 10.
    for elements, captured in ((620_000, is_captured), (630_000, stays)):
        captured(lambda x: chain(first(x)), Spec(elements))
    for elements, captured in ((310_000, is_captured), (320_000, stays)):
        captured(lambda x: chain(first(x)), Spec(elements, dtype="float64"))


def library(x):
    result = TensorType((4, 8), "float32")
    return emit(relax.op.call_dps_packed("f", relax.Tuple([x]), out_ty=result))


def test_external_functions_views_and_tuples_are_steps():
    def function(x):
        x = emit(relax.op.reshape(chain(library(x), 3), (8, 4)))
        both = emit(relax.Tuple([x, x]))
        return emit(relax.TupleGetItem(both, 1)), relax.const(1.0)

    before = relax_module(lambda x: chain(library(x), 3), SMALL)
    check_becomes(cuda_graph, before, marked(before), SM_90)
    is_captured(function, SMALL, graph_pass=of_any_worth)


def test_what_the_host_computes_is_not_captured():
    stays(lambda x: chain(relax.op.exp(chain(x))), SMALL, graph_pass=of_any_worth)


def test_shapes_that_are_not_static():
    n = tirx.Var("n", "int64")
    stays(lambda x: chain(x, 9), Spec(n, 8))
    stays(lambda x: chain(x, 9), Spec(n, 8), graph_pass=of_any_worth)
    for graph_pass in (cuda_graph, of_any_worth):  # of an argument that no kernel reads
        stays(lambda x, y: chain(x, 9), SMALL, Spec(n, 8), graph_pass=graph_pass)


def in_two_steps(x):
    inner = te.compute(x.shape, lambda *i: x(*i) + x(*i), "inner")
    return te.compute(x.shape, lambda *i: inner(*i) * inner(*i), "outer")


@pytest.mark.parametrize(("between", "captured"), [("global", False), ("shared", True)])
def test_memory_that_a_kernel_takes_for_itself(between, captured):
    """Of a buffer in between that is global: one in shared memory is a block's own."""

    before = relax_module(lambda x: chain(x, step=in_two_steps), SMALL)
    if between == "shared":
        for variable, function in list(before.functions_items()):
            if not isinstance(function, relax.Function):
                sch = Schedule(function)
                sch.set_scope(sch.get_sblock("inner"), 0, "shared")
                before[variable] = sch.mod["main"]
    for graph_pass in (cuda_graph, of_any_worth):
        expected = marked(before) if captured else before
        check_becomes(graph_pass, before, expected, SM_90)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_one_of_several_kernels_takes_memory_for_itself(place):
    def function(x):
        x = kernel(in_two_steps, chain(x, place), name="taking")
        return chain(x, 4 - place)

    for graph_pass in (cuda_graph, of_any_worth):
        stays(function, SMALL, graph_pass=graph_pass)


def test_what_is_not_marked_has_no_functions_for_a_graph():
    module = relax_module(chain, SMALL)
    assert not is_marked(module)
    assert add_graph_functions(module).same_as(module)
    assert is_marked(marked(module))
