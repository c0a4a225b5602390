"""Results that no caller can change the model through."""

import numpy as np

from needle_tvm._tvm.names import TensorType, relax, te
from needle_tvm.graph.passes.own_outputs import own_outputs
from tests.needle_tvm.modules import Spec, check_becomes, check_stays, emit, relax_module

ROW = Spec(3)
exp = relax.op.exp
NUMBERS = np.arange(6, dtype="int32").reshape(2, 3)


def constant():
    return relax.const(NUMBERS, "int32")


def copied(source):
    """A kernel's copy, which the pass puts behind the dataflow block."""
    x = te.placeholder([int(n) for n in source.ty.shape.values], str(source.ty.dtype), "x")
    copy = te.compute(x.shape, lambda *i: x(*i), "copy")
    builder = relax.BlockBuilder.current()
    function = te.create_prim_func([x, copy]).without_attr("global_symbol")
    variable = builder.add_func(function, "copy")
    return builder.emit(relax.call_tir(variable, [source], out_ty=source.ty))


def module(inside, behind, params):
    """`behind` gives the results, of what `inside` gives out of a dataflow block, of (x, w)."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(name, TensorType((3,), "float32")) for name in "xw"]
    with builder.function("main", arguments, {"num_input": 2 - params}):
        with builder.dataflow():
            outputs = [builder.emit_output(each) for each in inside(*arguments)]
        builder.emit_func_output(behind(*arguments, *outputs))
    return builder.get()


def becomes(before, inside, behind, params=1):
    check_becomes(
        own_outputs,
        relax_module(before, ROW, ROW, params=params),
        module(inside, behind, params),
    )


def test_an_argument():
    for number in (0, 1):
        becomes(
            lambda *v, n=number: (v[n], exp(v[0])),
            lambda x, w: [exp(x)],
            lambda *v, n=number: relax.Tuple([copied(v[n]), v[2]]),
        )


def test_one_result_alone():
    becomes(lambda x, w: x, lambda x, w: [], lambda x, w: copied(x))
    for result in (exp, lambda w: emit(exp(w))):
        becomes(lambda x, w, f=result: f(w), lambda x, w: [exp(w)], lambda x, w, y: copied(y))


def test_a_constant():
    becomes(lambda x, w: constant(), lambda x, w: [], lambda x, w: copied(constant()))


def test_work_on_parameters():
    becomes(
        lambda x, w: (exp(exp(w)), exp(x)),
        lambda x, w: [exp(exp(w)), exp(x)],
        lambda x, w, y, z: relax.Tuple([copied(y), z]),
    )


def test_the_same_argument_twice():
    becomes(
        lambda x, w: (x, x),
        lambda x, w: [],
        lambda x, w: relax.Tuple([copied(x), copied(x)]),
    )


def test_the_same_result_twice():
    def before(x, w):
        y = emit(exp(x))
        return y, y, x + w, y

    becomes(
        before,
        lambda x, w: [exp(x), x + w],
        lambda x, w, y, z: relax.Tuple([y, copied(y), z, copied(y)]),
    )


def test_what_a_call_makes_stays():
    check_stays(own_outputs, relax_module(lambda x, w: (exp(x), x + w), ROW, ROW, params=1))
    check_stays(own_outputs, relax_module(lambda x, w: (exp(x), exp(w)), ROW, ROW, params=0))
    check_stays(own_outputs, relax_module(lambda x, w: exp(w), ROW, ROW, params=None))


def test_what_a_call_makes_behind_the_blocks_stays():
    """The copies of the pass itself, which runs twice."""
    once = own_outputs(relax_module(lambda x, w: (x, exp(w), constant()), ROW, ROW, params=1), None)
    check_stays(own_outputs, once)


def test_names_of_names():
    def before(x, w):
        builder = relax.BlockBuilder.current()
        return builder.emit(builder.emit(x)), exp(x)

    becomes(
        before,
        lambda x, w: [exp(x)],
        lambda x, w, y: relax.Tuple([copied(x), y]),
    )


def test_a_tuple_that_has_a_name():
    """As CanonicalizeBindings leaves none, but FoldConstant may."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", TensorType((3,), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(exp(x))
            both = builder.emit_output(relax.Tuple([x, y]))
        builder.emit_func_output(both)
    found = own_outputs(builder.get(), None)
    returned = found["main"].body.body
    assert isinstance(returned, relax.Tuple) and not returned.fields[0].same_as(x)
