"""Child processes that serve requests and cannot outlive their parent. Standard library only.

A child runs a *service*, named `package.module:function`: a generator function that is called with
the setup and an iterator over the parent's messages, and that yields answers, all of them JSON
objects. Messages travel over pipes of their own, so whatever a library prints to stdout cannot
spoil them; stdout and stderr are kept and shown when the child fails. The child has its own
session: a Ctrl-C at the terminal reaches only the parent, which ends the whole process group.
"""

from __future__ import annotations

import ctypes
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from needle_tvm.errors import NeedleTVMError

_STDERR_LINES = 20  # how much of a failed child's stderr its error carries
_EXIT_SECONDS = 2.0  # how long a child that was told to end may take before it is killed


class ChildError(NeedleTVMError, RuntimeError):
    """A child failed, died or did not answer in time.

    `str()` is one line; `details` holds the end of the child's stderr.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Child:
    """The parent's side of one child process. A context manager; `close` ends the process.

    `timeout` (seconds) is how long any single answer may take, the first one, which includes the
    start, too. Raises ChildError from every method once the child has failed.
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
                [sys.executable, "-m", "needle_tvm.child"]
                + [str(number) for number in (commands_out, answers_in, os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=(commands_out, answers_in),
                env={**os.environ, "PYTHONPATH": _python_path(), **(environment or {})},
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
        self._buffer = b""
        self._deadline = time.monotonic() + timeout
        self._send({"service": service, "setup": dict(setup)})

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(*error)

    @property
    def pid(self) -> int:
        """Process (and process group) number of the child."""
        return self._process.pid

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and wait for its answer."""
        self._deadline = time.monotonic() + self._timeout
        self._send(message)
        return self.receive(str(message.get("command", "message")))

    def receive(self, step: str) -> dict[str, Any]:
        """Wait for the next answer; `step` names what it answers in an error."""
        while b"\n" not in self._buffer:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise self._failure(f"no answer to {step!r} within {self._timeout:g} s")
            chunk = os.read(self._answers, 65536)
            if not chunk:
                raise self._failure(self._ending())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._deadline = time.monotonic() + self._timeout
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def close(self, *error: object) -> None:
        """End the process: by itself when all went well, by force otherwise."""
        if self._commands < 0:
            return
        os.close(self._commands)  # the child ends when it reads the end of its messages
        os.close(self._answers)
        self._commands = -1
        if error[:1] in ((None,), ()):
            _wait_unreaped(self._process.pid, _EXIT_SECONDS)
        # The leader is not reaped yet, so its number still names this group and no other.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stderr.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._commands, line) :]
        except BrokenPipeError:
            raise self._failure(self._ending()) from None

    def _failure(self, what: str) -> ChildError:
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace")
        tail = "\n".join(text.splitlines()[-_STDERR_LINES:])
        return ChildError(f"{self.name}: {what}", tail)

    def _ending(self) -> str:
        """How a child whose pipes are closed came to its end."""
        try:
            code = self._process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"


def _python_path() -> str:
    """The child finds the same modules as the parent, wherever the parent found them."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def _wait_unreaped(pid: int, seconds: float) -> None:
    """Wait until the child has ended, leaving it a zombie so that its number stays taken."""
    deadline = time.monotonic() + seconds
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    with suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, flags) is None and time.monotonic() < deadline:
            time.sleep(0.005)


def load_function(name: str) -> Callable[..., Any]:
    """The function named `package.module:function` or `path/file.py:function`.

    Raises ValueError naming what is malformed or missing.
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
    """A Python file as a module, executed once in a process, found without touching sys.path."""
    path = path.resolve()
    # A name of its own: a file called json.py must not stand in for the real module. It is entered
    # in sys.modules because inspect and dataclasses look classes up there.
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


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the parent's thread ends, however that comes about."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(1)


def _main(commands: int, answers: int, parent: int) -> None:
    die_with_parent(parent)
    for descriptor in (commands, answers):  # processes the service starts must not hold them
        os.set_inheritable(descriptor, False)
    with os.fdopen(commands, "r") as incoming, os.fdopen(answers, "w", buffering=1) as outgoing:
        try:
            messages = (json.loads(line) for line in incoming)
            first = next(messages, None)
            if first is None:
                return
            for answer in load_function(first["service"])(first["setup"], messages):
                outgoing.write(json.dumps(answer) + "\n")
        except Exception as error:  # handed to the parent by name, whatever it is
            traceback.print_exc()
            sys.stderr.flush()
            lines = str(error).splitlines() or [""]
            outgoing.write(json.dumps({"error": f"{type(error).__name__}: {lines[0]}"}) + "\n")


Messages = Iterator[dict[str, Any]]

if __name__ == "__main__":
    _main(*(int(number) for number in sys.argv[1:4]))
