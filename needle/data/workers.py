"""Worker processes that prepare the batches of a DataLoader.

The parent sends each worker numbered tasks through a pipe. The worker pickles the batch into a
block of shared memory, with the arrays as out-of-band buffers (PEP 574), and its answer contains
only sizes. The parent copies the batch out, so the block can be reused.

A worker keeps one block for each task that may be pending, and creates a new block if a batch does
not fit. The parent unlinks the name of a new block as soon as it has mapped the block. A block's
name follows from the number of its task, so after a worker's death the parent can also unlink
blocks that it has not mapped. If the parent itself is killed, multiprocessing's resource tracker
unlinks the remaining blocks.

As in PyTorch, processes are forked where that is Python's default: nothing needs to be pickled, and
data in memory is shared. needle's locks and threads survive a fork (a child's kernels run on one
thread), and so do NumPy's.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import contextlib
import itertools
import os
import pickle
import random
import secrets
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker, shared_memory
from typing import Any

import numpy as np

from .. import rng
from ..backend_ndarray.threads import set_num_threads
from .fetch import WORKERS, End, Seed

_ALIGNMENT = 64
_GRACE = 5.0  # seconds that a worker has to exit by itself


@dataclass
class WorkerInfo:
    """Information about a worker process: its number `id` in 0..`num_workers` - 1, its `seed`, and
    its copy of the `dataset`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return information about the calling process if it is a DataLoader's worker, else None."""
    return _info


