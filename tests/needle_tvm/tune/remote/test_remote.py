"""Measuring on servers: right results, nothing lost whatever dies, and rightly named faults.

Everything runs on loopback.
"""

import os
import re
import signal
import time

import numpy as np
import pytest

from needle_tvm._tvm import names as tvm_names
from needle_tvm.errors import RemoteError, UsageError
from needle_tvm.lower import libraries
from needle_tvm.runtime.memory import aligned_copy
from needle_tvm.tune.gate.gate import Gate
from needle_tvm.tune.measure import steps as measure
from needle_tvm.tune.measure.arrays import Arrays
from needle_tvm.tune.measure.workers import (
    CRASH,
    ERROR,
    MEMORY,
    OK,
    TIMEOUT,
    Limits,
    Outcome,
    Workers,
)
from needle_tvm.tune.remote import measure as remote
from needle_tvm.tune.remote.measure import LOST
from needle_tvm.tune.remote.protocol import TrackerClient, parse_address
from tests.needle_tvm.tune.remote.remote_machines import (
    Machines,
    calls,
    candidate,
    request,
    write_gate,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="servers need Linux")
LIMITS = Limits(seconds=30.0, memory=4 << 30)
ALONE = Limits(seconds=120.0, memory=4 << 30)  # for a client without a RemoteRunner


@pytest.fixture(scope="module")
def machines():
    with Machines() as started:
        yield started


@pytest.fixture(scope="module")
def tracker(machines):
    return machines.tracker()


@pytest.fixture(scope="module")
def servers(machines, tracker):
    return machines.servers(tracker, 2)


@pytest.fixture(scope="module")
def single(machines, tracker):
    (server,) = machines.servers(tracker, 1, key="single")
    return server


@pytest.fixture(scope="module")
def runner(tracker, servers):
    with remote.RemoteRunner(tracker.address, "local", limits=LIMITS) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("remote")


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


def test_two_servers_share_the_work(runner, servers, good, gate):
    outcomes = dict(runner.map([request(good, gate, min_repeat_ms=20) for _ in range(8)]))
    here = measure.measure(request(good, gate))
    assert set(outcomes) == set(range(8))
    for outcome in outcomes.values():
        assert outcome.kind == OK, outcome
        assert outcome.value["difference"] == here["difference"]
        assert len(outcome.value["run_secs"]) == 2 and min(outcome.value["run_secs"]) > 0
        assert outcome.value["server"]["cpu"] == tvm_names.host_cpu()
        assert outcome.value["server"]["threads"] == 1
    served = {outcome.value["server"]["address"] for outcome in outcomes.values()}
    assert served == {service.address for service in servers}


@pytest.mark.slow
def test_faulty_candidates_are_named_and_the_servers_go_on(runner, servers, folder, good, gate):
    faults = {
        "wrong": candidate(folder / "wrong.so", change=1.01),
        "aborts": candidate(folder / "aborts.so", calls("abort")),
        "hangs": candidate(folder / "hangs.so", calls("sleep", 1000)),
        "exits": candidate(folder / "exits.so", calls("exit", 0)),
        "raises": candidate(folder / "raises.so", count=512),
        "good": good,
    }
    requests = [request(path, gate) for path in faults.values()]
    limits = Limits(seconds=4.0, memory=LIMITS.memory)
    outcomes = {list(faults)[i]: outcome for i, outcome in runner.map(requests, limits)}
    assert outcomes["good"].kind == OK and "run_secs" in outcomes["good"].value
    assert "found" in outcomes["wrong"].value["wrong"]
    assert "run_secs" not in outcomes["wrong"].value
    assert outcomes["aborts"].kind == CRASH and "SIGABRT" in outcomes["aborts"].detail
    assert outcomes["exits"].kind == CRASH
    assert outcomes["hangs"].kind == TIMEOUT and "after 4 s" in outcomes["hangs"].detail
    assert outcomes["raises"].kind == ERROR and "shape" in outcomes["raises"].detail
    assert all(service.process.poll() is None for service in servers)
    again = dict(runner.map([request(good, gate, min_repeat_ms=20) for _ in range(6)]))
    assert {outcome.kind for outcome in again.values()} == {OK}
    served = {outcome.value["server"]["address"] for outcome in again.values()}
    assert served == {service.address for service in servers}


