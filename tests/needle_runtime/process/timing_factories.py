"""Contestants for test_timing.py, each with one behaviour to test."""

import os
import subprocess
import sys
import time

import numpy as np


def sleeper(seconds=0.002, value=1.0):
    return lambda: time.sleep(seconds), lambda: [np.full((2, 3), value, np.float32)]


def environment(names):
    return lambda: None, lambda: [np.array([int(os.environ.get(name, "-1")) for name in names])]


def noisy():
    def call():
        sys.stdout.write("a library that prints\n")
        os.write(1, b'{"calls": 0, "seconds": 0}\n')

    return call, lambda: [np.zeros(3)]


def empty_outputs():
    return lambda: None, lambda: [np.zeros((0, 4), np.float32), np.array(5, np.int64)]


def fails():
    sys.stderr.write("what led to it\n")
    raise ValueError("the weights are gone\nand a second line")


def fails_later(marker):
    def call():
        if os.path.exists(marker):
            raise RuntimeError("broke on the way")
        open(marker, "w").close()

    return call, lambda: [np.zeros(1)]


def dies():
    os.abort()


def hangs(pids):
    """Start a child process, then never answer."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(pids, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def objects():
    return lambda: None, lambda: [np.array([object()])]


not_a_function = 3


def leaves_a_mark(folder):
    """Outputs how many of its kind were ready when it started; takes a while to be ready."""
    before = len(os.listdir(folder))
    time.sleep(0.3)
    open(os.path.join(folder, str(os.getpid())), "w").close()
    return lambda: None, lambda: [np.array(before)]


def clocked(seconds=None):
    """A third value: a device's clock, which says `seconds`, or nothing."""
    return lambda: None, lambda: [np.zeros(1)], lambda calls: seconds
