"""Measuring on a Dask cluster: right results, nothing lost when a worker dies, faults by name."""

import gc
import os
import platform
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from needle_tvm.errors import ClusterError
from needle_tvm.tune.measure import cluster as clusters
from needle_tvm.tune.measure import steps as measure
from needle_tvm.tune.measure.cluster import LOST, Cluster, check_cluster
from needle_tvm.tune.measure.workers import CRASH, ERROR, OK, TIMEOUT, Limits
from tests.needle_tvm.tune.measure.machines import (
    TARGET,
    Machines,
    calls,
    candidate,
    request,
    write_gate,
)
from tests.waiting import PATIENCE

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers need Linux"),
    # A Dask client that found no scheduler, or lost it, may fail once more in its own finalizer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LIMITS = Limits(seconds=30.0, memory=4 << 30)


@pytest.fixture(autouse=True)
def finalized():
    """Clients are finalized in the test that made them, and in no later one."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with Machines(tmp_path_factory.mktemp("dask")) as started:
        started.worker("--nworkers", "1", nanny=True)  # as the documents say
        started.worker(resources=None)  # measures nothing
        yield started


@pytest.fixture(scope="module")
def cluster(machines):
    with Cluster(machines.address, TARGET, limits=LIMITS) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidates")


@pytest.fixture(scope="module")
def gate(folder):
    return write_gate(folder / "gate")


@pytest.fixture(scope="module")
def good(folder):
    return candidate(folder / "good.so")


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_outcomes_are_those_of_this_machine(cluster, folder, good, gate):
    wrong = candidate(folder / "wrong.so", change=1.01)
    requests = [request(path, gate) for path in (good, wrong, good)]
    outcomes = dict(cluster.map(requests))
    assert set(outcomes) == {0, 1, 2}
    for index, asked in enumerate(requests):
        here, there = measure.measure(asked), outcomes[index]
        assert there.kind == OK, there
        assert there.value.keys() == here.keys()
        assert there.value["difference"] == here["difference"]
        assert there.value.get("wrong") == here.get("wrong")
    assert len(outcomes[0].value["run_secs"]) == 2 and min(outcomes[0].value["run_secs"]) > 0
    compared = cluster.call({"do": "compare", "rule": good, "candidate": good, "gate": gate})
    assert 0.1 < compared.value["speedup"] < 10


def test_a_faulty_candidate_is_named_and_its_worker_lives_on(cluster, folder, good, gate):
    faults = {
        "aborts": candidate(folder / "aborts.so", calls("abort")),
        "hangs": candidate(folder / "hangs.so", calls("sleep", 1000)),
        "exits": candidate(folder / "exits.so", calls("exit", 0)),
        "raises": candidate(folder / "raises.so", count=512),
        "good": good,
    }
    limits = Limits(seconds=3.0, memory=LIMITS.memory)
    requests = [request(path, gate) for path in faults.values()]
    outcomes = {list(faults)[i]: outcome for i, outcome in cluster.map(requests, limits)}
    assert outcomes["good"].kind == OK and "run_secs" in outcomes["good"].value
    assert outcomes["aborts"].kind == CRASH and "SIGABRT" in outcomes["aborts"].detail
    assert outcomes["exits"].kind == CRASH
    assert (
        outcomes["hangs"].kind == TIMEOUT and "worker tcp://127.0.0.1" in outcomes["hangs"].detail
    )
    assert outcomes["raises"].kind == ERROR
    assert cluster.call(request(good, gate)).kind == OK


def test_leaving_early_leaves_the_worker_free(cluster, good, gate):
    for _, outcome in cluster.map([request(good, gate) for _ in range(4)]):
        assert outcome.kind == OK
        break
    assert cluster.call(request(good, gate)).kind == OK


def test_a_killed_workers_candidates_are_measured_by_another(tmp_path, good, gate):
    with Machines(tmp_path) as machines:
        killed = machines.worker()
        with Cluster(machines.address, TARGET, limits=LIMITS) as cluster:
            requests = [request(good, gate, min_repeat_ms=30) for _ in range(12)]
            outcomes = {}
            for index, outcome in cluster.map(requests):
                assert index not in outcomes
                outcomes[index] = outcome
                if len(outcomes) == 3:  # the rest are this worker's
                    below = psutil.Process(killed.pid).children(recursive=True)
                    killed.kill()
                    machines.worker()
            assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []
    assert set(outcomes) == set(range(12))
    assert {outcome.kind for outcome in outcomes.values()} == {OK}


@pytest.mark.slow
def test_without_a_worker_the_error_names_the_scheduler(tmp_path, good, gate):
    with Machines(tmp_path) as machines:
        with pytest.raises(ClusterError) as error:
            check_cluster(machines.address, TARGET, wait=0.5)
        assert f"{machines.address}: no worker with the resource needle=1" in one_line(error)
        assert f"dask worker {machines.address} --nworkers 1" in one_line(error)
        worker = machines.worker()
        with Cluster(machines.address, TARGET, limits=LIMITS) as cluster:
            outcomes = cluster.map([request(good, gate) for _ in range(8)])
            next(outcomes)
            worker.send_signal(signal.SIGKILL)
            cluster._wait = 1.0
            with pytest.raises(ClusterError, match="no worker with the resource"):
                list(outcomes)
            outcomes = cluster.map([request(good, gate)])
            machines.scheduler.kill()
            with pytest.raises(ClusterError, match=machines.address):
                list(outcomes)


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(clusters, "_CONNECT_SECONDS", 1.0)
    for address in ("tcp://127.0.0.1:9", "nowhere", "carrier://pigeon:1"):
        with pytest.raises(ClusterError, match="no Dask scheduler answers") as error:
            check_cluster(address, TARGET)
        assert f"cluster {address}:" in one_line(error)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"features": ["warp-drive"]}, "lacks the target's features warp-drive"),
        ({"machine": "riscv64"}, f"is a {platform.machine()} machine, .* needs riscv64"),
        ({"cores": 4096}, "the target needs 4096"),
        ({"versions": {"apache-tvm": "0.0"}}, "but this machine has 0.0"),
    ],
)
def test_an_unfit_worker_is_refused_by_name(machines, good, gate, change, named):
    needed = {**clusters.needs(TARGET), **change}
    assert clusters.unfitness(clusters.needs(TARGET)) == ""
    with pytest.raises(ClusterError, match=rf"worker tcp://127.0.0.1:\d+: .*{named}"):
        clusters._connect(machines.address, needed, 10.0)
    with Cluster(machines.address, TARGET, limits=LIMITS) as cluster:  # it came later
        cluster._needed = needed
        with pytest.raises(ClusterError, match=rf"worker tcp://127.0.0.1:\d+: .*{named}"):
            cluster.call(request(good, gate))


def test_one_candidate_at_a_time_runs_on_a_machine(cluster, good, gate):
    with ThreadPoolExecutor() as pool:
        with clusters._machine_lock():  # as a second worker's candidate would
            outcome = pool.submit(cluster.call, request(good, gate))
            time.sleep(1.0)
            assert not outcome.done()
        assert outcome.result(timeout=PATIENCE).kind == OK


def test_a_candidate_that_no_worker_can_measure_is_lost(machines, good, gate):
    with Cluster(machines.address, TARGET, limits=LIMITS) as cluster:
        cluster._needed = {}  # the task fails before its candidate runs
        outcome = cluster.call(request(good, gate))
    assert outcome.kind == LOST and outcome.detail.startswith("KeyError")


@pytest.mark.slow
def test_a_tls_cluster_takes_dasks_own_settings(tmp_path, good, gate):
    pytest.importorskip("cryptography")
    import dask
    from distributed import Security

    security = Security.temporary()
    files = {"ca": security.tls_ca_file, "cert": security.tls_client_cert}
    files["key"] = security.tls_client_key
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    options = ["--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key]
    with Machines(tmp_path, *options, protocol="tls") as machines:
        machines.worker()
        assert machines.address.startswith("tls://")
        with pytest.raises(ClusterError, match="no Dask scheduler answers"):
            check_cluster(machines.address, TARGET, wait=5.0)
        client = "distributed.comm.tls.client"
        own = {"distributed.comm.tls.ca-file": ca, f"{client}.cert": cert, f"{client}.key": key}
        with dask.config.set(own):
            with Cluster(machines.address, TARGET, limits=LIMITS) as cluster:
                assert cluster.call(request(good, gate)).kind == OK


def test_without_dask_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError, match=r"pip install 'needle-dl\[cluster\]'"):
        check_cluster("tcp://127.0.0.1:8786", TARGET)
