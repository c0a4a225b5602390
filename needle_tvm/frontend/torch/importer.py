"""TVM's front end for `torch.export` programs, extended to compute in PyTorch's dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import getitem
from typing import Any

from needle.dims import bounds_of
from needle_tvm._tvm.names import IRModule, relax, te, tvm_ffi
from needle_tvm.faults import sentence
from needle_tvm.frontend.extents import Extents
from needle_tvm.frontend.torch import complexes
from needle_tvm.frontend.torch.operands import (
    ARITHMETIC,
    computed_in,
    in_range,
    is_number,
    operator_of,
)
from needle_tvm.frontend.torch.passes.one_spelling import one_spelling
from needle_tvm.frontend.torch.symbols import Symbols


def functional_program(
    program: Any, kept: Iterable[str], taken_apart: Mapping[str, Callable[..., Any]]
) -> Any:
    """A `torch.export` program without in-place writes, made of PyTorch's core operators and those
    in `kept`. The functions in `taken_apart` decompose their operators. Imports PyTorch."""
    import torch

    def operator(name: str) -> Any:
        packet, overload = name.split(".")
        return getattr(getattr(torch.ops.aten, packet), overload)

    table = torch.export.default_decompositions()
    for name, function in taken_apart.items():
        table[operator(name)] = function
    for name in kept:
        table.pop(operator(name), None)
    return _without_assertions(program.run_decompositions(table))


def _without_assertions(program: Any) -> Any:
    """The program without the assertions about tensors, and without what was computed for them
    alone: dtypes are as they were recorded, and compiled code does not check values."""
    import torch

    aten = torch.ops.aten
    of_numbers = (
        aten._assert_scalar.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    )
    of_tensors = (
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_tensor_metadata.default,
    )
    read = aten.item.default, aten._local_scalar_dense.default
    graph = program.graph_module.graph
    values = set[Any]()  # numbers that depend on one that was read from a tensor
    for node in graph.nodes:
        if node.target in read or not values.isdisjoint(node.all_input_nodes):
            values.add(node)
    for node in reversed(graph.nodes):
        if node.target in of_tensors or (node.target in of_numbers and node in values):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return program


def from_exported_program(
    program: Any,
    converters: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    sizes: Symbols | None = None,
    variables: Extents | None = None,
) -> IRModule:
    """The Relax module of a functional program, with weights as parameters of `main`.

    Attribute `num_input` of `main` is the number of inputs among its arguments. `converters`
    translate the operators they are named for. `sizes` are the program's, and `variables` those of
    their dims. Raises ValueError if the front end gives a value another shape or dtype than
    PyTorch, if an operator has no translation, or none for sizes that are not known. Imports
    PyTorch.
    """
    import torch
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    symbols, extents = sizes or Symbols({}), variables or Extents({})

    class Importer(ExportedProgramImporter):
        """Converts in PyTorch's precision and checks each value's type against PyTorch's."""

        def shape(self, tensor: Any) -> tuple[Any, ...]:
            """The extents that a tensor of PyTorch's has in TVM: ints, and expressions."""
            found: tuple[Any, ...] = extents.expressed(symbols.shape(tensor))
            return found

        def product(self, extents_: Iterable[Any]) -> Any:
            """The product of extents of TVM's, in the form that other values have it in."""
            return extents.expressed(math.prod(map(extents.understood, extents_)))

        def added(self, *extents_: Any) -> Any:
            """The sum of extents of TVM's."""
            return extents.expressed(sum(map(extents.understood, extents_)))

        def least(self, extent: Any) -> int:
            """The least value of an extent of TVM's."""
            return bounds_of(extents.understood(extent))[0]

        def number(self, extent: Any) -> Any:
            """An extent of TVM's as a 0-d tensor of int64."""
            if isinstance(extent, int):
                return relax.const(extent, "int64")
            return self.block_builder.emit_te(
                lambda size: te.compute((), lambda: size), extent, primfunc_name_hint="size"
            )

        def create_input_vars(self, program: Any) -> Any:
            constants, inputs, _ = super().create_input_vars(program)
            values = {node.name: node.meta.get("val") for node in program.graph.nodes}
            inputs = {
                name: relax.Var(name, relax.TensorType(self.shape(values[name]), _dtype(each)))
                for name, each in inputs.items()
            }
            return constants, inputs, {dim.name: dim.bounds for dim in symbols.dims}

        def _translate_fx_graph(self, *args: Any, **kwargs: Any) -> Any:
            for name, convert in self.convert_map.items():
                self.convert_map[name] = partial(self._converted, convert)
            return super()._translate_fx_graph(*args, **kwargs)

        def _converted(self, convert: Any, node: Any, *importer: Any) -> Any:
            if _is_size(node, symbols):
                known = node.meta.get("val")
                is_int = isinstance(known, torch.SymInt)  # no assertion, which the guards are for
                return extents.expressed(symbols.size(known)) if is_int else None
            args, kwargs = node.args, node.kwargs
            given = {
                each: self.env[each] for each in node.all_input_nodes if _is_size(each, symbols)
            }
            if not extents and not given:
                return self._tensor(convert, node, *importer)
            try:
                if operator_of(node) in ARITHMETIC:
                    self.env.update({each: self.number(size) for each, size in given.items()})
                else:
                    node.args, node.kwargs = _with_sizes((args, kwargs), given)
                return self._spelt(node, self._tensor(convert, node, *importer))
            except Exception as error:  # converters of TVM's fail in many ways where sizes are open
                raise ValueError(_of_open_sizes(node, symbols, error)) from error
            finally:
                node.args, node.kwargs = args, kwargs
                self.env.update(given)

        def _spelt(self, node: Any, result: Any) -> Any:
            """A tensor with its extents in the form that other values have them in: TVM's passes do
            not see that other forms are equal."""
            known = node.meta.get("val")
            if not hasattr(known, "shape") or isinstance(result, tuple):
                return result
            shape = self.shape(known)
            alike = tvm_ffi.structural_equal(
                result.ty.shape, relax.ShapeExpr(shape), map_free_vars=False
            )
            return result if alike else self.block_builder.emit(relax.op.reshape(result, shape))

        def _tensor(self, convert: Any, node: Any, *importer: Any) -> Any:
            known = node.meta.get("val")
            if complexes.concerns(node):
                return complexes.convert(node, self, lambda: convert(node, *importer))
            if _is_nothing(known):  # without elements there is nothing to loop over
                return self.block_builder.emit(_each(self._zeros, known))
            if _is_constant(node) and known.ndim == 0:  # of numbers alone
                return self.block_builder.emit(_constant(node.target(*node.args, **node.kwargs)))
            first = known[0] if isinstance(known, (tuple, list)) else known
            dtype = str(getattr(first, "dtype", "")).partition(".")[2]
            given = {each: self.env[each] for each in node.all_input_nodes}
            if known is not None and given and all(map(_is_empty, given)):
                return self.block_builder.emit(_of_nothing(node))
            wide = computed_in(node, dtype, [_dtype(expr) for expr in given.values()])
            for each, expr in given.items():
                if wide and _dtype(expr) not in ("", wide):
                    if _dtype(expr) != "bool" or len(given) == 1 or is_number(node, each):
                        cast = relax.op.astype(expr, wide)
                        self.env[each] = self.block_builder.emit(cast)
            args, node.args = node.args, in_range(node, dtype)
            try:
                result = convert(node, *importer)
            finally:
                self.env.update(given)
                node.args = args
            if isinstance(result, (relax.Call, relax.TupleGetItem)):  # TVM's rules ask for Vars
                result = self.block_builder.emit(result)
            if wide and _dtype(result) == wide != dtype and dtype:
                result = self.block_builder.emit(relax.op.astype(result, dtype))
            self._compare(node, known, getattr(result, "ty", None))
            if isinstance(known, (tuple, list)) and _dtype(result) and _parts(node) - {0}:
                raise ValueError(f"{node.target}: TVM's front end gives the first result alone")
            return result

        def _zeros(self, value: Any) -> Any:
            return relax.op.zeros(self.shape(value), str(value.dtype).partition(".")[2])

        def _compare(self, node: Any, known: Any, found: Any) -> None:
            """Raise ValueError if a Relax type differs from PyTorch's type of a node's value. Parts
            of a tuple are compared where they are taken out of it."""
            shape = getattr(getattr(found, "shape", None), "values", None)
            if not hasattr(known, "dtype") or shape is None:
                return
            dtype = str(known.dtype).partition(".")[2]
            if str(found.dtype) != dtype:
                raise _differs(node, "dtype", str(found.dtype), dtype)
            wanted = symbols.shape(known)
            if not extents.are(shape, wanted):
                raise _differs(node, "shape", [*map(extents.understood, shape)], list(wanted))

    several = len(program.graph_signature.user_outputs) > 1
    importer = Importer()
    importer.update_convert_map(dict(converters or {}))
    for node in program.graph.nodes:  # the front end looks each up, and needs none for these
        by_pair = node.op == "call_function" and complexes.concerns(node) and complexes.knows(node)
        if by_pair or _is_size(node, symbols):
            importer.convert_map.setdefault(node.target.__name__, _no_tensor)
        elif _is_constant(node):
            importer.convert_map.setdefault(
                node.target.__name__, partial(_made_now, importer=importer)
            )
    missing = _missing(program, importer.convert_map)
    if missing:
        operators = "operator" if len(missing) == 1 else "operators"
        raise ValueError(f"no translation of the {operators} {', '.join(missing)}")
    try:
        module = importer.from_exported_program(
            program,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=not several,
            no_bind_return_tuple=several,  # so that each is a variable that passes may replace
            custom_convert_map=dict(converters or {}),
        )
    except Exception:
        if importer.block_builder is not None:
            importer.block_builder._end_block()  # or TVM warns of it on the terminal
        raise
    return one_spelling(relax.frontend.detach_params(module)[0], extents)


