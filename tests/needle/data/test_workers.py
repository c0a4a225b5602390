"""Worker processes of a DataLoader: equal batches, errors, deaths, and nothing left behind."""

import faulthandler
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import data, rng
from needle.data import DataLoader, Dataset, workers

SHARED = "/dev/shm"


def mine():
    """The names of blocks of shared memory that loaders of this process have left."""
    return left_by(os.getpid())


def left_by(process):
    return [name for name in os.listdir(SHARED) if name.startswith(f"needle-{process}-")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(multiprocessing.active_children())
    method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)  # takes functions of this file
    yield
    multiprocessing.set_start_method(method, force=True)
    assert set(multiprocessing.active_children()) <= before
    assert mine() == []


class Drawn(Dataset):
    """Items of different sizes, dtypes and random numbers, also nested and not contiguous."""

    def __init__(self, count=23):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        grid = np.arange(24, dtype=np.int16).reshape(4, 6) * i
        return {
            "noise": rng.normal((300,), 0.0, 1.0),
            "views": (grid[::2].T, grid.astype("float16")),
            "half": ndl.Tensor([i, 0.5], dtype="bfloat16"),
            "empty": np.zeros((0, 3), np.float32),
            "name": f"item {i}",
        }


def bits(batch):
    if isinstance(batch, ndl.Tensor):
        return batch.dtype, batch.shape, batch.numpy().tobytes()
    if isinstance(batch, np.ndarray):
        return batch.dtype.str, batch.shape, batch.tobytes()
    if isinstance(batch, dict):
        return {key: bits(value) for key, value in batch.items()}
    return [bits(value) for value in batch] if isinstance(batch, (list, tuple)) else batch


def as_it_is(batch):
    return batch


def growing(batch):
    """Batches of very different sizes, in arrays and Tensors of the user's."""
    n = int(batch[0]["views"][0].max()) * 500
    return [np.ones(n, np.float32), ndl.ones(n, 2), {"rest": (batch[0]["noise"], None)}]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_give_the_same_bits_in_the_same_order(method):
    cases, passes = [(None, 1), (as_it_is, 3), (growing, 2)], 2
    if method != "fork":
        cases, passes = cases[2:], 1  # their processes take long to start
    for collate, ahead in cases:
        given = {"batch_size": 4, "shuffle": True, "seed": 1, "collate_fn": collate}
        alone = DataLoader(Drawn(), **given)
        together = DataLoader(
            Drawn(),
            **given,
            num_workers=2,
            prefetch_factor=ahead,
            multiprocessing_context=method,
        )
        for _ in range(passes):
            assert [bits(batch) for batch in together] == [bits(batch) for batch in alone]


def test_arrays_take_no_way_through_pipes(monkeypatch):
    sizes = []
    receive = connection.Connection._recv_bytes

    def counted(self, *args):
        buffer = receive(self, *args)
        sizes.append(len(buffer.getvalue()))
        return buffer

    monkeypatch.setattr(connection.Connection, "_recv_bytes", counted)
    rows = data.NDArrayDataset(np.ones((8, 100_000), np.float32), np.arange(8))
    for x, y in DataLoader(rows, 2, num_workers=2):
        assert x.shape == (2, 100_000) and y.shape == (2,)
    assert len(sizes) == 4 and max(sizes) < 500


def test_batches_keep_their_values_when_later_ones_arrive():
    rows = np.arange(40.0)[:, None].tolist()
    for collate in (np.array, lambda batch: {"x": ndl.Tensor(batch)}):
        batches = DataLoader(rows, 2, num_workers=2, prefetch_factor=1, collate_fn=collate)
        values = [batch["x"] if isinstance(batch, dict) else batch for batch in list(batches)]
        assert [x.tolist() for x in values] == [rows[i : i + 2] for i in range(0, 40, 2)]
    batches = DataLoader([(np.float32(i),) for (i,) in rows], 2, num_workers=2, prefetch_factor=1)
    assert [x.tolist() for (x,) in list(batches)] == [[i, i + 1.0] for i in range(0, 40, 2)]


