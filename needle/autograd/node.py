"""Nodes of the graph behind tensors.

A `Node` records an op, the nodes of its inputs, and only those values that the op's gradient needs,
as declared by the op. All other values are thus freed during the forward pass. A leaf's gradient is
kept on its node, so that every handle to the leaf sees the same `.grad`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from ..common.state import state
from .shapes import Spec


class OpRules(Protocol):
    """The interface of an op to the graph; `needle.op.Op` documents its members."""

    @property
    def name(self) -> str: ...
    @property
    def arity(self) -> int | None: ...
    @property
    def reads(self) -> frozenset[Any]: ...
    @property
    def reads_bits(self) -> bool: ...
    @property
    def infer_first(self) -> bool: ...
    @property
    def may_share(self) -> bool: ...
    @property
    def structural(self) -> bool: ...
    @property
    def partial_gradients(self) -> bool: ...
    @property
    def opaque(self) -> bool: ...
    @property
    def scheduled(self) -> bool: ...
    @property
    def has_bodies(self) -> bool: ...
    @property
    def backward(self) -> Callable[..., Any] | None: ...
    @property
    def emit_onnx(self) -> Callable[..., Any] | None: ...
    @property
    def reference(self) -> Callable[..., Any]: ...
    def infer(self, *specs: Any) -> Any: ...
    def decided(self, *specs: Any) -> OpRules: ...
    def index_ranges(self, *specs: Any) -> dict[int, tuple[int, int]]: ...
    def reduction_length(self, *specs: Any) -> int: ...
    def compute(self, *inputs: Any) -> Any: ...
    def keep(self, output: Any) -> Any: ...
    def gradient_as_tuple(self, out_grad: Any, node: Any) -> tuple[Any, ...]: ...


class Node:
    """The origin of a value. Leaves have `op` None; tuple-valued nodes have a tuple as `spec`."""

    __slots__ = (
        "attached",
        "freed",
        "grad",
        "input_nodes",
        "made",
        "op",
        "output",
        "requires_grad",
        "saved",
        "scope",
        "spec",
    )

    op: OpRules | None
    input_nodes: tuple[Node, ...]
    saved: Any  # a tuple of the inputs' values, if the gradient reads them (or a Recomputed)
    output: Any  # the value itself, if the gradient reads it
    spec: Any
    scope: str | None  # module path; known only in a trace
    requires_grad: bool
    grad: Any  # a Tensor, or None
    made: int  # the device's write counter once the op had run; in a trace, the op's index
    attached: Any  # hooks.Attached: hooks on the gradient, or None
    freed: bool  # whether a backward pass has freed the saved values

    def __init__(self, spec: Any, requires_grad: bool, scope: str | None = None) -> None:
        self.op = None
        self.input_nodes = ()
        self.saved = self.output = self.grad = self.attached = None
        self.spec = spec
        self.scope = scope
        self.requires_grad = requires_grad
        self.made = 0
        self.freed = False

    if sys.version_info[:2] == (3, 13):
        # This Python version frees a chain of objects by nested C calls. For thousands of objects
        # these overflow a thread's small stack, so a graph's nodes are freed one after the other.
        def __del__(self) -> None:
            inputs, self.input_nodes = self.input_nodes, ()
            waiting = state.freeing
            if waiting is not None:
                waiting.append(inputs)
                return
            waiting = state.freeing = [inputs]
            del inputs
            while waiting:
                waiting.pop()
            state.freeing = None

    @property
    def specs(self) -> tuple[Spec, ...]:
        """A tuple of one Spec, or of a Spec for each part of a tuple-valued node."""
        return self.spec if type(self.spec) is tuple else (self.spec,)

    def free(self) -> None:
        """Free the values saved for the gradient."""
        if self.saved is not None or self.output is not None:
            self.saved = self.output = None
            self.freed = True

    def stale(self) -> Any:
        """Return the first saved value whose memory was written in place since it was saved, or
        None.

        The memory itself counts writes, so writes through any view or handle of it are noticed.
        """
        made = self.made
        for data in (*(self.saved or ()), self.output):
            for part in data if type(data) is tuple else (data,):
                if part is not None and part.view.written > made:
                    return part
        return None

    def __repr__(self) -> str:
        what = "leaf" if self.op is None else repr(self.op)
        return f"Node({what}, {', '.join(map(str, self.specs))})"


def spec_of(data: Any) -> Any:
    if type(data) is tuple:
        return tuple([Spec(d.shape, d.dtype, d.device) for d in data])
    return Spec(data.shape, data.dtype, data.device)
