"""Make an exported program functional by changing its graph, without tracing it again.

`ExportedProgram.run_decompositions` traces a program twice more, which takes most of the time of
loading a network. In programs of plain layers, the only nodes that needle has no operator for are
in-place writes, batch norm, dropout and padding. Imports PyTorch when called.

A write `x.op_(...)` becomes `y = x.op(...)`, and later nodes read y. The preconditions are:

- x is the result of an operator that allocates its result, or a view of such a result that nothing
  else reads. So no other value that is read shares its memory.
- Every other node that reads x allocates its results as well, so no view of x exists. In
  particular, the program does not return x.
- All tensors of the call have x's dtype, which is floating-point, and the result has x's shape. In
  other cases, the write would cast and broadcast, whereas the functional operator promotes.

A program is left to PyTorch if it breaks one of these preconditions, has symbolic sizes, complex
numbers or subgraphs, or has an operator that needle lacks.
"""

from __future__ import annotations

import operator
from typing import Any

from . import registry
from .nodes import is_complex, is_in_place, live_nodes, name_of

# Composite operators that always allocate their results. The schema of a composite operator may
# hide that it returns its input.
_ALLOCATING_COMPOSITES = (
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv2d.padding",
    "aten.conv3d.default",
    "aten.layer_norm.default",
    "aten.group_norm.default",
    "aten.linear.default",
    "aten.matmul.default",
)


# Operators whose result has elements of its one tensor input, none of them twice.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default",
        "flatten.using_ints",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "squeeze.dim",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
    )
)


def functionalized(exported: Any) -> bool:
    """Make an exported program functional; return whether that succeeded. If not, the program
    computes the same values as before."""
    graph = exported.graph
    if any(node.op not in ("placeholder", "call_function", "output") for node in graph.nodes):
        return False
    if any(map(_is_open_or_complex, graph.nodes)):
        return False
    calls = [node for node in graph.nodes if node.op == "call_function"]
    without_writes = all(map(_rewritten, calls))
    exported.graph_module.recompile()
    return without_writes and all(
        node.target is operator.getitem or _is_known(node.target)
        for node in live_nodes(graph)
        if node.op == "call_function"
    )


def _rewritten(node: Any) -> bool:
    """Change a node, if possible, into an operator that needle has. Return True if the node then
    writes to none of its inputs."""
    name = name_of(node.target)
    if name == "aten.batch_norm.default":
        _without_training(node)
    elif name == "aten.pad.default":
        _constant_padding(node)
    return not is_in_place(node.target) or _returned_instead(node)


def _is_open_or_complex(node: Any) -> bool:
    import torch

    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return is_complex(node) or any(
        isinstance(value, symbolic)
        or (isinstance(value, torch.Tensor) and not all(type(n) is int for n in value.shape))
        for value in values
    )


def _is_known(target: Any) -> bool:
    import torch

    return (
        isinstance(target, torch._ops.OpOverload)
        and not is_in_place(target)
        and registry.find(name_of(target)) is not None
    )


def _allocates(node: Any) -> bool:
    """Return whether the results of a node share no memory with its inputs."""
    import torch

    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _allocates(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    if any(each.alias_info for each in (*schema.arguments, *schema.returns)):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        node.target.name(), "CompositeImplicitAutograd"
    )
    return not composite or name_of(node.target) in _ALLOCATING_COMPOSITES


def _is_unshared(node: Any) -> bool:
    """Return whether the program reads the memory of a node's result through this result alone."""
    while name_of(node.target) in _VIEWS:
        (given,) = node.all_input_nodes
        if len(given.users) > 1:
            return False
        node = given
    return _allocates(node)


def _returned_instead(node: Any) -> bool:
    """Change a node that writes to a tensor into one that returns the written tensor; return
    whether the preconditions hold."""
    import torch

    twin = _functional_twin(node.target)
    if twin is None or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
        return False
    written = node.args[0]
    value, result = written.meta["val"], node.meta["val"]
    tensors = [each.meta["val"] for each in node.all_input_nodes]
    if not (
        value.is_floating_point()
        and all(isinstance(t, torch.Tensor) and t.dtype == value.dtype for t in tensors)
        and result.shape == value.shape
    ):
        return False
    if not _is_unshared(written):
        return False
    if not all(user is node or _allocates(user) for user in written.users):
        return False
    node.target = twin
    for user in [each for each in written.users if node < each]:  # in the graph's order
        user.replace_input_with(written, node)
    return True


def _functional_twin(target: Any) -> Any:
    """Return the operator named like `target` without the last underscore, if it has the same
    overload and arguments, else None."""
    import torch

    namespace, _, name = target._schema.name.partition("::")
    if namespace != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    twin = getattr(packet, target._schema.overload_name or "default", None)
    if twin is None or is_in_place(twin):
        return None
    same = [(a.name, str(a.type)) for a in twin._schema.arguments] == [
        (a.name, str(a.type)) for a in target._schema.arguments
    ]
    return twin if same and len(twin._schema.returns) == 1 else None


def _without_training(node: Any) -> None:
    """Change a batch norm in eval mode into the operator that returns (result, empty, empty)."""
    import torch

    if len(node.args) < 8 or node.kwargs:
        return
    x, weight, bias, mean, variance, training, momentum, eps = node.args[:8]
    if training or mean is None or variance is None:
        return
    target = torch.ops.aten._native_batch_norm_legit_no_training.default
    value = node.meta["val"]
    with node.graph.inserting_before(node):
        whole = node.graph.call_function(target, (x, weight, bias, mean, variance, momentum, eps))
    whole.meta = {**node.meta, "val": (value, value.new_empty(0), value.new_empty(0))}
    node.target, node.args = operator.getitem, (whole, 0)


def _constant_padding(node: Any) -> None:
    """Change constant padding into the operator that only pads with constants."""
    import torch

    if node.kwargs:
        return
    x, pads = node.args[:2]
    mode = node.args[2] if len(node.args) > 2 else "constant"
    value = node.args[3] if len(node.args) > 3 else None
    if mode == "constant":
        node.target = torch.ops.aten.constant_pad_nd.default
        node.args = (x, pads, 0 if value is None else value)