class Hurt(Drawn):
    """A dataset of which item 9 does something else."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def __getitem__(self, i):
        return self.what() if i == 9 else super().__getitem__(i)


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raises(error):
    def what():
        raise error

    return what


@pytest.mark.parametrize(
    "error", [ValueError("item 9\nis broken"), KeyError("nine"), TwoArguments(1, 2)], ids=repr
)
@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_has_its_class_and_traceback(error, persistent):
    loader = DataLoader(Hurt(raises(error)), 4, num_workers=2, persistent_workers=persistent)
    seen = []
    expected = RuntimeError if isinstance(error, TwoArguments) else type(error)
    with pytest.raises(expected) as caught:
        for batch in loader:
            seen.append(batch["name"][0])
    assert seen == ["item 0", "item 4"]
    text = str(caught.value)
    assert text.startswith(f"Caught {type(error).__name__} in DataLoader worker process 0.\n")
    assert "Original Traceback" in text and "raise error" in text
    assert str(error) in text


def test_errors_before_the_first_batch_and_in_results():
    def bad_start(number):
        raise RuntimeError(f"no worker {number}")

    with pytest.raises(RuntimeError, match=r"Caught RuntimeError(.|\n)*no worker 0"):
        next(iter(DataLoader(Drawn(), num_workers=2, worker_init_fn=bad_start)))
    local = DataLoader(Drawn(), num_workers=1, collate_fn=lambda batch: lambda: batch)
    with pytest.raises(Exception, match=r"DataLoader worker process 0(.|\n)*pickle"):
        next(iter(local))


def die(number):
    faulthandler.disable()  # pytest's, which would write to the terminal
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        (lambda: die(signal.SIGKILL), "was killed by SIGKILL .* memory runs out"),
        (lambda: die(signal.SIGBUS), "was killed by SIGBUS .*; /dev/shm is too small"),
        (lambda: os._exit(3), "exited with code 3"),
        (lambda: sys.exit(4), "exited with code 4"),
    ],
)
def test_a_dead_worker_is_one_error(what, how):
    seen, start = [], time.monotonic()
    with pytest.raises(RuntimeError, match=rf"DataLoader: worker 0 \(pid \d+\) {how}"):
        for batch in DataLoader(Hurt(what), 4, num_workers=2):
            seen.append(batch["name"][0])
    assert seen == ["item 0", "item 4"]
    assert time.monotonic() - start < 60


def test_a_worker_that_is_killed_from_outside():
    for persistent in (False, True):
        loader = DataLoader(Drawn(), 2, num_workers=2, persistent_workers=persistent)
        batches = iter(loader)
        next(batches)
        for process in multiprocessing.active_children():
            if process.name.startswith("needle-data"):
                process.kill()
        with pytest.raises(RuntimeError, match="killed by SIGKILL"):
            for _ in batches:
                pass
        assert len(list(loader)) == 12
        del loader, batches


class KilledAtNewBlock(Dataset):
    """Kills its worker where a block of shared memory has a name, but no size yet."""

    def __getitem__(self, i):
        def kill(*_):
            assert len(left_by(os.getppid())) == 1
            os.kill(os.getpid(), signal.SIGKILL)

        os.ftruncate = kill
        return np.zeros(3)

    def __len__(self):
        return 4


def test_a_block_without_a_size_is_removed():
    with pytest.raises(RuntimeError, match="killed by SIGKILL"):
        list(DataLoader(KilledAtNewBlock(), 2, num_workers=1))


def test_a_persistent_worker_that_dies_between_passes_is_replaced():
    loader = DataLoader(Drawn(), 4, num_workers=2, persistent_workers=True)
    for stop in (None, 1):
        for number, _ in enumerate(loader):
            if number == stop:
                break
        (process, *_) = [p for p in multiprocessing.active_children() if p.name.endswith("-0")]
        process.kill()
        process.join()
        assert [batch["name"][0] for batch in loader] == [f"item {i}" for i in range(0, 23, 4)]


def test_a_silent_worker_is_an_error(monkeypatch):
    monkeypatch.setattr(workers, "_GRACE", 0.5)
    loader = DataLoader(Hurt(lambda: time.sleep(600)), 4, num_workers=2, timeout=0.5)
    with pytest.raises(RuntimeError, match=r"timeout=0\.5"):
        list(loader)


def workers_alive():
    names = [p.name for p in multiprocessing.active_children()]
    return sorted(name for name in names if name.startswith("needle-data"))


def test_stopping_early_ends_the_workers():
    for stop in ("close", "break", "error"):
        batches = iter(DataLoader(Drawn(), 2, num_workers=2))
        next(batches)
        assert workers_alive() == ["needle-data-0", "needle-data-1"]
        if stop == "close":
            batches.close()
        elif stop == "break":
            del batches
        else:
            with pytest.raises(ZeroDivisionError):
                next(batches, 1 / 0)
            batches.close()
        assert workers_alive() == []


def test_persistent_workers_serve_all_passes():
    loader = DataLoader(Drawn(), 4, num_workers=2, persistent_workers=True, seed=1, shuffle=True)
    expected = DataLoader(Drawn(), 4, seed=1, shuffle=True)
    pids = set()
    for _ in range(2):
        assert [bits(x) for x in loader] == [bits(x) for x in expected]
        for _, _ in zip(loader, range(2), strict=False):
            pass
        list(expected)
        pids.add(tuple(p.pid for p in multiprocessing.active_children()))
    assert len(pids) == 1
    both = [(bits(a), bits(b)) for a, b in zip(loader, loader, strict=True)]  # two passes at once
    assert len(both) == 6
    del loader
    assert workers_alive() == []


@pytest.mark.parametrize("is_mid_pass", [False, True])
def test_a_forked_process_leaves_its_parents_workers_alone(is_mid_pass):
    loader = DataLoader(range(8), 2, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    first = next(batches).tolist()
    if not is_mid_pass:
        list(batches)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            batches.close()
            status = [x.tolist() for x in loader] != [[0, 1], [2, 3], [4, 5], [6, 7]]
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if is_mid_pass:
        assert [first, *(x.tolist() for x in batches)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Seeds(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = data.get_worker_info()
        assert info.dataset is self and info.num_workers == 2 and i % 2 == info.id
        numbers = [info.seed, random.getrandbits(32), int(np.random.randint(2**31))]
        return [*numbers, self.start, ndl.get_num_threads()]


def remember(number):
    data.get_worker_info().dataset.start = number * 10 + 7


def test_workers_have_seeds_and_are_prepared():
    assert data.get_worker_info() is None
    made = [
        [
            [part.item() for part in batch]
            for batch in DataLoader(Seeds(), seed=seed, num_workers=2, worker_init_fn=remember)
        ]
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    columns = list(zip(*made[0], strict=True))
    assert columns[0] == (columns[0][0], columns[0][0] + 1) * 4
    assert len(set(columns[1])) == len(set(columns[2])) == 8  # none draws what another does
    assert columns[3] == (7, 17) * 4 and set(columns[4]) == {1}


SCRIPT = """
import os, sys, time
import numpy as np
from needle import data

