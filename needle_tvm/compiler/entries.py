"""What a jit function keeps for a signature: compiled code, or word that it runs eagerly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from needle import Tensor
from needle.autograd.node import Node
from needle.common import tree
from needle.errors import ChangedError, TraceError
from needle.op import Op
from needle.trace.captures import Surroundings
from needle.trace.tracer import as_tensor
from needle.trace.weights import Weights, baked_in, differences
from needle_tvm.compiler.executable import calls_of
from needle_tvm.errors import ParameterError
from needle_tvm.runtime import Program

_ticks = itertools.count()


class Entry:
    """A function, ready for calls of one signature.

    `baked` are the values around the function that are fixed in it, `facts` these and what fixes
    the signature, by name; `outdated` says why it `is_current` no more.
    """

    def __init__(self, baked: dict[str, Any]) -> None:
        self.baked = baked
        self.key: tuple[Any, ...] = ()
        self.facts: dict[str, Any] = {}
        self.outdated = ""
        self.used = 0

    def use(self) -> None:
        """Note that it is used now: `used` is larger than that of all others."""
        self.used = next(_ticks)

    def is_current(self) -> bool:
        """Whether what it fixes has not changed. Takes the current weights."""
        raise NotImplementedError

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """The function's result for these inputs."""
        raise NotImplementedError


class Compiled(Entry):
    """Compiled code that returns a flat tuple, or one tensor if `output_tree` has one alone.

    `with_gradient` says for each result whether the function's would require a gradient: taking
    one through the compiled result is an error.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        weights: Weights,
        output_tree: Any,
        with_gradient: Sequence[bool],
    ) -> None:
        super().__init__(weights.baked)
        program.set_weights(weights.values())
        self._weights, self._use = weights, program.set_weights
        self._calls = calls_of(program)
        self._tree = None if output_tree == tree.LEAF else output_tree
        self._single = len(with_gradient) == 1
        op = _Call(name)
        self._nodes = [(n, op) for n, required in enumerate(with_gradient) if required]

    def is_current(self) -> bool:
        """See Entry."""
        try:
            self._weights.follow(self._use)
        except (ChangedError, ParameterError) as error:
            self.outdated = str(error)
            return False
        return True

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """See Entry."""
        self.use()
        results = self._calls(tuple(leaves), {})
        for number, op in self._nodes:
            result = results if self._single else results[number]
            result._node = node = Node(result.spec, True)
            node.op = op
        if self._tree is None:
            return results
        return tree.unflatten(self._tree, iter([results] if self._single else results))


class _Call(Op):
    """A call of compiled code, through which no gradient passes."""

    name = "jit"

    def __init__(self, function: str) -> None:
        self._function = function

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        """RuntimeError that says where gradients can be taken."""
        raise RuntimeError(
            f"backward: no gradient passes through a call of the jit function {self._function}: "
            "take the gradient inside it and return it, or call it under needle.no_grad()"
        )


class Eager(Entry):
    """A function that cannot be traced: `call` takes its inputs as Tensors."""

    def __init__(
        self, call: Callable[[Sequence[Tensor]], Any], find: Callable[[], Surroundings]
    ) -> None:
        self._call, self._find = call, find
        super().__init__(self._around())

    def _around(self) -> dict[str, Any]:
        try:
            return baked_in(self._find())[0]
        except TraceError:  # it reads what cannot be watched, and so is never traced
            return {}

    def is_current(self) -> bool:
        """See Entry: with another value around it, it may well be traced."""
        changes = differences(self._around(), self.baked)
        self.outdated = "; ".join(changes)
        return not changes

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """See Entry."""
        self.use()
        result = self._call([as_tensor(each) for each in leaves])
        self.baked = self._around()  # what the call itself has written does not count
        return result
