"""Merges runs of small kernels into one kernel with one parallel region.

Before: consecutive bindings of `main` in a dataflow block. Each binding is
- a `call_tir` of a scheduled PrimFunc that has one result, is not large, takes no buffer's address
  and cannot fail; its body is a list of loop nests, or of choices between nests by size, each
  parallel as a whole or not at all; or
- a reshape or another name of such a result.

After: one `call_tir` for the run. Its function has all nests in order, on threads that wake once
and synchronise only if a nest needs a result written since the last barrier (`region.py`).
`main_by_kernel` keeps the former `main`, for inspection.

For each kernel, waking the thread pool and waiting for it costs about a microsecond, and a call by
the virtual machine 0.2 us. A small kernel runs for about as long. A barrier costs a fraction of
that. Large kernels gain nothing and would be compiled twice, so they end a run. Elementwise kernels
join a run at any size, since loops over the same elements are fused: an optimizer then reads and
writes a parameter and its averages once.

Schedule rules parallelise a kernel whenever that may pay off, since it costs little within a
region. A run, or a kernel outside all runs, stays on one thread if one thread would finish it
sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Target, relax
from needle_tvm.graph.dependence import bindings_of, is_op, readers_of
from needle_tvm.kernels.blocks import least_work
from needle_tvm.lower.in_place import COPY
from needle_tvm.lower.region import Kernel, Plan, Region
from needle_tvm.target.info import target_info
from needle_tvm.tir import regions
from needle_tvm.tir.extents import bounds_of, shape_of, symbols_of
from needle_tvm.tir.functions import KERNEL_CALLS, calls_in, static_shape

BY_KERNEL = "main_by_kernel"

_LARGE = 1 << 24  # scalar operations, a hundred microseconds or more


def merge_kernels(module: IRModule, target: Target) -> IRModule:
    """Merge every run of kernels in `main` that meets the preconditions."""
    main = module["main"]
    builder = relax.BlockBuilder(module)
    merger = _Merger(module, target, builder, readers_of(main))
    blocks = [
        relax.DataflowBlock(merger.bindings(list(block.bindings)))
        if isinstance(block, relax.DataflowBlock)
        else block
        for block in main.body.blocks
    ]
    if not merger.merged:
        return module
    body = builder.normalize(relax.SeqExpr(blocks, main.body.body))
    unmerged = relax.utils.copy_with_new_vars(main)
    builder.add_func(unmerged.with_attr("global_symbol", BY_KERNEL), BY_KERNEL)
    module = builder.get()
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    module.update_func(module.get_global_var("main"), function)
    return merger.sharing_tasks(module)


@dataclass
class _Run:
    """Bindings that may become one call: kernels, and other names and views of their results.

    The key of a result is its variable, or an argument's variable if the result is written to that
    argument's memory.
    """

    bindings: list[Any]
    kernels: list[tuple[Any, Any, Kernel]]  # the result's variable, the result's key, the kernel
    source: dict[Any, Any]  # variable -> the key of the result that it names or views


class _Merger:
    def __init__(
        self, module: IRModule, target: Target, builder: Any, readers: Mapping[Any, Sequence[Any]]
    ) -> None:
        self._module = module
        self._target = target
        self._lanes = target_info(target).lanes("float32")
        self._builder = builder
        self._readers = readers
        self._bounds = bounds_of(module["main"])
        self._lowered: dict[Any, PrimFunc | None] = {}  # by global variable; None: large
        self._bound = bindings_of(module["main"])
        self._written = {_written(call) for call in calls_in(module["main"])} - {None}
        self._viewed: dict[Any, Any] = {}  # outside of runs: variable -> the written value it views
        self.merged = 0

    def bindings(self, bindings: Sequence[Any]) -> list[Any]:
        """Return the bindings of a block with its runs merged."""
        done: list[Any] = []
        run = _Run([], [], {})
        for binding in bindings:
            value = binding.value
            source = run.source.get(_viewed(value))
            kernel = None if source is not None else self._kernel(value)
            if source is not None:
                run.source[binding.var] = source
            elif kernel is not None:
                over = _written(value)
                key = binding.var if over is None else self._viewed.get(over, over)
                run.source[binding.var] = key
                run.kernels.append((binding.var, key, kernel))
            elif _viewed(value) is not None:
                base = self._viewed.get(_viewed(value), _viewed(value))
                if base in self._written:
                    self._viewed[binding.var] = base
                done.append(binding)  # a view of a value from before the run can precede the run
                continue
            else:
                done += [*self._merge(run), binding]
                run = _Run([], [], {})
                continue
            run.bindings.append(binding)
        return done + self._merge(run)

    def sharing_tasks(self, module: IRModule) -> IRModule:
        """Change the kernels that only `main_by_kernel` still calls: let them call the same task
        functions as the regions of `main`, so that no nest is compiled twice."""
        builder = relax.BlockBuilder(module)
        called = {call.args[0] for call in calls_in(module["main"])}
        for variable, lowered in self._lowered.items():
            function = self._module[variable]
            if lowered is not None and variable not in called:
                changed = regions.calling_tasks(
                    function,
                    lowered,
                    bool(symbols_of(function)),
                    self._lanes,
                    lambda task: builder.add_func(task, "task"),
                )
                builder.update_func(variable, changed)
        return builder.get()

    def _kernel(self, value: Any) -> Kernel | None:
        """Return the kernel that a binding's value calls; None if it does not meet the
        preconditions."""
        if not isinstance(value, relax.Call) or value.op not in KERNEL_CALLS:
            return None
        if len(value.args) != 2 or shape_of(value) is None:
            return None
        variable = value.args[0]
        function = self._module[variable]
        over = _written(value)
        if COPY in (function.attrs or {}):
            return None  # `main_in_place` leaves this copy out
        if over is not None and _viewed(self._bound.get(over)) is not None:
            return None  # its memory is used in two shapes
        if variable not in self._lowered:
            shape = static_shape(value)
            elements = 0 if shape is None else math.prod(shape)  # the work of an elementwise kernel
            small = isinstance(function, PrimFunc) and (
                least_work(function) <= max(_LARGE, elements)
            )
            self._lowered[variable] = regions.lowered(function, self._target) if small else None
        lowered = self._lowered[variable]
        return None if lowered is None else Kernel.of(function, lowered, value, self._lanes)

    def _merge(self, run: _Run) -> list[Any]:
        """Return the bindings that replace a run's bindings."""
        if not run.kernels:
            return run.bindings
        # Leave out values that are only names of other variables: they may also occur in other
        # runs.
        values = (binding.value for binding in run.bindings)
        inside = {value for value in values if not isinstance(value, relax.Var)}
        wanted = [
            variable
            for variable in run.source
            if not isinstance(variable, relax.DataflowVar)
            or not inside.issuperset(self._readers.get(variable, ()))
        ]
        kept = {run.source[variable] for variable in wanted}
        region, written = Region(self._bounds), {key for _, key, _ in run.kernels} & self._written
        for _, key, kernel in run.kernels:
            operands = [run.source.get(each, each) for each in kernel.arguments]
            # All views of memory to which the region writes count as one value.
            bases = [self._viewed.get(each, each) for each in operands]
            operands = [
                base if base in written else each
                for base, each in zip(bases, operands, strict=True)
            ]
            region.add(kernel, [*operands, key][: len(kernel.parameters)])
        if len(run.kernels) < 2 and not region.takes_threads_back(self._target):
            return run.bindings
        made = {key: variable for variable, key, _ in run.kernels if key in kept}
        over = {key: key.ty.shape.values for key in made if key in self._written}
        new = [key for key in made if key not in over]
        add = lambda task: self._builder.add_func(task, "task")  # noqa: E731
        plan = region.plan(new, self._target, add, over)
        function = self._builder.add_func(plan.function, "region")
        self.merged += 1
        results = [made[key] for key in (*over, *new)]
        types = [variable.ty for variable in results]
        types += [relax.TensorType((size,), dtype) for dtype, size in plan.workspaces]
        call = self._call(function, plan, len(over), types)
        if len(types) == 1:
            bindings = [relax.VarBinding(results[0], call)]
        else:
            together = relax.DataflowVar("region", call.ty)
            bindings = [relax.VarBinding(together, call)]
            bindings += [
                relax.VarBinding(variable, relax.TupleGetItem(together, number))
                for number, variable in enumerate(results)
            ]
        return bindings + _views_for(wanted, run)

    def _call(self, function: Any, plan: Plan, over: int, types: Sequence[Any]) -> Any:
        """Return the call to a region that writes its first `over` results to the memory of its
        last tensors."""
        arguments = relax.Tuple([*plan.inputs, *plan.symbols])
        if not over:
            out = list(types) if len(types) > 1 else types[0]
            return self._builder.normalize(relax.call_tir(function, arguments, out_ty=out))
        first = len(plan.inputs) - over
        places = [first + i if i < over else -1 for i in range(len(types))]
        return self._builder.normalize(
            relax.op.call_tir_inplace(function, arguments, places, list(types))
        )


def _written(value: Any) -> Any:
    """Return the argument to whose memory a kernel call writes its only result; None if the result
    has its own memory."""
    if not isinstance(value, relax.Call) or value.op != KERNEL_CALLS[1]:
        return None
    places = list(map(int, value.attrs.inplace_indices))
    return value.args[1].fields[places[0]] if len(places) == 1 else None


def _viewed(value: Any) -> Any:
    """Return the variable that a binding's value names or reshapes; None for any other value."""
    if is_op(value, "relax.reshape"):
        value = value.args[0]
    return value if isinstance(value, relax.Var) else None


def _views_for(wanted: Sequence[Any], run: _Run) -> list[Any]:
    """Return the bindings of the views among `wanted`, and of the views on which they are based."""
    found: list[Any] = []
    needed, results = set(wanted), {variable for variable, *_ in run.kernels}
    for binding in reversed(run.bindings):
        if binding.var in needed and binding.var not in results:
            found.append(binding)
            needed.add(_viewed(binding.value))
    return found[::-1]