def _no_tensor(node: Any) -> Any:
    raise ValueError(f"no translation of the operator {node.target}")


def _is_constant(node: Any) -> bool:
    """Whether an operator without operands gives the same tensor at each call (a window, indices of
    a triangle)."""
    import torch

    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    return not node.all_input_nodes and not seeded and hasattr(node.meta.get("val"), "dtype")


def _made_now(node: Any, importer: Any) -> Any:
    """The value of an operator without operands, as a constant."""
    if node.all_input_nodes:
        return _no_tensor(node)
    return importer.block_builder.emit(_constant(node.target(*node.args, **node.kwargs)))


def _is_size(node: Any, symbols: Symbols) -> bool:
    """Whether a node computes with sizes of inputs, or asserts something of them."""
    import torch

    value = node.meta.get("val")
    if node.op != "call_function":
        return False
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return symbols.knows(value)
    if node.target is not torch.ops.aten._assert_scalar.default:
        return False
    what = node.args[0]
    return not isinstance(what, torch.fx.Node) or _is_size(what, symbols)


def _with_sizes(arguments: Any, sizes: Mapping[Any, Any]) -> Any:
    """Arguments with TVM's expressions in the place of nodes of sizes."""
    import torch

    return torch.fx.node.map_arg(arguments, lambda node: sizes.get(node, node))


