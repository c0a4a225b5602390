"""Lets `main` write new values over the inputs that they replace.

The attribute `updates` of `main` holds pairs (result, input), both of the same type. The result is
the input's value after the call, such as a cache of keys with one more row, or a weight after a
step.

`share_memory` runs on scheduled kernels. Before: no kernel or view reads the input after the kernel
that computes the result, and that kernel

- does not read the input; or
- copies it first, in loops with the annotation COPIED, and reads it nowhere else; or
- reads each element only in the block that then overwrites it, and writes each element once.

After: `main` begins with a separate kernel that copies the input. All kernels read the copy, and
the result's kernel writes its result to the copy's memory.

`add_in_place` runs after memory planning. Before: `main` begins with such copies, stored in
the allocations of results. After: `main_in_place` is `main` without the copies. It uses the inputs'
own memory, writes the results of these pairs to that memory, and returns the other results in a
tuple.

If a pair does not meet the preconditions, its result is returned as usual. If no pair meets them,
the module stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from needle.ops._index import COPIED
from needle_tvm._tvm.names import IRModule, PrimFunc, Target, relax, tirx, tvm_ffi
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.graph.passes.own_outputs import copy_function
from needle_tvm.lower.caller_memory import MAIN, VIEW, memory_of_results
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, inverse_of, linear_in, nodes_in, variables_of

IN_PLACE = f"{MAIN}_in_place"
UPDATES = "updates"
COPY = "copies_state"  # attribute of the kernels that copy inputs

Pairs = list[tuple[int, int]]


def updating(module: IRModule, pairs: Iterable[tuple[int, int]]) -> IRModule:
    """Return the module with the pairs (result, input) as the attribute `updates` of `main`."""
    pairs = list(pairs)
    if not pairs:
        return module
    main = module[MAIN].with_attr(UPDATES, [list(pair) for pair in pairs])
    module = module.clone()
    module.update_func(module.get_global_var(MAIN), main)
    return module


def _wanted(main: relax.Function) -> Pairs:
    return [(int(r), int(i)) for r, i in (main.attrs or {}).get(UPDATES, ())]


def share_memory(module: IRModule, target: Target) -> IRModule:
    """Let kernels write results over copies of the inputs that the results replace."""
    main = module[MAIN]
    blocks = list(main.body.blocks)
    if not _wanted(main) or not blocks or not isinstance(blocks[0], relax.DataflowBlock):
        return module
    first, *others = blocks
    bindings = list(first.bindings)
    results, _ = memory_of_results(main, bindings_of(main))
    builder = relax.BlockBuilder(module)
    behind = [each.value for block in others for each in block.bindings]
    results = _originals(main, results, behind)
    later = {variable for value in behind for variable in relax.analysis.free_vars(value)}
    sharing = _Sharing(module, builder, bindings, later)
    for result, number in _wanted(main):
        sharing.try_pair(main.params[number], results[result])
    if not sharing.copies:
        return module
    block = relax.DataflowBlock([*sharing.copies, *sharing.changed()])
    result = relax.Tuple(results) if len(results) > 1 else results[0]
    body = builder.normalize(relax.SeqExpr([block, *others], result))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    module = builder.get()
    module.update_func(module.get_global_var(MAIN), function)
    return module


def _originals(main: relax.Function, results: list[Any], behind: Sequence[Any]) -> list[Any]:
    """Return the results. If a result that replaces an input is a copy of another result, swap the
    two: they are equal, and a kernel can write the original over the input."""
    results = list(results)
    replacing = {result for result, _ in _wanted(main)}
    bound = bindings_of(main)
    for number in replacing:
        value = bound.get(results[number])
        if value not in behind or not is_op(value, "relax.call_tir"):
            continue
        (source,) = value.args[1].fields
        for other, each in enumerate(results):
            if each.same_as(source) and other not in replacing:
                results[number], results[other] = each, results[number]
    return results


class _Sharing:
    """The bindings of `main`, and the calls among them that will write over copies of inputs."""

    def __init__(
        self, module: IRModule, builder: Any, bindings: Sequence[Any], later: Collection[Any]
    ) -> None:
        self._module, self._builder, self._bindings = module, builder, bindings
        self._later = later  # variables read after these bindings
        self._at = {binding.var: i for i, binding in enumerate(bindings)}
        self._readers: dict[Any, list[int]] = {}
        for i, binding in enumerate(bindings):
            for variable in relax.analysis.free_vars(binding.value):
                self._readers.setdefault(variable, []).append(i)
        self._calls: dict[int, Any] = {}  # the function that each binding now calls
        self._over: dict[int, dict[int, Any]] = {}  # the copies that hold each binding's results
        self._copied: dict[Any, Any] = {}
        self.copies: list[Any] = []

    def try_pair(self, parameter: Any, result: Any) -> None:
        """If possible, let the kernel that computes `result` write it to a copy of `parameter`."""
        made = self._made(result)
        if made is None or parameter in self._copied:
            return
        at, which, call = made
        uses = self._uses(parameter)
        if parameter in self._later or uses is None or any(i > at for i in uses):
            return
        if not nests.same(parameter.ty, result.ty):
            return
        function = self._calls.get(at) or self._module[call.args[0]]
        buffers, tensors = _buffers(function), _tensors(call)
        output = buffers[len(tensors) + which]
        if at in uses:
            places = [i for i, each in enumerate(tensors) if self._root(each).same_as(parameter)]
            if len(places) != 1 or not nests.same(tensors[places[0]].ty, _types(call)[which]):
                return  # the kernel reads several views
            taken = buffers[places[0]]
            changed = _without_copies(function, taken) or _elementwise(function, taken, output)
            if changed is None:
                return
            function = changed
        self._calls[at] = function
        self._over.setdefault(at, {})[which] = self._copy(parameter, _types(call)[which])

    def _made(self, result: Any) -> tuple[int, int, Any] | None:
        """Find the kernel call that computes a result, perhaps in another shape. Return the number
        of its binding, the result's number among the call's results, and the call."""
        which, at = 0, self._at.get(result)
        while at is not None:
            value = self._bindings[at].value
            if is_op(value, "relax.call_tir") and len(value.args) == 2:
                is_kernel = isinstance(self._module[value.args[0]], PrimFunc)
                return (at, which, value) if is_kernel else None
            if isinstance(value, relax.TupleGetItem):
                which, value = value.index, value.tuple_value
            elif is_op(value, VIEW):
                value = value.args[0]
            if not isinstance(value, relax.Var):
                return None
            at = self._at.get(value)
        return None

    def _root(self, variable: Any) -> Any:
        """Return the variable to which another variable refers, through names and views."""
        while variable in self._at:
            value = self._bindings[self._at[variable]].value
            value = value.args[0] if is_op(value, VIEW) else value
            if not isinstance(value, relax.Var):
                break
            variable = value
        return variable

    def _uses(self, parameter: Any) -> set[int] | None:
        """Return the numbers of the bindings that use a parameter or views of it; None if the
        parameter or a view is itself a result."""
        found: set[int] = set()
        pending = [parameter]
        while pending:
            for i in self._readers.get(pending.pop(), ()):
                binding = self._bindings[i]
                if isinstance(binding.value, relax.Tuple):
                    return None
                if is_op(binding.value, VIEW) or isinstance(binding.value, relax.Var):
                    pending.append(binding.var)
                    if binding.var in self._later:
                        return None
                else:
                    found.add(i)
        return found

    def _copy(self, parameter: Any, like: Any) -> Any:
        """Emit a copy of a parameter, in the shape of the type `like`; return its variable."""
        variable = copy_function(self._builder, parameter, COPY)
        copy = self._bound(
            f"{parameter.name}_now", relax.call_tir(variable, [parameter], out_ty=parameter.ty)
        )
        self._copied[parameter] = copy
        if nests.same(like.shape, parameter.ty.shape):
            return copy
        return self._bound(f"{parameter.name}_view", relax.op.reshape(copy, like.shape))

    def _bound(self, name: str, value: Any) -> Any:
        value = self._builder.normalize(value)
        variable = relax.DataflowVar(name, value.ty)
        self.copies.append(relax.VarBinding(variable, value))
        return variable

    def changed(self) -> list[Any]:
        """Return the bindings, changed to use the copies instead of the inputs."""
        bindings = []
        for i, binding in enumerate(self._bindings):
            value = self._in_place(i, binding.value) if i in self._over else binding.value
            value = tvm_ffi.structural_map(
                value, (relax.Var, lambda var: self._copied.get(var, var))
            )
            if isinstance(binding, relax.MatchCast):
                bindings.append(relax.MatchCast(binding.var, value, binding.ty))
            else:
                bindings.append(relax.VarBinding(binding.var, self._builder.normalize(value)))
        return bindings

    def _in_place(self, at: int, call: Any) -> Any:
        """Return the call at a binding, changed to write its results over copies of inputs."""
        function, over = self._calls[at], self._over[at]
        tensors, buffers, types = _tensors(call), _buffers(function), _types(call)
        outputs = dict(enumerate(buffers[len(tensors) :]))
        others = [each for each in function.params if each not in buffers]
        used = variables_of(function.body)
        kept = [
            (tensor, buffer)
            for tensor, buffer in zip(tensors, buffers, strict=False)
            if buffer in used or self._root(tensor) not in self._copied
        ]
        count, copies = len(kept), list(over.items())
        parameters = [buffer for _, buffer in kept]
        parameters += [outputs[which] for which, _ in copies]
        parameters += others
        parameters += [buffer for which, buffer in outputs.items() if which not in over]
        changed = PrimFunc(parameters, function.body, function.ret_type, function.attrs)
        kernel = self._builder.add_func(changed, f"{call.args[0].name_hint}_in_place")
        places = {which: count + i for i, (which, _) in enumerate(copies)}
        symbols = [each for each in call.args[1].fields if each not in tensors]
        return relax.op.call_tir_inplace(
            kernel,
            relax.Tuple([*[tensor for tensor, _ in kept], *over.values(), *symbols]),
            [places.get(which, -1) for which in outputs],
            types,
        )


def _tensors(call: Any) -> list[Any]:
    return [each for each in call.args[1].fields if isinstance(each.ty, relax.TensorType)]


def _types(call: Any) -> list[Any]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


def _buffers(function: PrimFunc) -> list[Any]:
    return [each for each in function.params if tirx.is_buffer_var(each)]


def _without_copies(function: PrimFunc, taken: Any) -> PrimFunc | None:
    """Return a kernel without its loops that copy the parameter `taken`; None if other code of the
    kernel reads the parameter."""

    def dropped(loop: Any) -> Any:
        return tirx.Evaluate(0) if COPIED in loop.annotations else loop

    body = nests.map_nodes(function.body, NODES.loop, dropped)
    if taken in variables_of(body):
        return None
    return function.with_body(body)


def _elementwise(function: PrimFunc, taken: Any, output: Any) -> PrimFunc | None:
    """Return a kernel changed to read `output` instead of the parameter `taken`; None if it might
    then read an element that it has already written."""
    body = nests.map_nodes(function.body, NODES.loop, _without_overlap)
    realizes: list[tuple[Any, dict[Any, int]]] = []
    if not _blocks_of(body, {}, realizes):
        return None
    for realize, loops in realizes:
        block = realize.block
        loads = [load for load in nodes_in(block, NODES.load) if load.source.same_as(taken)]
        stores = nodes_in(block, NODES.store)
        writes = any(store.buffer.same_as(output) for store in stores)
        if not loads and not writes:
            continue
        if block.init is not None or len(stores) != 1 or not writes:
            return None
        (store,) = stores
        if not all(nests.same(list(load.indices), list(store.indices)) for load in loads):
            return None
        if inverse_of(list(realize.iter_values), loops) is None:
            return None  # an element may be written twice
    return function.with_body(nests.substitute(body, {taken: output}))


def _without_overlap(loop: Any) -> Any:
    """Rewrite a loop over vectors whose last vector is moved back to end with the axis: return a
    loop over whole vectors and a loop over the rest. Return any other loop unchanged."""
    variable = loop.loop_var
    minima = [each for each in nodes_in(loop.body, tirx.Min) if variable in variables_of(each)]
    if not minima or not all(nests.same(each, minima[0]) for each in minima):
        return loop
    start, last = minima[0].a, minima[0].b
    factors = linear_in(start, [variable])
    if factors is None or not all(isinstance(n, tirx.IntImm) for n in (loop.extent, last)):
        return loop
    width, whole = factors[0], int(loop.extent) - 1
    rest = int(last) + width - whole * width
    vectors = [
        each
        for each in nodes_in(loop.body, NODES.loop)
        if nests.same(each.extent, tirx.const(width, "int64"))
    ]
    if not nests.same(start, variable * width) or len(vectors) != 1 or not 0 < rest <= width:
        return loop
    body = nests.map_nodes(
        loop.body, tirx.Min, lambda each: start if nests.same(each, minima[0]) else each
    )

    def shorter(each: Any) -> Any:
        if not each.loop_var.same_as(vectors[0].loop_var):
            return each
        count = tirx.const(rest, "int64")
        return tirx.For(each.loop_var, each.min, count, tirx.ForKind.SERIAL, each.body)

    tail = nests.map_nodes(body, NODES.loop, shorter)
    tail = nests.substitute(tail, {variable: tirx.const(whole, "int64")})
    if not whole:
        return tail
    count = tirx.const(whole, "int64")
    return tirx.SeqStmt([tirx.For(variable, loop.min, count, loop.kind, body), nests.renewed(tail)])


def _blocks_of(statement: Any, loops: dict[Any, int], blocks: list[tuple[Any, Any]]) -> bool:
    """Collect the innermost blocks under a statement, each with the extents of the loops around it.
    Return False if there is a statement of an unknown kind."""
    if isinstance(statement, NODES.realize):
        block = statement.block
        if not nodes_in(block.body, NODES.realize):
            blocks.append((statement, loops))
            return True
        return not block.iter_vars and _blocks_of(block.body, loops, blocks)
    if isinstance(statement, NODES.loop):
        if not isinstance(statement.extent, tirx.IntImm):
            return False
        inside = {**loops, statement.loop_var: int(statement.extent)}
        return _blocks_of(statement.body, inside, blocks)
    if isinstance(statement, tirx.SeqStmt):
        return all([_blocks_of(each, loops, blocks) for each in statement.seq])
    return isinstance(statement, tirx.AttrStmt) and _blocks_of(statement.body, loops, blocks)


def add_in_place(module: IRModule) -> tuple[IRModule, Pairs]:
    """Add `main_in_place` to a module after `StaticPlanBlockMemory`; also return the pairs that it
    writes in place."""
    wanted = _wanted(module[MAIN])
    if not wanted:
        return module, []
    main = relax.utils.copy_with_new_vars(module[MAIN])
    bound = bindings_of(main)
    results, memory = memory_of_results(main, bound)
    bindings = [each for block in main.body.blocks for each in block.bindings]
    copied = {
        each.value.args[1]: each.value.args[0] for each in bindings if _copies(module, each.value)
    }
    builder = relax.BlockBuilder(module)
    served: Pairs = []
    replacements: dict[Any, Any] = {}  # an allocation -> the input that replaces it, in its shape
    for result, number in wanted:
        written, parameter = memory[result], main.params[number]
        if written not in copied or memory.count(written) > 1:
            continue
        if not _views(copied[written], bound).same_as(parameter):
            continue
        shape = written.ty.shape
        is_view = not nests.same(shape, parameter.ty.shape)
        replacements[written] = (
            builder.normalize(relax.op.reshape(parameter, shape)) if is_view else parameter
        )
        served.append((result, number))
    if not served:
        return module, []
    rest = [each for i, each in enumerate(results) if i not in {result for result, _ in served}]
    returned = relax.Var("rest", relax.TupleType([each.ty for each in rest]))
    kept = [
        relax.VarBinding(each.var, replacements.get(each.var, each.value))
        for each in bindings
        if not (_copies(module, each.value) and each.value.args[1] in replacements)
    ]
    blocks = [
        relax.BindingBlock(kept),
        relax.BindingBlock([relax.VarBinding(returned, relax.Tuple(rest))]),
    ]
    body = builder.normalize(relax.SeqExpr(blocks, returned))
    function = relax.Function(main.params, body, body.ty, main.is_pure, main.attrs)
    builder.add_func(function.with_attr("global_symbol", IN_PLACE), IN_PLACE)
    return builder.get(), served


def _copies(module: IRModule, value: Any) -> bool:
    """Return whether an expression calls a kernel that copies an input."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.GlobalVar):
        return False
    return COPY in (module[value.op].attrs or {})


def _views(value: Any, bound: Mapping[Any, Any]) -> Any:
    """Return the variable to which a value refers, through names and views."""
    while isinstance(value, relax.Var) and value in bound:
        behind = bound[value]
        behind = behind.args[0] if is_op(behind, VIEW) else behind
        if not isinstance(behind, relax.Var):
            break
        value = behind
    return value
