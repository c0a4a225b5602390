"""Forks one child process per request of `needle_tvm.tune.measure.workers`.

There are two processes between the parent and the children. The parent starts the *guard*. The
guard forks the *template* before anything is imported, and then only waits: when the parent or the
template ends, for whatever reason, the guard kills all processes below it. The template imports the
function's module once and forks a child for each request. It has one thread, because a fork copies
only the thread that calls it and leaves the locks of other threads held for ever.

A child works in its own process group. It is watched from outside, so neither native code that
never returns nor a stopped process can exceed its limits. The guard and the template both adopt
orphaned descendants (see `processes.adopt_orphans`), so that a grandchild in its own group is found
too. This module works only on Linux.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import selectors
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from needle_runtime.process.child import Messages, load_function
from needle_runtime.process.processes import (
    adopt_orphans,
    descendants,
    die_with_parent,
    kill_children,
    newest_process,
    process_table,
    resident_bytes,
)
from needle_tvm.tune.measure.forked import (
    CRASH,
    MEMORY,
    TIMEOUT,
    Function,
    complete,
    lacks_memory,
    work,
)

HEARTBEAT_SECONDS = 1.0  # interval between the template's signs of life while children run
_SAMPLE_SECONDS = 0.02  # interval between samples of a child's resident size
_TREE_SHARE = 0.01  # fraction of time spent looking for grandchildren, which reads all of /proc
_TREE_SECONDS = 2.0  # largest interval between two such scans, on a busy machine
_KILLED_SECONDS = 1.0  # the longest time that a child's outcome waits for its grandchildren to end
_OUTPUT_KEPT, _OUTPUT_LINES = 4096, 5  # bytes of output kept per child; lines shown after a crash


def serve(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Serve requests for `needle_runtime.process.child`; return when the parent sends no more.

    setup: `function` ("package.module:function"), `environment` (variables set after the import,
    null for variables to remove), `folder` (for temporary files: each child gets a subfolder, which
    is removed when the child ends). A message is a request: `id`, `request`, `seconds`, `memory`
    (bytes), `processes` (the most children, including its own, that may run at once). Answers:
    {"ready"} once, {"alive"} now and then, {"started": id} and {"id", "kind", "value", "detail",
    "seconds"} for each request.
    """
    parent, guard = os.getppid(), os.getpid()
    adopt_orphans()
    template = os.fork()
    if template:
        os.close(messages.answers)  # so that the parent sees end of file when the template ends
        _guard(template, parent, messages.commands)
    die_with_parent(guard)
    adopt_orphans()
    function = load_function(setup["function"])
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len(threads) != 1:
        raise RuntimeError(
            f"{setup['function']}: importing it started threads ({', '.join(threads)}), "
            "and a process with threads cannot be forked safely"
        )
    for variable, value in setup["environment"].items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    gc.freeze()  # otherwise a collection in a child would write to all shared memory and copy it
    _Template(function, Path(setup["folder"]), messages).run()
    return iter(())


def _guard(template: int, parent: int, commands: int) -> NoReturn:
    """Wait until the parent or the template ends, kill all processes below this one, and end with
    the template's exit status."""
    try:
        die_with_parent(parent, signal.SIGCONT)  # SIGCONT wakes the guard if it was stopped
        ends = select.poll()
        ends.register(commands, 0)  # reports only that the parent has closed its side
        ends.register(os.pidfd_open(template), select.POLLIN)
        with suppress(ProcessLookupError):
            ends.register(os.pidfd_open(parent), select.POLLIN)
            ends.poll()
        os.kill(template, signal.SIGKILL)
        status = os.waitpid(template, 0)[1]
        deadline = time.monotonic() + _KILLED_SECONDS
        while kill_children() and time.monotonic() < deadline:
            time.sleep(0.005)
        if os.WIFSIGNALED(status):
            with suppress(OSError):
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status))
    finally:
        os._exit(1)  # after any fault: never return into the template's code