def test_nothing_is_lost_when_a_server_is_killed(machines, tracker, good, gate):
    doomed = machines.servers(tracker, 2, key="doomed")
    requests = [request(good, gate, min_repeat_ms=30) for _ in range(20)]
    outcomes, killed = {}, None
    with remote.RemoteRunner(tracker.address, "doomed", limits=LIMITS) as runner:
        for index, outcome in runner.map(requests):
            assert index not in outcomes
            outcomes[index] = outcome
            address = outcome.value["server"]["address"]
            if len(outcomes) == 6:
                # The other server is busy now.
                (killed,) = (service for service in doomed if service.address != address)
                killed.process.send_signal(signal.SIGKILL)
    assert set(outcomes) == set(range(20))
    for outcome in outcomes.values():
        assert outcome.kind == OK and outcome.value["difference"] < 1e-6
    served = [outcome.value["server"]["address"] for outcome in outcomes.values()]
    assert killed.address in served[:6]
    assert killed.address not in served[8:]


@pytest.mark.slow
def test_nothing_is_lost_when_a_server_freezes(machines, tracker, good, gate):
    frozen, other = machines.servers(tracker, 2, key="frozen")
    requests = [request(good, gate, min_repeat_ms=50) for _ in range(6)]
    frozen.process.send_signal(signal.SIGSTOP)  # it is registered but will admit no client
    with remote.RemoteRunner(tracker.address, "frozen", limits=LIMITS) as runner:
        outcomes = dict(runner.map(requests))
    assert {outcome.kind for outcome in outcomes.values()} == {OK}
    assert {o.value["server"]["address"] for o in outcomes.values()} == {other.address}


@pytest.mark.slow
def test_a_killed_client_does_not_block_its_server(single, tracker, folder, good, gate):
    hangs = candidate(folder / "hangs_on.so", calls("sleep", 1000))
    place = {"tracker": tracker.address, "key": "single", "seconds": 600}
    with Workers(
        "client", "needle_tvm.tune.remote.measure:attempt", processes=1, limits=ALONE
    ) as workers:
        short = Limits(seconds=3.0, memory=LIMITS.memory)
        assert workers.call(request(hangs, gate, **place), short).kind == TIMEOUT
        outcome = workers.call(request(good, gate, wait=60, **place))
    assert outcome.kind == OK and "run_secs" in outcome.value["answer"]


def test_servers_come_back_to_a_restarted_tracker(machines, good, gate):
    tracker = machines.tracker()
    (server,) = machines.servers(tracker, 1)
    tracker.stop()
    server.wait_for("trying again")
    with pytest.raises(RemoteError, match="cannot be reached"):
        remote.check_tracker(tracker.address, "local")
    again = machines.tracker(tracker.port)
    server.wait_for("registered")
    assert remote.check_tracker(again.address, "local") == [server.address]
    place = {"tracker": again.address, "key": "local"}
    assert "run_secs" in remote.measure(request(good, gate, **place))


def test_measuring_without_a_server_ends_in_an_error(tracker, servers, single, good, gate):
    with remote.RemoteRunner(tracker.address, "single", limits=LIMITS, wait=2.0) as runner:
        assert runner.call(request(good, gate)).kind == OK
        single.stop()
        with pytest.raises(RemoteError) as error:
            runner.call(request(good, gate))
    text = one_line(error)
    assert tracker.address in text and "'single'" in text and "'local': 2" in text


@pytest.mark.slow
def test_check_tracker_names_what_is_amiss(tracker, servers):
    found = remote.check_tracker(tracker.address, "local")
    assert {service.address for service in servers} <= set(found)
    with pytest.raises(RemoteError) as error:
        remote.check_tracker(tracker.address, "raspberry")
    assert re.search(r"'raspberry' .*'local': 2", one_line(error))
    with pytest.raises(RemoteError) as error:
        remote.check_tracker("127.0.0.1:9", "local")
    assert "127.0.0.1:9: cannot be reached" in one_line(error)
    with pytest.raises(RemoteError) as error:
        remote.check_tracker(servers[0].address, "local")
    assert "not a TVM RPC tracker" in one_line(error)
    for address in ("", "9190", "host", "host:", ":9190", "host:0", "host:70000", "::1:9190"):
        with pytest.raises(UsageError, match="must be HOST:PORT") as error:
            remote.check_tracker(address, "local")
        assert repr(address) in one_line(error)
    for key in ("", "a b", "a:b", "x" * 200):
        with pytest.raises(UsageError, match="key"):
            remote.check_tracker(tracker.address, key)
    assert parse_address("[::1]:9190") == ("::1", 9190)


