"""Requests that go wrong in every way that the workers promise to survive; see test_workers.py.

`serve` is the workers' function; a request names one of the functions below. They use only the
standard library, so that a small memory limit leaves room.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time


def serve(request):
    return globals()[request["do"]](request)


def answer(request):
    time.sleep(request.get("sleep", 0.0))
    return {"value": request.get("value"), "pid": os.getpid()}


def echo(request):
    return request["value"]


def family(request):
    return [os.getpid(), os.getppid()]


def print_much(request):
    for number in range(200_000):
        sys.stdout.write(f"line {number}\n")
    sys.stderr.write("to stderr\n")
    os.write(1, b"past Python\n")
    return "printed"


def environment(request):
    return os.environ.get(request["name"])


def descriptors(request):
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


def abort(request):
    sys.stdout.write("the last line\n")
    sys.stdout.flush()
    os.abort()


def segfault(request):
    ctypes.string_at(0)


def exit_silently(request):
    os._exit(0)


def hang(request):
    time.sleep(1000)


def hang_holding_the_gil(request):
    ctypes.PyDLL(None).sleep(1000)


def stop_itself(request):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)


def block_all_signals(request):
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        time.sleep(1000)


def leave_the_group(request):
    os.setsid() if os.getpgid(0) != os.getpid() else os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(1000)


def eat_memory(request):
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))
        time.sleep(0.001)


def eat_memory_below(request):
    """Let a grandchild in its own session eat memory."""
    if os.fork() == 0:
        os.setsid()
        eat_memory(request)
    time.sleep(1000)


def eat_memory_at_once(request):
    return len(b"x" * (1 << 32))


def fail(request):
    raise ValueError("first line\nsecond line")


def exit_by_exception(request):
    raise SystemExit(0)


def no_json(request):
    return {"value": object()}


def no_json_at_depth(request):
    nested = []
    nested.append(nested)
    return nested


def print_for_ever_below(request):
    """Let a grandchild in its own session keep the pipes full."""
    subprocess.Popen(["yes"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(1, b"line\n" * 1000)


def orphan(request):
    """Whether a process is still alive a little after its parent has ended."""
    end, start = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
    os.close(start)
    time.sleep(0.6)
    # Only the orphan holds the other end, so the pipe ends when it does.
    os.set_blocking(end, False)
    try:
        return "ended" if os.read(end, 1) == b"" else "?"
    except BlockingIOError:
        return "alive"


def answer_by_hand(request):
    """Write a forged answer to every descriptor, and exit."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'["ok", ""]\n"forged"\n')
        except OSError:
            continue
    os._exit(0)


def fork_and_hang(request):
    """Start grandchildren in the same group, in their own group and in their own session; hang."""
    start_grandchildren()
    time.sleep(1000)


def fork_and_answer(request):
    return start_grandchildren()


def start_grandchildren():
    pids = [subprocess.Popen(["sleep", "1000"]).pid]
    pids.append(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.waitpid(pid, 0)
    return [*pids, pid]


def kill_the_template(request):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def stop_the_template(request):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1000)


def litter(request):
    """Make a temporary file in each possible way; hang if asked to."""
    handle, path = tempfile.mkstemp()
    os.close(handle)
    if request.get("hang"):
        time.sleep(1000)
    return path