@dataclass
class _Job:
    """A request running in its child."""

    number: int
    pid: int
    ended: int  # descriptors of the process, its answer and its output
    answer: int
    output: int
    limit_seconds: float
    limit_memory: int
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    answered: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)
    below: list[int] = field(default_factory=list)  # grandchildren at the last scan
    killed: tuple[str, str] | None = None  # kind and detail, if the template killed it
    outcome: bytes | None = None  # set when the child has ended

    @property
    def deadline(self) -> float:
        return self.started + self.limit_seconds


class _Template:
    """The template's loop: starts children, watches them, and passes their answers on."""

    def __init__(self, function: Function, folder: Path, messages: Messages) -> None:
        self._function, self._folder, self._messages = function, folder, messages
        self._waiting: deque[dict[str, Any]] = deque()
        self._jobs: dict[int, _Job] = {}  # by process id
        self._outgoing = bytearray()
        self._heartbeat = self._next_sample = self._next_tree = 0.0
        self._newest = 0
        # With epoll, a child would share the template's selector.
        self._selector = selectors.PollSelector()

    def run(self) -> None:
        """Serve until the parent closes its side."""
        self._selector.register(self._messages.commands, selectors.EVENT_READ, self._receive)
        os.set_blocking(self._messages.answers, False)
        self._send({"ready": True})
        while True:
            self._beat()
            self._write()
            for key, _ in self._selector.select(self._patience()):
                # If a job was reaped in this loop, its other descriptors are already closed.
                if self._selector.get_map().get(key.fd) is key and key.data(key.fd) is False:
                    return
            self._watch()
            self._finish()
            while self._waiting and len(self._jobs) < self._waiting[0]["processes"]:
                self._start(self._waiting.popleft())

    def _patience(self) -> float | None:
        """Return the seconds until the next check is due; None if only a message can bring work."""
        if not self._jobs:
            return None
        now = time.monotonic()
        due = [job.deadline for job in self._working()]
        return max(0.0, min([self._next_sample, *due]) - now)

    def _working(self) -> list[_Job]:
        return [job for job in self._jobs.values() if not job.outcome and not job.killed]

    def _receive(self, _: int) -> bool:
        messages = self._messages.read()
        if messages is None:
            return False
        self._waiting.extend(messages)
        return True

    def _send(self, answer: dict[str, Any]) -> None:
        self._outgoing += json.dumps(answer).encode() + b"\n"

    def _beat(self) -> None:
        now = time.monotonic()
        if self._jobs and not self._outgoing and now >= self._heartbeat:
            self._send({"alive": True})
            self._heartbeat = now + HEARTBEAT_SECONDS

    def _write(self, _: int = -1) -> None:
        """Write as much as fits into the pipe, and register to write the rest later."""
        answers = self._messages.answers
        while self._outgoing:
            try:
                written = os.write(answers, memoryview(self._outgoing)[: 1 << 16])
            except BlockingIOError:
                break
            del self._outgoing[:written]
        watched = answers in self._selector.get_map()
        if self._outgoing and not watched:
            self._selector.register(answers, selectors.EVENT_WRITE, self._write)
        elif watched and not self._outgoing:
            self._selector.unregister(answers)

    def _start(self, message: dict[str, Any]) -> None:
        answer_out, answer_in = os.pipe()
        output_out, output_in = os.pipe()
        # This is sent before the fork: a child may bring down this process. Its request must not
        # look as if it had never started, since it would then be tried again.
        self._send({"started": message["id"]})
        self._write()
        sys.stdout.flush()
        sys.stderr.flush()
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            foreign = {key.fd for key in self._selector.get_map().values()}
            foreign |= {self._messages.answers, answer_out, output_out}
            folder = self._folder / str(os.getpid())
            ends = answer_in, output_in
            work(self._function, message, folder, template, *ends, sorted(foreign))
        with suppress(OSError):  # the child does this too; either may be first
            os.setpgid(pid, pid)
        os.close(answer_in)
        os.close(output_in)
        job = _Job(
            message["id"],
            pid,
            os.pidfd_open(pid),
            answer_out,
            output_out,
            message["seconds"],
            message["memory"],
        )
        self._jobs[pid] = job
        for descriptor, act in (
            (job.ended, lambda _: self._reap(job)),
            (job.answer, lambda fd: self._take(fd, job.answered)),
            (job.output, lambda fd: self._take(fd, job.printed, _OUTPUT_KEPT)),
        ):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, act)

    def _take(self, descriptor: int, into: bytearray, kept: int | None = None) -> None:
        """Read once, so that a child that prints endlessly does not hold up the others."""
        with suppress(BlockingIOError):
            chunk = os.read(descriptor, 1 << 20)
            if not chunk and descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            into += chunk
            if kept is not None:
                del into[:-kept]

    def _watch(self) -> None:
        """Kill the children that exceed their limits."""
        now = time.monotonic()
        for job in self._working():
            if now >= job.deadline:
                self._kill(job, TIMEOUT, f"no answer within {job.limit_seconds:g} s")
        if now < self._next_sample:
            return
        self._next_sample = now + _SAMPLE_SECONDS
        working = self._working()
        if working and now >= self._next_tree:
            self._look_below(working)
        for job in working:
            resident = sum(resident_bytes(pid) for pid in (job.pid, *job.below))
            if resident > job.limit_memory:
                self._kill(job, MEMORY, f"{_mib(resident)} resident, of {_mib(job.limit_memory)}")

    def _look_below(self, working: list[_Job]) -> None:
        """Find the grandchildren, unless no process has started on this machine since the last
        scan."""
        newest = newest_process()
        if newest == self._newest:
            return
        start, self._newest = time.monotonic(), newest
        table = process_table()
        for job in working:
            job.below = [process.pid for process in descendants(job.pid, table)]
        end = time.monotonic()
        wait = max(5 * _SAMPLE_SECONDS, (end - start) / _TREE_SHARE)
        self._next_tree = end + min(wait, _TREE_SECONDS)

    def _kill(self, job: _Job, kind: str, detail: str) -> None:
        job.killed = kind, detail
        os.kill(job.pid, signal.SIGKILL)  # the child may have left its group
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)

    def _reap(self, job: _Job) -> None:
        """Handle a child's end: kill its group, read its pipes, and record the outcome."""
        job.seconds = time.monotonic() - job.started
        # The group's id is still valid, because the child is reaped only afterwards.
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        # One read empties a pipe. A grandchild may still be writing to it.
        self._take(job.answer, job.answered)
        self._take(job.output, job.printed, _OUTPUT_KEPT)
        for descriptor in (job.ended, job.answer, job.output):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            os.close(descriptor)
        job.outcome = _outcome(job, os.waitpid(job.pid, 0)[1])

    def _finish(self) -> None:
        """Pass on the outcomes of children that have ended, once their descendants are gone."""
        ended = [job for job in self._jobs.values() if job.outcome]
        if not ended:
            return
        working = [pid for pid, job in self._jobs.items() if not job.outcome]
        left = kill_children(spared=working)
        for job in ended:
            if not left or time.monotonic() > job.started + job.seconds + _KILLED_SECONDS:
                self._outgoing += job.outcome or b""
                del self._jobs[job.pid]
                shutil.rmtree(self._folder / str(job.pid), ignore_errors=True)


def _outcome(job: _Job, status: int) -> bytes:
    """Return the line with which to report a request's outcome to the parent."""
    value = b"null"
    printed = bytes(job.printed).decode(errors="replace").splitlines()[-_OUTPUT_LINES:]
    answered = complete(job.answered)
    if job.killed is not None:
        kind, detail = job.killed
    elif answered is not None:
        kind, detail, value = answered
    else:
        code = os.waitstatus_to_exitcode(status)
        how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code} and no answer"
        kind = CRASH
        if code == -signal.SIGABRT and lacks_memory(" ".join(printed)):
            kind = MEMORY
        detail = "\n".join([f"ended {how}", *printed])
    answer = {"id": job.number, "kind": kind, "detail": detail, "seconds": job.seconds}
    # The value is passed on unparsed, because it may be long.
    return json.dumps(answer).encode()[:-1] + b', "value": ' + value + b"}\n"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
