"""Child processes that serve requests and cannot outlive their parent. This module uses only the
standard library.

Searches, timings, imports and checks run in child processes. A child runs a *service*, named
`package.module:function`: a generator function that takes the setup and an iterator over the
parent's messages, and yields answers. The setup, messages and answers are JSON objects. They use
pipes of their own, so output that a library prints to stdout cannot corrupt them. Both stdout and
stderr are kept; if the child fails, its error carries the end of this output. The child has its own
session: a Ctrl-C at the terminal reaches only the parent, which ends the child's whole process
group.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from needle_runtime.errors import NeedleTVMError
from needle_runtime.process.processes import die_with_parent

_STDERR_LINES = 20  # last lines of a failed child's output that its error carries
_EXIT_SECONDS = 2.0  # how long a child may take to end before it is killed


class ChildError(NeedleTVMError, RuntimeError):
    """A child failed, died or did not answer in time.

    `str()` is one line; `details` holds the end of the child's stdout and stderr, `child` its name.
    """

    def __init__(self, message: str, details: str = "", child: str = "") -> None:
        super().__init__(message)
        self.details = details
        self.child = child


class Child:
    """The parent's side of one child process. A context manager; `close` ends the process.

    `timeout` (seconds) is the limit for any single answer; the time to the first answer includes
    the start of the process. `service` and `setup` say what the child runs, and `environment` adds
    environment variables. `ask`, `send` and `receive` raise ChildError once the child has
    failed.
    """

    def __init__(
        self,
        name: str,
        service: str,
        setup: Mapping[str, Any],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._timeout = timeout
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "needle_runtime.process.child"]
                + [str(number) for number in (commands_out, answers_in, os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=(commands_out, answers_in),
                env={
                    **os.environ,
                    "PYTHONPATH": _python_path(),
                    **(environment or {}),
                },
                start_new_session=True,
            )
        except BaseException:
            os.close(commands_in)
            os.close(answers_out)
            self._stderr.close()
            raise
        finally:
            os.close(commands_out)
            os.close(answers_in)
        self._commands = commands_in
        self._answers = answers_out
        self._lines = Lines()
        os.set_blocking(commands_in, False)  # a child that stops reading must not block us
        try:
            self.send(service=service, setup=dict(setup))
        except BaseException as error:
            self.close(error)
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(*error)

    @property
    def pid(self) -> int:
        """The process id (and process group id) of the child."""
        return self._process.pid

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and wait for its answer."""
        self.send(**message)
        return self.receive(str(message.get("command", "message")))

    def send(self, **message: Any) -> None:
        """Send a message. Answers that arrive meanwhile are kept for `receive`."""
        self._deadline = time.monotonic() + self._timeout
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            left = max(self._deadline - time.monotonic(), 0.0)
            ready, free, _ = select.select([self._answers], [self._commands], [], left)
            if ready:
                self._read()
            elif not free:
                raise self._failure(f"took no message within {self._timeout:g} s")
            if free:
                try:
                    line = line[os.write(self._commands, line) :]
                except BrokenPipeError:
                    raise self._failure(self._ending()) from None

    def receive(self, step: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the next answer; `step` names the awaited step in an error.

        `timeout` (seconds from now) replaces the child's own limit.
        """
        if timeout is not None:
            self._deadline = time.monotonic() + timeout
        while (line := self._lines.next()) is None:
            left = max(self._deadline - time.monotonic(), 0.0)
            if not select.select([self._answers], [], [], left)[0]:
                within = self._timeout if timeout is None else timeout
                raise self._failure(f"no answer to {step!r} within {within:g} s")
            self._read()
        self._deadline = time.monotonic() + self._timeout
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def close(self, *error: object) -> None:
        """Wait for the process to end, except after an `error`; then kill its process group."""
        if self._commands < 0:
            return
        os.close(self._commands)  # the child ends when it reads the end of its messages
        os.close(self._answers)
        self._commands = -1
        if error[:1] in ((None,), ()):
            _wait_unreaped(self._process.pid, _EXIT_SECONDS)
        # The leader is not reaped yet, so its id still names this group and no other.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stderr.close()

    def _read(self) -> None:
        if not self._lines.fill(self._answers):
            raise self._failure(self._ending())

    def _failure(self, what: str) -> ChildError:
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace")
        tail = "\n".join(text.splitlines()[-_STDERR_LINES:])
        return ChildError(f"{self.name}: {what}", tail, self.name)

    def _ending(self) -> str:
        """Say how a child that closed its pipes ended."""
        try:
            code = self._process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"


def _python_path() -> str:
    """Return a PYTHONPATH with which the child finds the same modules as the parent."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def _wait_unreaped(pid: int, seconds: float) -> None:
    """Wait up to `seconds` for the child's end; leave it a zombie, so that its id stays in use."""
    deadline = time.monotonic() + seconds
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    with suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, flags) is None and time.monotonic() < deadline:
            time.sleep(0.005)