data.workers._GRACE = 1

class Rows(data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.02)
        return np.ones(1000, np.float32)

loader = data.DataLoader(Rows(), 2, num_workers=3, multiprocessing_context="fork")
try:
    for i, batch in enumerate(loader):
        if i == 1:
            print("ready", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_gone(pid):
    """Whether a process has ended; another one may have to collect its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_parent(end):
    """Ctrl-C reaches the whole group, as a terminal sends it; SIGKILL the parent alone."""
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout.readline() == "ready\n"
    below = children(parent.pid)
    assert len(below) == 4  # and the resource tracker
    if end == signal.SIGINT:
        os.killpg(parent.pid, end)
    else:
        os.kill(parent.pid, end)
    out, err = parent.communicate(timeout=60)
    if end == signal.SIGINT:
        assert (out, err, parent.returncode) == ("interrupted\n", "", 7)
    deadline = time.monotonic() + 30
    while not all(map(is_gone, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(is_gone, below))
    assert not left_by(parent.pid)


INTERRUPTED = """
import itertools, os, sys
import numpy as np
from needle import data

class Rows(data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return np.ones(1000, np.float32)

# Nothing that runs in a finaliser, whose exceptions Python prints and ignores.
NAMES = "receive", "_unpacked", "__init__", "unlink"
FILES = "workers.py", "shared_memory.py"

def interrupt_at(line):
    # Raise KeyboardInterrupt at a line of _Worker.receive, or of what it calls.
    def call(frame, event, arg):
        code = frame.f_code
        if inside or code.co_name == "receive":
            is_part = code.co_name in NAMES and os.path.basename(code.co_filename) in FILES
            return step if is_part else None
    def step(frame, event, arg):
        nonlocal seen
        if event == "line":
            inside.add(frame)
            seen += 1
            if seen > line:
                sys.settrace(None)
                raise KeyboardInterrupt
        elif event == "return":
            inside.discard(frame)
        return step
    seen, inside = 0, set()
    sys.settrace(call)

for line in itertools.count():
    loader = data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="fork")
    try:
        interrupt_at(line)
        count = len(list(loader))
    except KeyboardInterrupt:
        continue
    finally:
        sys.settrace(None)
    break
print(line, count)
"""


def test_no_block_is_left_wherever_ctrl_c_comes():
    """KeyboardInterrupt is raised at each line that takes a batch out of shared memory in turn. The
    resource tracker would report a block or an entry that is left over."""
    done = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = done.communicate(timeout=300)
    assert (err, done.returncode) == ("", 0)
    lines, batches = map(int, out.split())
    assert lines > 50 and batches == 4
    assert not left_by(done.pid)