def _of_open_sizes(node: Any, symbols: Symbols, error: Exception) -> str:
    """What to say of an operator that has no translation for sizes that are not known."""
    shapes = [
        list(map(symbols.size, each.meta["val"].shape))
        for each in node.all_input_nodes
        if hasattr(each.meta.get("val"), "shape")
    ]
    dims = ", ".join(dim.described() for dim in symbols.dims)
    reason = sentence(error)
    if isinstance(error, TypeError) and "Mismatched type" in reason:  # of a call of TVM's
        reason = "TVM takes an argument that is a size here as a number alone"
    return (
        f"{node.target} on {', '.join(map(str, shapes))} has no translation with the dims {dims} "
        f"({reason}): compile it for one size, without the dim"
    )


def _differs(node: Any, what: str, have: Any, want: Any) -> ValueError:
    return ValueError(f"{node.target}: TVM's front end gives {what} {have}, PyTorch {want}")


def _missing(program: Any, known: Mapping[str, Any]) -> list[str]:
    """The unknown operators of a program, in its order."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    missing = [
        node
        for node in nodes
        if node.target.__name__ not in known
        or (complexes.concerns(node) and not complexes.knows(node))
    ]
    effects = "with_effects"  # calls an operator that may raise an error
    targets = [n.args[1] if n.target.__name__ == effects else n.target for n in missing]
    names = [str(t) if hasattr(t, "_schema") else t.__name__ for t in targets]
    return list(dict.fromkeys(names))


def _parts(node: Any) -> set[int]:
    """The indices of the results that are used, for an operator with several."""
    return {user.args[1] for user in node.users if user.target is getitem}


def _is_empty(node: Any) -> bool:
    return _has_zero(getattr(node.meta.get("val"), "shape", ()))


def _has_zero(shape: Iterable[Any]) -> bool:
    return any(type(n) is int and n == 0 for n in shape)  # a question to a SymInt makes a guard


def _of_nothing(node: Any) -> Any:
    """An operator's result for tensors without elements, as a constant."""
    import torch

    def empty(each: Any) -> Any:
        value = each.meta["val"]
        return torch.empty(value.shape, dtype=value.dtype)

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), empty)
    return _each(_constant, node.target(*args, **kwargs))


def _constant(tensor: Any) -> Any:
    dtype = str(tensor.dtype).partition(".")[2]
    if dtype == "bfloat16":  # NumPy does not have it
        return relax.op.astype(relax.const(tensor.float().numpy(), "float32"), dtype)
    return relax.const(tensor.numpy(), dtype)


def _is_nothing(value: Any) -> bool:
    """Whether a tensor, or each tensor of a tuple, has no elements."""
    parts = value if isinstance(value, (tuple, list)) else [value]
    return bool(parts) and all(_has_zero(getattr(part, "shape", ())) for part in parts)


def _each(rule: Callable[[Any], Any], value: Any) -> Any:
    """Apply a rule to a tensor, or to each tensor of a tuple."""
    if isinstance(value, (tuple, list)):
        return relax.Tuple([rule(part) for part in value])
    return rule(value)


def _dtype(expr: Any) -> str:
    return str(getattr(getattr(expr, "ty", None), "dtype", ""))
