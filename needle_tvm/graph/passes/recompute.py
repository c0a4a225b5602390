"""Recomputes cheap values for each reader, instead of writing them to memory and reading them back.

Before: `y = call_tir(f, x, ...)`, in a dataflow block, where
- `f` has the pattern "elementwise" or "broadcast" and only does arithmetic, without function calls,
- only `x` has as many elements as `y`, and it is in memory anyway: it is an argument, or has other
  readers,
- `y` is not a result, and has several readers, all kernels of the pattern "injective" or below.

After: each reader has its own `y`, so that `FuseOps` fuses `y` into all of them. For example, a
clipped gradient that the moment updates of an optimizer read is then never written to memory. The
number of reads stays the same, and one array less is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, PrimFunc, Target, relax
from needle_tvm.graph.dependence import is_op, readers_of
from needle_tvm.graph.rewrite import rebind
from needle_tvm.tir.functions import NODES, nodes_in, static_shape


def recompute(module: IRModule, target: Target) -> IRModule:
    """Rewrite every binding that meets the preconditions, in every Relax function."""
    return rebind(module, lambda function, bindings: _Block(module, function).changed(bindings))


class _Block:
    def __init__(self, module: IRModule, function: relax.Function) -> None:
        self._module = module
        self._arguments = set(function.params)
        self._readers = readers_of(function)

    def changed(self, bindings: Sequence[Any]) -> list[Any]:
        """Return the bindings of a block, with cheap values recomputed before each reader."""
        cheap = {each.var: each.value for each in bindings if self._is_cheap(each)}
        if not cheap:
            return list(bindings)
        new_bindings: list[Any] = []
        for binding in bindings:
            value = binding.value
            again = {each: cheap[each] for each in self._inputs(value) if each in cheap}
            own = {each: relax.DataflowVar(each.name, each.ty) for each in again}
            new_bindings += [relax.VarBinding(own[each], call) for each, call in again.items()]
            if own:
                fields = [own.get(each, each) for each in value.args[1].fields]
                value = relax.call_tir(value.args[0], fields, out_ty=binding.var.ty)
                binding = relax.VarBinding(binding.var, value)
            new_bindings.append(binding)
        return new_bindings

    def _is_cheap(self, binding: Any) -> bool:
        variable, call = binding.var, binding.value
        if not isinstance(variable, relax.DataflowVar) or len(self._readers[variable]) < 2:
            return False
        function, pattern = self._kernel(call)
        if function is None or pattern > OP_PATTERN.broadcast or nodes_in(function, NODES.call):
            return False
        if any(
            self._kernel(reader)[1] > OP_PATTERN.injective for reader in self._readers[variable]
        ):
            return False
        size = _size(call)
        large = [each for each in self._inputs(call) if _size(each) == size]
        if size is None or size < 2 or len(large) != 1:
            return False
        return large[0] in self._arguments or len(self._readers[large[0]]) > 1

    def _kernel(self, call: Any) -> tuple[PrimFunc | None, int]:
        """Return the PrimFunc and the pattern of a call whose arguments are all tensors; None and
        "opaque" for any other value."""
        if not is_op(call, "relax.call_tir") or len(call.args) != 2:
            return None, OP_PATTERN.opaque
        function = self._module[call.args[0]]
        return function, int((function.attrs or {}).get("op_pattern", OP_PATTERN.opaque))

    def _inputs(self, value: Any) -> list[Any]:
        return list(value.args[1].fields) if self._kernel(value)[0] is not None else []


def _size(value: Any) -> int | None:
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)