def load_function(name: str) -> Callable[..., Any]:
    """Load the function named `package.module:function` or `path/file.py:function`.

    Raises ValueError if `name` is malformed, or the file or the function is missing.
    """
    module_name, separator, function = name.rpartition(":")
    if not separator or not module_name or not function:
        raise ValueError(f"{name!r}: must be 'package.module:function' or 'path/file.py:function'")
    if module_name.endswith(".py"):
        path = Path(module_name)
        if not path.is_file():
            raise ValueError(f"{module_name}: no such file")
        module = load_module(path)
    else:
        module = importlib.import_module(module_name)
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"{module_name} has no function {function!r}")
    loaded: Callable[..., Any] = found
    return loaded


def load_module(path: Path) -> ModuleType:
    """Load a Python file as a module, once per process, without touching sys.path."""
    path = path.resolve()
    # The name is unique, because a file called json.py must not replace the real module. The module
    # is entered in sys.modules because inspect and dataclasses look classes up there.
    name = f"_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class Messages:
    """The child's side of its pipes: an iterator over the parent's messages.

    A service that also waits for other events watches `commands` itself, calls `read` when data is
    available, and may write lines of JSON to `answers`.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self._lines = Lines()

    def __iter__(self) -> Messages:
        return self

    def __next__(self) -> dict[str, Any]:
        while (line := self._lines.next()) is None:
            if not self._lines.fill(self.commands):
                raise StopIteration
        message: dict[str, Any] = json.loads(line)
        return message

    def read(self) -> list[dict[str, Any]] | None:
        """Read once; return the complete messages (possibly none), or None at the end."""
        if not self._lines.fill(self.commands):
            return None
        return [json.loads(line) for line in iter(self._lines.next, None)]


class Lines:
    """A buffer that splits the bytes from a pipe into lines."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes known to contain no line end

    def fill(self, descriptor: int) -> bool:
        """Read from the pipe once, waiting if necessary; return False at the end of its data."""
        chunk = os.read(descriptor, 1 << 20)
        self._buffer += chunk
        return bool(chunk)

    def next(self) -> bytes | None:
        """Return the next whole line without its line end, or None if there is none yet."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line


def _main(commands: int, answers: int, parent: int) -> None:
    die_with_parent(parent)
    for descriptor in (commands, answers):  # processes that the service starts must not inherit it
        os.set_inheritable(descriptor, False)
    messages = Messages(commands, answers)
    with os.fdopen(answers, "w", buffering=1) as outgoing:
        try:
            first = next(messages, None)
            if first is None:
                return
            for answer in load_function(first["service"])(first["setup"], messages):
                outgoing.write(json.dumps(answer) + "\n")
        except Exception as error:  # a service may raise any type; the parent gets its name
            traceback.print_exc()
            sys.stderr.flush()
            lines = str(error).splitlines() or [""]
            outgoing.write(json.dumps({"error": f"{type(error).__name__}: {lines[0]}"}) + "\n")


if __name__ == "__main__":
    _main(*(int(number) for number in sys.argv[1:4]))
