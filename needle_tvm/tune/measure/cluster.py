"""Measure candidates on other machines, as tasks of a Dask cluster. Importing this module does not
import TVM.

`bench` uses `Cluster` in place of its local worker. Users start Dask's scheduler and workers
themselves; docs/tuning.md says how. A task (`run_task`) carries a request with its files to a
worker, which runs it as this machine would: in a process of `Workers`, killed at its limits. Dask
gives each worker one candidate at a time, and gives a dead worker's candidates to the others.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import psutil

from needle_runtime._tvm.versions import installed
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import available_cores, thread_environment
from needle_runtime.target import host
from needle_runtime.text import error_line
from needle_tvm.errors import ClusterError
from needle_tvm.tune.measure.workers import Limits, Outcome, Runner, Workers

if TYPE_CHECKING:
    from distributed import Client, Future

RESOURCE = "needle"  # a worker that offers this resource measures candidates
LOST = "lost"  # kind of a candidate that could not be measured in any try: its quality is unknown
WAIT_SECONDS = 30.0  # how long to wait for a worker

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.5  # interval between checks of the workers
_RETRIES = 2  # retries of a task that fails for a reason other than its candidate
_LIBRARIES = ("path", "rule", "candidate")  # the keys of a request that name a library
_PACKAGES = ("needle-dl", "apache-tvm", "apache-tvm-ffi")
_SERVICE = "needle_tvm.tune.measure.services:serve"

Files = dict[str, bytes]


def needs(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a worker must have to measure code for `target`, TVM's description of a target.
    Imports TVM."""
    from needle_tvm._tvm.names import make_target
    from needle_tvm.target.info import target_info

    triple = str(target.get("mtriple") or platform.machine())
    return {
        "machine": triple.partition("-")[0],
        "features": host.checkable(target_info(make_target(dict(target))).features),
        "cores": int(target.get("num-cores", 1)),
        "versions": {name: installed(name) for name in _PACKAGES},
    }


def unfitness(needed: Mapping[str, Any]) -> str:
    """Return the reason that this machine does not meet the requirements `needed`; "" if it
    does."""
    if platform.machine() != needed["machine"]:
        return f"is a {platform.machine()} machine, and the target needs {needed['machine']}"
    lacking = host.missing_features(needed["features"])
    if lacking is None:
        return host.UNKNOWN
    if lacking:
        return f"its processor lacks the target's features {', '.join(lacking)}"
    if available_cores() < needed["cores"]:
        return f"has {available_cores()} cores, the target needs {needed['cores']}: set num-cores"
    for name, version in needed["versions"].items():
        if installed(name) != version:
            return f"has {name} {installed(name)}, but this machine has {version}"
    return ""


