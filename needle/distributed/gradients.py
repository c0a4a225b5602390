"""Sum a model's gradients over the ranks."""

from __future__ import annotations

import functools
import json
import operator
import zlib
from typing import Any

import numpy as np

from .. import rng
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import compute_dtype
from ..common.state import state
from ..common.user_code import user_line
from ..errors import TraceError
from ..nn.module import Module


class _Bucket:
    """A group of gradients that are summed together."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.size = dtype, 0
        self.numbers: list[int] = []  # the numbers of its parameters
        self.missing = 0  # how many parameters have no gradient yet in this pass
        self.values: Any = None  # the gradients, one after the other


class Gradients:
    """Sums the gradients of one model over the ranks.

    The buckets are summed in order, each as soon as this rank has all the bucket's gradients. At
    the end of a pass the remaining buckets are summed, with zeros for missing gradients. So every
    rank sums the same buckets in the same order, whichever parameters it uses.
    """

    def __init__(self, group: Any, model: Module, reduction: str, cap_mb: float) -> None:
        self.group, self.reduction, self.number = group, reduction, group._models
        self.comm = group._meetings.Dup()
        # The last layers come first, as in a backward pass.
        self.params = [p for p in model.parameters() if p.requires_grad][::-1]
        self.buckets: list[_Bucket] = []
        self.where: list[tuple[_Bucket, slice]] = []  # the position of each gradient
        for number, param in enumerate(self.params):
            dtype, size = compute_dtype(param.dtype), int(param.size)
            bucket = self.buckets[-1] if self.buckets else None
            if (
                bucket is None
                or bucket.dtype != dtype
                or (bucket.size + size) * np.dtype(dtype).itemsize > cap_mb * 2**20
            ):
                bucket = _Bucket(dtype)
                self.buckets.append(bucket)
            self.where.append((bucket, slice(bucket.size, bucket.size + size)))
            bucket.numbers.append(number)
            bucket.size += size
            param.register_hook(functools.partial(self._ready, number))
            param.register_post_accumulate_grad_hook(self._finish)
        for bucket in self.buckets:
            bucket.values = np.zeros(bucket.size, bucket.dtype)
        self.passes = 0
        self._reset()

    def _reset(self) -> None:
        # For each parameter that has received a gradient in this pass, its `grad` before the pass.
        self.before: dict[int, Tensor | None] = {}
        self.requests: list[Any] = []  # an MPI request for each bucket whose sum has begun
        for bucket in self.buckets:
            bucket.missing = len(bucket.numbers)

    def _ready(self, number: int, gradient: Tensor) -> None:
        """Store the gradient of a parameter and sum the buckets that are complete (a hook)."""
        if state.trace is not None:
            raise TraceError(
                f"tracing: {state.trace.here} calls backward() of a data_parallel model; its "
                "gradients are summed over the ranks, which compiled code cannot do: run the "
                f"step eagerly{user_line()}"
            )
        if not state.accumulating:  # autograd.grad, which does not change `grad`
            return
        if state.grad:
            raise RuntimeError(
                "backward: create_graph=True records no graph through the sums over the ranks of a "
                "data_parallel model; use autograd.grad(..., create_graph=True) for an inner "
                "gradient"
            )
        if number in self.before:
            raise RuntimeError(
                "backward: the last backward() of this data_parallel model ended with an error, "
                "and its sums over the ranks are not complete; begin again from a checkpoint"
            )
        self.before[number] = self.params[number].grad
        bucket, where = self.where[number]
        values, weight = gradient.numpy().reshape(-1), self.group._weights(self.reduction)
        np.multiply(values, weight, out=bucket.values[where], dtype=bucket.dtype)
        bucket.missing -= 1
        while len(self.requests) < len(self.buckets):
            bucket = self.buckets[len(self.requests)]
            if bucket.missing:
                break
            self._sum(bucket)
        self.group._mpi.Request.Testall(self.requests)  # lets MPI make progress

    def _sum(self, bucket: _Bucket) -> None:
        in_place = self.group._mpi.IN_PLACE
        self.requests.append(self.comm.Iallreduce(in_place, bucket.values))

    def _finish(self, _: Tensor) -> None:
        """Set every `grad` at the end of a pass (a hook). Only the first call in a pass has an
        effect."""
        if not self.before:
            return
        for bucket in self.buckets[len(self.requests) :]:
            for number in bucket.numbers:
                if number not in self.before:
                    bucket.values[self.where[number][1]] = 0
            self._sum(bucket)
        self.passes += 1
        group, what = self.group, f"sums the gradients of backward pass {self.passes}"
        used = sum(1 << number for number in self.before)
        drawn = zlib.crc32(json.dumps(rng.get_state()).encode())
        met = group._meet(f"{what} of model {self.number}{group._at}", (used, drawn))
        if any(theirs != met[0][1] for _, theirs in met):
            raise RuntimeError(
                "needle.distributed: the ranks have drawn different random numbers: draw the same "
                "on all ranks, or from a rank's own generator (a np.random.Generator)"
            )
        group._mpi.Request.Waitall(self.requests)
        used = functools.reduce(operator.or_, (theirs for theirs, _ in met))
        for number, param in enumerate(self.params):
            if used >> number & 1:
                bucket, where = self.where[number]
                values = bucket.values[where].reshape(param.shape)
                total = Tensor(values, device=param.device, dtype=param.dtype, requires_grad=False)
                before = self.before.get(number, param.grad)
                param.grad = total if before is None else before + total
        self._reset()
