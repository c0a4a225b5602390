"""Merges runs of small kernels into one kernel with one parallel region.

Before: consecutive bindings of `main` in a dataflow block, each
- a `call_tir` of a scheduled PrimFunc of one result that is not large, whose body is a list of loop
  nests or of choices between nests by size, each parallel as a whole or not at all, takes no
  buffer's address and cannot fail; or
- a reshape or another name of such a result.

After: one `call_tir` for the run. Its function has all nests in order, on threads that are woken
once and synchronise only if a nest needs a result written since the last barrier (`region.py`).
`main_by_kernel` stays as `main` was, for inspection.

Waking the thread pool and waiting for it costs about a microsecond per kernel, and a call of the
virtual machine 0.2, which is as long as a small kernel runs. A barrier costs a fraction of that.
Large kernels gain nothing and would be compiled twice: they end a run.

Rules parallelise a kernel whenever that may pay, since it costs little within a region. A run, or
a kernel that stands alone, that one thread would finish sooner runs on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Target, relax
from needle_tvm.graph.dependence import is_op, readers_of
from needle_tvm.kernels.blocks import least_work
from needle_tvm.lower.region import Kernel, Region
from needle_tvm.target.info import target_info
from needle_tvm.tir import regions
from needle_tvm.tir.extents import bounds_of, calls_in, shape_of, symbols_of

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
    """Bindings that may become one call: kernels, and names and views of their results."""

    bindings: list[Any]
    kernels: list[tuple[Any, Kernel]]  # with the variable of the result
    source: dict[Any, Any]  # variable -> the kernel's result that it names or views


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
        self.merged = 0

    def bindings(self, bindings: Sequence[Any]) -> list[Any]:
        """The bindings of a block with its runs merged."""
        done: list[Any] = []
        run = _Run([], [], {})
        for binding in bindings:
            value = binding.value
            source = run.source.get(_viewed(value))
            kernel = None if source is not None else self._kernel(value)
            if source is not None:
                run.source[binding.var] = source
            elif kernel is not None:
                run.source[binding.var] = binding.var
                run.kernels.append((binding.var, kernel))
            elif _viewed(value) is not None:
                done.append(binding)  # a view of something before the run: it can precede the run
                continue
            else:
                done += [*self._merge(run), binding]
                run = _Run([], [], {})
                continue
            run.bindings.append(binding)
        return done + self._merge(run)

    def sharing_tasks(self, module: IRModule) -> IRModule:
        """The module in which kernels that `main` no longer calls itself call the functions that
        its regions call, so that no nest is compiled twice."""
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
        """The kernel a binding's value calls; None if it does not meet the preconditions."""
        if not is_op(value, "relax.call_tir") or len(value.args) != 2:
            return None
        if shape_of(value) is None:
            return None
        variable = value.args[0]
        function = self._module[variable]
        if variable not in self._lowered:
            small = isinstance(function, PrimFunc) and least_work(function) <= _LARGE
            self._lowered[variable] = regions.lowered(function, self._target) if small else None
        lowered = self._lowered[variable]
        return None if lowered is None else Kernel.of(function, lowered, value, self._lanes)

    def _merge(self, run: _Run) -> list[Any]:
        """The bindings that replace a run's."""
        if not run.kernels:
            return run.bindings
        # A variable that only names another one is not an expression of its own: other runs may
        # have the same value.
        values = (binding.value for binding in run.bindings)
        inside = {value for value in values if not isinstance(value, relax.Var)}
        wanted = [
            variable
            for variable in run.source
            if not isinstance(variable, relax.DataflowVar)
            or not inside.issuperset(self._readers.get(variable, ()))
        ]
        kept = {run.source[variable] for variable in wanted}
        region = Region(self._bounds)
        for variable, kernel in run.kernels:
            arguments = [run.source.get(each, each) for each in kernel.arguments]
            region.add(kernel, [*arguments, variable])
        results = [variable for variable, _ in run.kernels if variable in kept]
        if len(run.kernels) < 2 and not region.takes_threads_back(self._target):
            return run.bindings
        plan = region.plan(results, self._target, lambda task: self._builder.add_func(task, "task"))
        function = self._builder.add_func(plan.function, "region")
        self.merged += 1
        types = [variable.ty for variable in results]
        types += [relax.TensorType((size,), dtype) for dtype, size in plan.workspaces]
        call = relax.call_tir(
            function, [*plan.inputs, *plan.symbols], out_ty=types if len(types) > 1 else types[0]
        )
        call = self._builder.normalize(call)
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


def _viewed(value: Any) -> Any:
    """The variable that a binding's value names or reshapes; None for any other value."""
    if is_op(value, "relax.reshape"):
        value = value.args[0]
    return value if isinstance(value, relax.Var) else None


def _views_for(wanted: Sequence[Any], run: _Run) -> list[Any]:
    """The bindings of the views among `wanted`, and of the views that these view."""
    found: list[Any] = []
    needed, results = set(wanted), {variable for variable, _ in run.kernels}
    for binding in reversed(run.bindings):
        if binding.var in needed and binding.var not in results:
            found.append(binding)
            needed.add(_viewed(binding.value))
    return found[::-1]