def run_task(
    request: Mapping[str, Any],
    libraries: Files,
    gate: Files,
    *,
    needed: Mapping[str, Any],
    limits: Limits,
) -> Outcome:
    """Run a `request` of `services.serve` on a worker, in a process with these `limits`.

    `libraries` has the contents of the request's libraries, by the request's keys, and `gate` the
    contents of the gate's files, by file name. Raises ClusterError, naming the worker, if the
    machine does not meet the requirements `needed`.
    """
    from distributed import get_worker

    reason = unfitness(needed)
    if reason:
        raise ClusterError(f"worker {get_worker().address}: {reason}")
    limits = replace(limits, memory=min(limits.memory, psutil.virtual_memory().total // 2))
    with _machine_lock(), scratch_folder("needle-cluster-") as folder:
        for name, content in libraries.items():
            folder.joinpath(f"{name}.so").write_bytes(content)
        folder.joinpath("gate").mkdir()
        for name, content in gate.items():
            folder.joinpath("gate", name).write_bytes(content)
        places = {name: str(folder / f"{name}.so") for name in libraries}
        local = {**request, **places, "gate": str(folder / "gate")}
        outcome = _workers(needed["cores"]).call(local, limits)
    if outcome.ok:
        return outcome
    return replace(outcome, detail=f"worker {get_worker().address}: {outcome.detail}")


@functools.cache
def _workers(threads: int) -> Workers:
    """Return this Dask worker's own processes for code with `threads` threads; they end with the
    Dask worker."""
    environment = thread_environment(threads)
    limits = Limits(seconds=1.0, memory=1 << 30)  # every call passes its own
    return Workers("runner", _SERVICE, processes=1, limits=limits, environment=environment)


@contextmanager
def _machine_lock() -> Iterator[None]:
    """Let only one candidate at a time run on this machine, even if it has several Dask
    workers."""
    path = Path(tempfile.gettempdir(), f"needle-measuring-{os.getuid()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_cluster(address: str, target: Mapping[str, Any], wait: float = WAIT_SECONDS) -> None:
    """Check that the scheduler answers and has suitable workers. Raises the errors of `Cluster`."""
    _connect(address, needs(target), wait).close()


class Cluster(Runner):
    """Measures candidates on a Dask cluster's workers; `map` and `call` are as in `Workers`.

    `address` is the scheduler's, such as "tcp://192.0.2.10:8786"; for "tls://", the certificates
    come from Dask's configuration. `target` is TVM's description of the candidates' target.
    `limits` apply to a candidate's process on its worker. `wait` is the number of seconds for which
    the cluster may have no worker. A candidate that no worker could measure has the kind LOST. A
    Cluster is a context manager and works only on Linux.

    Raises ClusterError, with the address, if Dask is not installed, the scheduler cannot be
    reached, no worker offers the resource in time, or a worker does not fit the target. `map` and
    `call` raise it too if this happens later.
    """

    def __init__(
        self,
        address: str,
        target: Mapping[str, Any],
        *,
        limits: Limits,
        wait: float = WAIT_SECONDS,
    ) -> None:
        self._address, self._limits, self._wait = address, limits, wait
        self._needed = needs(target)
        self._gates: dict[str, Future[Files]] = {}  # on the cluster, by folder
        self._client = _connect(address, self._needed, wait)

    def close(self, *error: object) -> None:
        """Leave the cluster; Dask then drops tasks that have not started."""
        self._gates.clear()
        self._client.close()

    def map(
        self,
        requests: Sequence[Mapping[str, Any]],
        limits: Limits | None = None,
        processes: int | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (index, outcome) for each request of `services.serve` as it ends."""
        import dask
        from distributed import TimeoutError as DaskTimeoutError

        done: SimpleQueue[Future[Outcome]] = SimpleQueue()
        open_: dict[Future[Outcome], int] = {}
        # A gate may have many megabytes. As the argument of a task, it stays with the scheduler,
        # which sends it again if the worker that has it dies.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            gates = {str(request["gate"]) for request in requests}
            self._gates = {path: self._gates.get(path) or self._gate(path) for path in gates}
            for index, request in enumerate(requests):
                open_[self._submit(request, limits or self._limits)] = index
        for future in open_:
            future.add_done_callback(done.put)
        try:
            while open_:
                future = self._next(done)
                try:
                    outcome = self._outcome(future)
                except DaskTimeoutError:  # the worker died with the result; Dask measures again
                    future.add_done_callback(done.put)
                    continue
                yield open_.pop(future), outcome
        finally:
            if open_:
                with suppress(OSError, DaskTimeoutError):  # the scheduler has gone
                    self._client.cancel(list(open_))

    def _gate(self, folder: str) -> Future[Files]:
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return self._client.submit(_same, files, pure=False)

    def _submit(self, request: Mapping[str, Any], limits: Limits) -> Future[Outcome]:
        libraries = {
            name: Path(request[name]).read_bytes() for name in _LIBRARIES if name in request
        }
        return self._client.submit(
            run_task,
            dict(request),
            libraries,
            self._gates[str(request["gate"])],
            needed=self._needed,
            limits=limits,
            resources={RESOURCE: 1},
            retries=_RETRIES,
            pure=False,
        )

    def _next(self, done: SimpleQueue[Future[Outcome]]) -> Future[Outcome]:
        """Return the next finished future. Raises ClusterError if there is no worker."""
        missing: float | None = None  # the time since which there has been no worker
        while True:
            with suppress(Empty):
                return done.get(timeout=_POLL_SECONDS)
            if _measuring(self._client, self._address)[0]:
                missing = None
                continue
            missing = missing or time.monotonic()
            if time.monotonic() - missing > self._wait:
                raise ClusterError(_no_worker(self._address, self._wait, 0))

    def _outcome(self, future: Future[Outcome]) -> Outcome:
        if future.status == "finished":
            return future.result(timeout=self._wait)
        if future.status != "error":  # cancelled or lost
            raise ClusterError(f"cluster {self._address}: the scheduler has gone")
        error = future.exception()
        if isinstance(error, ClusterError):
            raise ClusterError(f"cluster {self._address}: {error}")
        return Outcome(LOST, detail=f"{type(error).__name__}: {error_line(error)}")


def _same(files: Files) -> Files:
    return files


def _connect(address: str, needed: Mapping[str, Any], wait: float) -> Client:
    """Connect to a cluster, check that all its measuring workers are suitable, and return the
    client."""
    try:
        from distributed import Client
        from distributed import TimeoutError as DaskTimeoutError
    except ImportError as error:
        raise ClusterError(
            f"cluster {address}: Dask cannot be imported ({error_line(error)}): "
            "pip install 'needle-dl[cluster]'"
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, DaskTimeoutError) as error:  # TypeError: no TLS set up
        raise ClusterError(
            f"cluster {address}: no Dask scheduler answers there ({error_line(error)})"
        ) from error
    try:
        end = time.monotonic() + wait
        while True:
            workers, others = _measuring(client, address)
            if workers:
                break
            if time.monotonic() > end:
                raise ClusterError(_no_worker(address, wait, others))
            time.sleep(_POLL_SECONDS)
        found = client.run(unfitness, needed, workers=workers, on_error="return")
        for worker, reason in sorted(found.items()):
            if isinstance(reason, Exception):
                reason = f"{type(reason).__name__}: {error_line(reason)}"
            if reason:
                raise ClusterError(f"cluster {address}: worker {worker}: {reason}")
    except BaseException:
        client.close()
        raise
    return client


def _measuring(client: Client, address: str) -> tuple[list[str], int]:
    """Return the names of the workers that measure, and the number of other workers."""
    from distributed import TimeoutError as DaskTimeoutError

    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except (OSError, DaskTimeoutError) as error:
        raise ClusterError(f"cluster {address}: the scheduler has gone") from error
    found = [name for name, about in workers.items() if about["resources"].get(RESOURCE, 0) >= 1]
    return found, len(workers) - len(found)


def _no_worker(address: str, wait: float, others: int) -> str:
    without = f" ({others} without it)" if others else ""
    return (
        f"cluster {address}: no worker with the resource {RESOURCE}=1 within {wait:g} s{without}: "
        f"start one by: dask worker {address} --nworkers 1 --nthreads 1 --resources {RESOURCE}=1"
    )