class Workers:
    """A pool of `count` processes that call `fetch(seed, number, indices)`, each up to `ahead`
    tasks in advance.

    The processes' generators are seeded from `seed`, and `init(id)` runs first in each process. A
    worker that is silent for `timeout` seconds (0: no limit) causes an error.
    """

    def __init__(
        self,
        fetch: Any,
        count: int,
        ahead: int,
        seed: Seed,
        init: Callable[[int], Any] | None,
        context: Any,
        timeout: float,
    ) -> None:
        self._ahead, self._timeout = ahead, timeout
        resource_tracker.ensure_running()  # one for this process, instead of one for each child
        self._owner = os.getpid()
        prefix = f"needle-{self._owner}-{secrets.token_hex(4)}"
        self._workers: list[_Worker] = []
        self._waiting: deque[_Worker] = deque()  # the worker of each unanswered task
        self._close = weakref.finalize(self, _close, self._owner, self._workers)
        base = int(np.random.SeedSequence((*seed, WORKERS)).generate_state(1, np.uint64)[0] >> 1)
        for i in range(count):
            ours, theirs = context.Pipe()
            about = WorkerInfo(i, count, (base + i) % 2**63, fetch.dataset)
            names = f"{prefix}-{i}"
            process = context.Process(
                target=_work,
                args=(theirs, fetch, about, init, names, ahead),
                daemon=True,
                name=f"needle-data-{i}",
            )
            with warnings.catch_warnings(), _no_interrupts():
                # Python warns of forks in a process with threads; the module's docstring says why
                # this fork is safe.
                warnings.filterwarnings("ignore", "This process", DeprecationWarning)
                process.start()
            theirs.close()
            self._workers.append(_Worker(i, process, ours, names, ahead))

    def batches(self, seed: Seed, tasks: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        """Yield the result of `fetch` for each task (number, indices) of `tasks`, in order."""
        active = set(range(len(self._workers)))  # workers whose streams have not ended

        def send(worker: _Worker, begins: bool = False) -> None:
            for number, indices in itertools.islice(tasks, 1):
                worker.send((seed, number, indices, begins))
                self._waiting.append(worker)

        for i in range(self._ahead):
            for worker in self._workers:
                send(worker, begins=i == 0)
        while self._waiting:
            worker = self._waiting.popleft()
            batch = worker.receive(self._timeout)
            if batch is End:
                active.discard(worker.id)
                continue
            if worker.id in active:
                send(worker)
            yield batch

    def drop_waiting(self) -> None:
        """Drop the batches that are still in preparation, so that another pass can use the
        workers."""
        while self._waiting and self.are_alive():
            with contextlib.suppress(Exception):  # an error in a batch that is not needed
                self._waiting.popleft().receive(self._timeout)

    def are_alive(self) -> bool:
        """Return whether all workers can take tasks from this process. They cannot in a forked
        child, because they belong to its parent."""
        if not self._close.alive or os.getpid() != self._owner:
            return False
        return all(w.process.exitcode is None for w in self._workers)

    def close(self) -> None:
        """Stop the processes and free their shared memory."""
        self._close()


class _Worker:
    """The parent's record of a worker process."""

    def __init__(self, number: int, process: Any, pipe: Any, names: str, ahead: int) -> None:
        self.id, self.process, self.pipe, self.names = number, process, pipe, names
        self.blocks: list[shared_memory.SharedMemory | None] = [None] * ahead
        self.sent = self.received = 0

    def send(self, task: Any) -> None:
        """Send a task; None stops the worker."""
        self.sent += task is not None
        with contextlib.suppress(OSError):  # the worker is dead, which `receive` will report
            self.pipe.send(task)

    def receive(self, timeout: float) -> Any:
        """Return the answer to the oldest task. Raises RuntimeError if the worker has died."""
        ready = connection.wait([self.pipe, self.process.sentinel], timeout or None)
        if not ready:
            raise RuntimeError(
                f"DataLoader: worker {self.id} (pid {self.process.pid}) returned no batch within "
                f"timeout={timeout} seconds"
            )
        try:
            if self.pipe not in ready and not self.pipe.poll():
                raise EOFError
            kind, *answer = self.pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(self._obituary()) from None
        task, self.received = self.received, self.received + 1
        if kind == "batch":
            return self._unpacked(task, *answer)
        if kind == "error":
            raise _rebuilt_error(*answer)
        return End

    def _unpacked(self, task: int, is_new: bool, sizes: list[int]) -> Any:
        slot = task % len(self.blocks)
        block = self.blocks[slot]
        if is_new or block is None:
            if block is not None:
                block.close()
            block = self.blocks[slot] = shared_memory.SharedMemory(f"{self.names}-{task}")
            block.unlink()  # the memory lives until both processes have closed it
        parts: list[Any] = [
            _bytes(block, start, size).copy()
            for start, size in zip(_starts(sizes), sizes, strict=True)
        ]
        return pickle.loads(parts[0], buffers=parts[1:])

    def _obituary(self) -> str:
        self.process.join(_GRACE)
        code = self.process.exitcode
        how = f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        advice = {
            -signal.SIGKILL: "; the system kills processes when memory runs out",
            -signal.SIGBUS: "; /dev/shm is too small for the batches in flight",
        }
        return (
            f"DataLoader: worker {self.id} (pid {self.process.pid}) {how} before its batch was "
            f"ready{advice.get(code or 0, '')}"
        )


def _close(owner: int, workers: list[_Worker]) -> None:
    if os.getpid() != owner:
        return  # a forked child has copies of these objects, but its parent owns the processes
    for worker in workers:
        worker.send(None)
        worker.pipe.close()
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
    for end in ("terminate", "kill"):
        left = [worker.process for worker in workers if worker.process.exitcode is None]
        for process in left:
            getattr(process, end)()
        for process in left:
            process.join(_GRACE)
    for worker in workers:
        for block in worker.blocks:
            if block is not None:
                block.close()
        # Ctrl-C may have interrupted the parent while it was mapping the last answer's block.
        for task in range(max(0, worker.received - 1), worker.sent):
            _unlink(f"/{worker.names}-{task}")


def _unlink(name: str) -> None:
    """Remove the block of shared memory called `name`, if there is one, and its entry in the
    resource tracker.

    SharedMemory can only remove a block that has a size and an entry, but the worker may have been
    killed, or the parent interrupted, while it was creating or removing the block. The tracker
    keeps a set: registering a name twice is harmless, but removing an absent name is an error.
    """
    resource_tracker.register(name, "shared_memory")
    with contextlib.suppress(FileNotFoundError):
        _posixshmem.shm_unlink(name)
    resource_tracker.unregister(name, "shared_memory")


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block Ctrl-C in this thread and in the processes that it starts, which inherit the signal
    mask. A worker can ignore the signal only once its own code runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _starts(sizes: list[int]) -> list[int]:
    """Return the offsets in a block at which parts of these sizes begin."""
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    return [sum(padded[:i]) for i in range(len(sizes))]


def _bytes(block: shared_memory.SharedMemory, start: int, size: int) -> np.ndarray[Any, Any]:
    memory: Any = block.buf
    return np.frombuffer(memory, np.uint8, size, start)


# In the worker process


def _work(pipe: Any, fetch: Any, about: WorkerInfo, init: Any, names: str, ahead: int) -> None:
    """Answer tasks until the parent closes the pipe or dies."""
    global _info
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent stops this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _info = about
    blocks: list[shared_memory.SharedMemory | None] = [None] * ahead
    failure: Any = None
    try:
        set_num_threads(1)
        if "torch" in sys.modules:  # in a forked process, torch's OpenMP hangs with more threads
            sys.modules["torch"].set_num_threads(1)
        random.seed(about.seed)
        np.random.seed(about.seed % 2**32)
        rng.manual_seed(about.seed)
        if init is not None:
            init(about.id)
    except Exception as error:
        failure = _described(error, about.id)
    parent = os.getppid()
    try:
        for number in itertools.count():
            # Other processes may have inherited the parent's end of the pipe, so if the parent
            # dies, there may be no EOF.
            while not pipe.poll(_GRACE):
                if os.getppid() != parent:
                    return
            task = pipe.recv()
            if task is None:
                return
            answer: Any = failure
            if failure is None:
                try:
                    batch = fetch(*task)
                    slot = number % ahead
                    answer = (
                        ("end",) if batch is End else _packed(batch, blocks, slot, names, number)
                    )
                except Exception as error:
                    answer = _described(error, about.id)
            pipe.send(answer)
            del answer
    except (EOFError, OSError):
        pass  # the parent has closed the pipe or has died


def _packed(
    batch: Any, blocks: list[Any], slot: int, names: str, number: int
) -> tuple[str, bool, list[int]]:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    views: list[Any] = [head, *(buffer.raw() for buffer in buffers)]
    parts = [np.frombuffer(view, np.uint8) for view in views]
    sizes = [len(part) for part in parts]
    starts, block = _starts(sizes), blocks[slot]
    is_new = block is None or block.size < starts[-1] + sizes[-1]
    if is_new:
        if block is not None:
            block.close()
        size = max(1, starts[-1] + sizes[-1])
        block = blocks[slot] = shared_memory.SharedMemory(f"{names}-{number}", True, size)
    for start, part in zip(starts, parts, strict=True):
        _bytes(block, start, len(part))[:] = part
    return "batch", is_new, sizes


def _described(error: Exception, worker: int) -> tuple[str, type[Exception], str]:
    text = "".join(traceback.format_exception(error)).rstrip()
    message = (
        f"Caught {type(error).__name__} in DataLoader worker process {worker}.\nOriginal {text}"
    )
    try:
        pickle.loads(pickle.dumps(type(error)))
    except Exception:  # a class that the parent cannot find
        return "error", RuntimeError, message
    return "error", type(error), message


class _KeyErrorText(str):
    """A text that is its own repr. KeyError shows the repr of its message, which would escape line
    breaks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _rebuilt_error(kind: type[Exception], message: str) -> Exception:
    """Return an error of the class `kind`, or a RuntimeError if such an error cannot be created
    from a message alone."""
    try:
        error = kind(_KeyErrorText(message) if issubclass(kind, KeyError) else message)
    except Exception:
        return RuntimeError(message)
    return error if message in str(error) else RuntimeError(message)
