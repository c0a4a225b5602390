"""Collects the kernels in the scheduled module of a loop's or choice's body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from needle_tvm._tvm.names import Constant, IRModule, PrimFunc, Target, relax, tvm
from needle_tvm.errors import TranslationError
from needle_tvm.graph.dependence import is_op
from needle_tvm.lower.region import Kernel, Region
from needle_tvm.tir import nests, regions
from needle_tvm.tir.extents import bounds_of
from needle_tvm.tir.functions import NODES


@dataclass
class Body:
    """The kernel calls of a lowered body's `main`. Keys name the values that they read and
    write."""

    parameters: list[Any]
    region: Region
    results: list[Any] = field(default_factory=list)  # keys of the body's results
    operands: list[Any] = field(default_factory=list)  # keys that kernels read or write
    made: set[Any] = field(default_factory=set)  # keys that kernels write

    def constants(self, known: Collection[Any], ends: Iterable[Any]) -> list[Any]:
        """Return the keys that kernels read and the keys in `ends`, except keys that kernels write
        and keys in `known`."""
        used = dict.fromkeys([*self.operands, *ends])
        return [key for key in used if key not in known and key not in self.made]


def body_of(module: IRModule, target: Target, add: Callable[[PrimFunc], Any]) -> Body:
    """Return the kernel calls in the scheduled module of a body. `add` adds to the caller's
    module the functions that kernels call. Raises TranslationError if the body does
    anything other than call kernels."""
    main = module["main"]
    body = Body(list(main.params), Region(bounds_of(main)))
    source: dict[Any, Any] = {}  # a variable -> the key of the value that it names or views
    parts: dict[Any, list[Any]] = {}  # the keys of a tuple's parts
    lowered: dict[Any, PrimFunc] = {}

    def key(value: Any) -> Any:
        return source.get(value, value)

    for block in main.body.blocks:
        for binding in block.bindings:
            value, var = binding.value, binding.var
            if is_op(value, "relax.reshape"):
                source[var] = key(value.args[0])
            elif isinstance(value, (relax.Var, Constant)):
                source[var] = key(value)
                parts[var] = parts.get(value, [])
            elif isinstance(value, relax.Tuple):
                parts[var] = [key(each) for each in value.fields]
            elif isinstance(value, relax.TupleGetItem):
                source[var] = parts[value.tuple_value][value.index]
            elif is_op(value, "relax.call_tir"):
                function = module[value.args[0]]
                if value.args[0] not in lowered:
                    alone = regions.lowered(function, target)
                    alone = with_tasks(alone, module, add)
                    lowered[value.args[0]] = regions.from_the_start(alone)
                kernel = Kernel.of(function, lowered[value.args[0]], value)
                if kernel is None:
                    if regions.may_fail(lowered[value.args[0]].body):
                        raise TranslationError(
                            f"{value.args[0].name_hint} calls packed functions or asserts, but "
                            "code in a loop or choice cannot report their errors"
                        )
                    kernel = Kernel.called(function, lowered[value.args[0]], value)
                results = [var]
                if isinstance(var.ty, relax.TupleType):
                    results = parts[var] = [(var, n) for n in range(len(var.ty.fields))]
                operands = [*[key(each) for each in kernel.arguments], *results]
                body.region.add(kernel, operands)
                body.operands += operands
                body.made.update(results)
            else:
                raise TranslationError(
                    f"{value} in the body of a loop or choice: only kernel calls are allowed"
                )
    end = main.body.body
    ends = parts[end] if parts.get(end) else None
    if ends is None:
        ends = [key(each) for each in end.fields] if isinstance(end, relax.Tuple) else [key(end)]
    body.results = ends
    return body


def with_tasks(function: PrimFunc, module: IRModule, add: Callable[[PrimFunc], Any]) -> PrimFunc:
    """Redirect the function's calls from `module` to the caller's module, to which `add` adds the
    called functions; return the changed function."""
    named = {variable.name_hint: variable for variable in module.get_global_vars()}

    def called(call: Any) -> Any:
        if not isinstance(call.op, tvm.ir.GlobalVar):
            return call
        task = with_tasks(module[named[call.op.name_hint]], module, add)
        return tvm.ir.Call(add(task), list(call.args), call.attrs)

    return function.with_body(nests.map_nodes(function.body, NODES.call, called))
