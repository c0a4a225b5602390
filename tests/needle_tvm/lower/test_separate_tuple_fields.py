"""Fields of tuples that FuseOps takes into no group."""

from needle_tvm._tvm.names import TensorType, relax, structural_equal
from needle_tvm.lower.separate_tuple_fields import separate_tuple_fields
from tests.needle_tvm.modules import AVX512, Spec, check_stays, emit, relax_module


def halves(bound):
    """The sum of both fields of a tuple, each bound by what `bound` makes of it."""

    def function(x):
        both = emit(relax.op.split(x, 2))
        return relax.op.add(*(emit(bound(relax.TupleGetItem(both, n))) for n in range(2)))

    return relax_module(function, Spec(8))


def test_fields_are_bound_by_a_match_cast():
    builder = relax.BlockBuilder()
    x = relax.Var("x", TensorType((8,), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            both = builder.emit(relax.op.split(x, 2))
            fields = [
                builder.match_cast(relax.TupleGetItem(both, n), TensorType((4,), "float32"))
                for n in range(2)
            ]
            result = builder.emit_output(relax.op.add(*fields))
        builder.emit_func_output(result)
    found = separate_tuple_fields(halves(lambda field: field), AVX512)
    assert structural_equal(found, builder.get()), found.script()


def test_what_is_no_field_stays():
    check_stays(separate_tuple_fields, relax_module(lambda x: relax.op.exp(x), Spec(8)))
