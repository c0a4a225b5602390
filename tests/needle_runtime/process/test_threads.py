"""Core counting against made-up cgroup trees and the real affinity."""

import os

import pytest

from needle_runtime.process import threads


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for variable in (*threads.THREAD_VARIABLES, threads.BIND_VARIABLE, threads.SPIN_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(threads, "_affinity_cores", lambda: 64)


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CGROUP = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({CGROUP: "0::/\n"}, 64),
        ({CGROUP: "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 64),
        ({CGROUP: "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, 2),
        ({CGROUP: "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
        ({CGROUP: "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "10000 100000\n"}, 1),
        (
            {
                CGROUP: "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            3,
        ),
        # A container that sees only its part of the tree, mounted at the root.
        ({CGROUP: "0::/host/part\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({CGROUP: "0::/../other\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            {
                CGROUP: "5:cpu,cpuacct:/job\n1:memory:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                CGROUP: "5:cpu:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "500000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        ({CGROUP: "0::/a\nnonsense\n", "sys/fs/cgroup/a/cpu.max": "garbage\n"}, 64),
        ({CGROUP: "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100 0\n"}, 64),
    ],
)
def test_cores_follow_the_cgroup_quota(tmp_path, many_cores, files, cores):
    assert threads.available_cores(write_tree(tmp_path, files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_cores_follow_affinity(tmp_path):
    allowed = os.sched_getaffinity(0)
    assert threads.available_cores(tmp_path) == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads.available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_variable_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("NEEDLE_NUM_THREADS", " 7 ")
    assert threads.available_cores(tmp_path) == 7


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1_0", "²", "100000", "9" * 5000])
def test_a_bad_variable_is_named(monkeypatch, tmp_path, text):
    monkeypatch.setenv("NEEDLE_NUM_THREADS", text)
    with pytest.raises(ValueError, match=r"NEEDLE_NUM_THREADS=.*an integer from 1"):
        threads.available_cores(tmp_path)


def test_tvm_takes_the_first_number_given(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    assert threads.configure_tvm_threads() == 3
    assert os.environ["TVM_NUM_THREADS"] == "3"
    monkeypatch.setenv("TVM_NUM_THREADS", "5")
    assert threads.configure_tvm_threads() == 5
    monkeypatch.setenv("NEEDLE_NUM_THREADS", "6")
    assert threads.configure_tvm_threads() == 6
    assert threads.configure_tvm_threads(2) == 2
    assert os.environ["TVM_NUM_THREADS"] == "2"


@pytest.mark.parametrize("n", [0, -3])
def test_tvm_refuses_a_bad_number(n):
    with pytest.raises(ValueError, match=str(n)):
        threads.configure_tvm_threads(n)
    assert "TVM_NUM_THREADS" not in os.environ


def test_tvm_is_not_pinned_where_the_process_shares_the_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(threads, "_affinity_cores", lambda: 8)
    threads.configure_tvm_threads(8)
    assert "TVM_BIND_THREADS" not in os.environ
    threads.configure_tvm_threads(4)
    assert os.environ["TVM_BIND_THREADS"] == "0"
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    threads.configure_tvm_threads(4)
    assert os.environ["TVM_BIND_THREADS"] == "1"


def test_idle_workers_sleep_soon_unless_the_user_has_chosen(monkeypatch):
    threads.configure_tvm_threads(2)
    assert 1_000 <= int(os.environ["TVM_THREAD_POOL_SPIN_COUNT"]) < 300_000
    monkeypatch.setenv("TVM_THREAD_POOL_SPIN_COUNT", "7")
    threads.configure_tvm_threads(2)
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "7"


def test_thread_environment_sets_every_library():
    assert set(threads.thread_environment(2)) == set(threads.THREAD_VARIABLES)
    assert set(threads.thread_environment(2).values()) == {"2"}
    with pytest.raises(ValueError, match="threads=0"):
        threads.thread_environment(0)