def test_a_waiting_client_that_leaves_takes_no_server_with_it(machines, tracker):
    address = parse_address(tracker.address)
    with TrackerClient(address) as waiting, pytest.raises(TimeoutError):
        waiting.request("late", 0.2)
    (server,) = machines.servers(tracker, 1, key="late")
    with TrackerClient(address) as client:
        host, port, word = client.request("late", 30.0)
    assert f"{host}:{port}" == server.address
    with pytest.raises(RuntimeError):
        libraries.connect_session(host, port, "late:guessed", 5.0)
    session = libraries.connect_session(host, port, word, 30.0)
    assert "processor" in libraries.about_server(session)


@pytest.mark.parametrize("place", [0, -1])
def test_a_byte_behind_an_output_is_noticed(place, tmp_path):
    inputs = [aligned_copy(np.ones(3, np.float32))]
    outputs = [aligned_copy(np.zeros((2, 3), np.float32))]
    parameters = [
        {"name": name, "shape": array.shape, "dtype": "float32", "output": name == "y"}
        for name, array in (("x", inputs[0]), ("y", outputs[0]))
    ]
    gate = Gate(tmp_path, {"parameters": parameters, "cases": []})
    there = Arrays(tvm_names.tvm.cpu(), gate, inputs, outputs)
    assert not there.fetch()
    memory = np.from_dlpack(there._there[0])
    memory[outputs[0].nbytes :][place] = 1
    assert there.fetch()


def lost(living):
    return Outcome(OK, {"lost": "the session was lost", "living": living})


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        ([lost(True), lost(True)], CRASH),
        ([lost(True), lost(False), lost(True)], CRASH),
        ([lost(False), lost(False), lost(False)], LOST),
        ([lost(True), lost(False), lost(False)], LOST),
        ([lost(True), Outcome(OK, {"answer": {"run_secs": [1.0]}})], OK),
        ([Outcome(TIMEOUT, detail="killed"), Outcome(OK, {"answer": {"wrong": "x"}})], OK),
        ([Outcome(TIMEOUT, detail="killed"), Outcome(TIMEOUT, detail="killed")], TIMEOUT),
        ([Outcome(OK, {"expired": "after 4 s"})], TIMEOUT),
        ([Outcome(ERROR, detail="shape")], ERROR),
        ([Outcome(MEMORY, detail="much")], MEMORY),
        ([Outcome(CRASH, detail="client"), lost(False), lost(False)], LOST),
        ([Outcome(OK, {"absent": "none", "busy": True}), lost(True), lost(True)], CRASH),
    ],
)
def test_who_is_to_blame(outcomes, kind):
    trial = remote._Trial()
    *before, last = outcomes
    assert [trial.judge(outcome) for outcome in before] == [None] * len(before)
    final = trial.judge(last)
    assert final.kind == kind
    assert final.ok == (final.value is not None)


@pytest.mark.slow
def test_no_server_is_an_error_at_once_and_busy_ones_after_a_while():
    with pytest.raises(RemoteError, match="none"):
        remote._Trial().judge(Outcome(OK, {"absent": "none", "busy": False}))
    trial, busy = remote._Trial(), Outcome(OK, {"absent": "all busy", "busy": True})
    assert trial.judge(busy) is None and trial.judge(busy) is None
    with pytest.raises(RemoteError, match="all busy"):
        trial.judge(busy)


@pytest.mark.slow
def test_tvms_own_server_serves_us_too(tracker, good, gate):
    server = tvm_names.tvm.rpc.Server(
        "127.0.0.1", 9391, 9499, key="stock", tracker_addr=parse_address(tracker.address)
    )
    try:
        deadline = time.monotonic() + 60
        with TrackerClient(parse_address(tracker.address)) as client:
            while "stock" not in client.servers():
                assert time.monotonic() < deadline
                time.sleep(0.2)
        answer = remote.measure(request(good, gate, tracker=tracker.address, key="stock"))
        assert "run_secs" in answer and set(answer["server"]) == {"address"}
    finally:
        server.terminate()
