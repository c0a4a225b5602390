"""The group of ranks that compute together."""

from __future__ import annotations

import atexit
import os
import random
import sys
import time
from typing import Any

import numpy as np

from .. import rng
from ..autograd.tensor import Tensor, overwrite
from ..backend_ndarray.arguments import not_negative
from ..backend_ndarray.threads import get_num_threads, set_num_threads
from ..data import DataLoader, IterableDataset
from ..nn.module import Module
from .batch_norm import synchronise
from .gradients import Gradients
from .part_loader import PartLoader

_group: Group | None = None


def init() -> Group:
    """Join the ranks that mpiexec started; without mpiexec there is one rank. Every call returns
    the same Group.

    All ranks get the state of rank 0's random generators, and each gets a share of the machine's
    cores (unless NEEDLE_NUM_THREADS sets the number of threads). From then on, an uncaught error in
    one rank terminates all ranks.

    Raises ImportError if mpi4py or an MPI library is missing.
    """
    global _group
    if _group is None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ImportError(
                f"needle.distributed needs mpi4py and an MPI library ({error}): "
                "pip install 'needle-dl[mpi]'"
            ) from error
        _group = Group(MPI)
    return _group


class Group:
    """The group of ranks that compute together, returned by `init`. It has `size` processes, and
    this process is number `rank`. Print and save only on rank 0.

    Every rank must call all methods in the same order; otherwise a RuntimeError names the rank that
    did something else.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._meetings = mpi.COMM_WORLD.Dup()
        self.rank: int = self._meetings.rank
        self.size: int = self._meetings.size
        self._pid = os.getpid()
        self._models = 0
        self._weight = 1 / self.size  # the weight of this rank's rows in a mean over the batch
        self._at = ""  # the current batch, for messages
        if self.size == 1:
            return
        if "NEEDLE_NUM_THREADS" not in os.environ:
            here = self._meetings.Split_type(mpi.COMM_TYPE_SHARED).size
            set_num_threads(max(1, get_num_threads() // here))
        states = rng.get_state(), np.random.get_state(), random.getstate()
        states = self._meetings.bcast(states)
        np.random.set_state(states[1])
        random.setstate(states[2])
        rng.set_state(states[0])
        self._show = sys.excepthook
        sys.excepthook = self._end_all
        atexit.register(self._leave)

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size})"

    def __reduce__(self) -> Any:
        return init, ()  # a copied or unpickled model uses this process's group

    def data_parallel(
        self,
        model: Module,
        *,
        reduction: str = "mean",
        sync_batch_norm: bool = False,
        bucket_cap_mb: float = 4.0,
    ) -> Module:
        """Copy the parameters and buffers of `model` from rank 0 to all ranks, and return the
        model. From then on, each `backward` sums the model's gradients over the ranks.

        `reduction` is the reduction of the loss over the rows of a batch. For "mean", each rank's
        gradients are weighted by its share of the batch; for "sum" they are added. If a rank does
        not use a parameter, that rank contributes zeros; a parameter that no rank uses keeps its
        `grad`. The summation of gradients begins while the backward pass runs, in buckets of up to
        `bucket_cap_mb` MB, and is complete at its end. Parameters that require no gradient at the
        time of this call are left out.

        On each rank, batch norm uses the statistics of that rank's rows and keeps running
        statistics of them, so N ranks do not compute the same as one process. With
        `sync_batch_norm` it uses the statistics of the whole batch.

        Raises ValueError if the ranks' models differ, and for any other `reduction`. Afterwards,
        `backward` raises a TraceError under `needle_tvm.jit`, and a RuntimeError with
        create_graph=True.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"data_parallel: reduction {reduction!r} is neither 'mean' nor 'sum'")
        cap = not_negative("data_parallel", "bucket_cap_mb", bucket_cap_mb)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        specs = {
            name: f"{x.dtype}{list(x.shape)}{' with gradient' * x.requires_grad}"
            for name, x in tensors.items()
        }
        first, *others = self._meet("shares a model", value=list(specs.items()))
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                raise ValueError(f"data_parallel: {_difference(dict(first), dict(theirs), rank)}")
        self._models += 1
        gradients = Gradients(self, model, reduction, cap)
        if sync_batch_norm and self.size > 1:
            synchronise(model, self, reduction)
        for x in tensors.values():
            values = np.ascontiguousarray(x.numpy()).reshape(-1)
            gradients.comm.Bcast(values.view(np.uint8))
            overwrite(x, Tensor(values.reshape(x.shape), device=x.device, requires_grad=False))
        return model

    def split(self, loader: DataLoader) -> DataLoader:
        """Return a DataLoader that yields this rank's rows of each batch of `loader`.

        Its `state_dict` is the state of `loader` and counts whole batches, so a run with another
        number of ranks can continue from it. If a batch has fewer rows than there are ranks, a rank
        without rows gets the last row with a weight of 0.

        Within a pass, functions such as dropout, `rand`, `randn` and `randint` draw the numbers
        that one process would draw for the same rows of the whole batch. The rows must be along the
        first axis. Random numbers that a dataset draws, for a crop for example, differ from rank to
        rank.

        Raises ValueError for a loader of single items or of an IterableDataset.
        """
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise ValueError(
                f"split: {loader!r} has no batches of numbered items; give it a batch_size, or let "
                "a stream leave out the rows of other ranks"
            )
        return PartLoader(loader, self)

    def mean(self, value: Tensor | float) -> float:
        """Return the mean of `value`, such as a loss, over all rows of the batch. Each rank's value
        is weighted by the rank's share of the batch."""
        parts = self._meet(f"takes a mean{self._at}", value=(self._weight, float(value)))
        return sum(weight * part for weight, part in parts if weight)

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        self._meet("is at a barrier")

    def _weights(self, reduction: str) -> float:
        """Return the weight of this rank's gradients in the sum over the ranks."""
        return self._weight if reduction == "mean" else float(self._weight > 0)

    def _meet(self, what: str, value: Any = None) -> list[Any]:
        """Wait for all ranks and return the `value` of each. Raises RuntimeError unless `what`, the
        description of the rank's current action, is the same on all ranks."""
        met = self._meetings.allgather((what, value))
        for rank, (other, _) in enumerate(met):
            if other != met[0][0]:
                raise RuntimeError(
                    f"needle.distributed: rank 0 {met[0][0]}, but rank {rank} {other}: all ranks "
                    "must take the same steps"
                )
        return [value for _, value in met]

    def _end_all(self, kind: Any, error: Any, traceback: Any) -> None:
        """Show an uncaught error and terminate all ranks."""
        if os.getpid() != self._pid:
            self._show(kind, error, traceback)
            return
        time.sleep(3 * min(self.rank, 1) + 0.1 * min(self.rank, 9))  # if all fail, rank 0 shows why
        sys.stdout.flush()
        self._show(kind, error, traceback)
        sys.stderr.write(f"needle.distributed: rank {self.rank} failed and ends all {self.size}\n")
        sys.stderr.flush()
        time.sleep(1.0)  # gives mpiexec time to forward the text
        self._mpi.COMM_WORLD.Abort(1)

    def _leave(self) -> None:
        """Tell the other ranks that this rank is exiting. A rank that still waits for it then
        fails."""
        if os.getpid() == self._pid and not self._mpi.Is_finalized():
            try:
                self._meet("has ended")
            except RuntimeError:
                pass  # the other ranks report it


def _difference(first: dict[str, str], other: dict[str, str], rank: int) -> str:
    """Describe a difference between the tensors of rank 0 and those of another rank."""
    for name in [*first, *other]:
        one, two = (specs.get(name, "none of that name") for specs in (first, other))
        if one != two:
            return f"{name!r} is {one} on rank 0, and {two} on rank {rank}"
    return f"the same tensors have another order on rank {rank} than on rank 0"
