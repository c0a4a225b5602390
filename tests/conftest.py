"""Options and fixtures shared by all tests.

`--device cuda` runs every test that takes a device on the GPU. With `--emulated-cuda MODULE`, a
build with NEEDLE_CUDA=EMULATED, they run on an emulated GPU. Without either they are skipped.

NEEDLE_CASES sets how many cases hypothesis draws for each property, 500 if it is not set. The run
says at its end how many there were. `--sample`, which `make test` and CI give, runs a quarter of
the cases of each test: at least four of a quick test, and at least one of a slow test.
"""

import functools
import importlib.machinery
import importlib.util
import os
import signal
import sys
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import needle as ndl
from needle import rng as needle_rng
from needle.backend_ndarray import Device

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored, which programs started here would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "needle",
    max_examples=int(os.environ.get("NEEDLE_CASES", "500")),
    deadline=None,  # the machine may be shared, so times say nothing about the code
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("needle")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=("cpu", "cpu_numpy", "cuda"),
        help="run the tests that take a device on this one alone",
    )
    parser.addoption("--emulated-cuda", metavar="MODULE", help="the emulated CUDA module's file")
    parser.addoption(
        "--sample",
        action="store_true",
        help="run a quarter of the cases of each test; at least four of a quick test",
    )


def pytest_configure(config):
    name, emulated = config.getoption("--device"), config.getoption("--emulated-cuda")
    if emulated:
        # Only for tests: an installed needle has no CUDA device on a machine without a GPU.
        full = "needle.backend_ndarray._cuda"
        loader = importlib.machinery.ExtensionFileLoader(full, emulated)
        spec = importlib.util.spec_from_file_location(full, emulated, loader=loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[full] = module
    # Read by modules that choose a device on import; processes that they start do not see it.
    pytest.needle_device = name


def chosen_devices(config):
    """The devices that tests run on."""
    name = config.getoption("--device")
    return CPU_DEVICES if name is None else [getattr(ndl, name)()]


def pytest_generate_tests(metafunc):
    """Parametrise the fixture `device`, unless a test names its devices itself."""
    named = [m.args[0] for m in metafunc.definition.iter_markers("parametrize")]
    if "device" in metafunc.fixturenames and not any("device" in names for names in named):
        metafunc.parametrize("device", chosen_devices(metafunc.config), ids=repr, indirect=True)


@functools.cache
def why_no_gpu() -> str | None:
    """Why tests marked `gpu` cannot run here, or None; called only when one is about to run."""
    from kernel_lab import build

    return build.why_no_gpu()


def pytest_runtest_setup(item):
    name = item.config.getoption("--device")
    if name == "cuda" and not ndl.cuda().enabled():
        pytest.skip("--device cuda: there is no CUDA device")
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


drawn = {"cases": 0, "properties": 0}


def sample(items):
    """A quarter of the cases of each test, at least four of a quick test and one of a slow test:
    the cases whose names have the least checksums, so every run has the same ones, and they are
    spread over the parameters."""
    cases = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for of_one in cases.values():
        of_one.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for slow, least in ((False, 4), (True, 1)):
            part = [item for item in of_one if bool(item.get_closest_marker("slow")) is slow]
            kept.update(part[: max(least, len(part) // 4)])
    return kept


def counted(property_test):
    @functools.wraps(property_test)
    def run(*args, **kwargs):
        drawn["cases"] += 1
        return property_test(*args, **kwargs)

    return run


def pytest_collection_modifyitems(config, items):
    """Leave out cases with --sample; count every case of every hypothesis test."""
    if config.getoption("--sample"):
        kept = sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is not None:
            drawn["properties"] += 1
            handle.inner_test = counted(handle.inner_test)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # under pytest-xdist
        session.config.workeroutput["drawn"] = drawn


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    part = getattr(node, "workeroutput", {}).get("drawn", {"cases": 0, "properties": 0})
    drawn["cases"] += part["cases"]
    drawn["properties"] = part["properties"]


def pytest_terminal_summary(terminalreporter):
    if drawn["cases"]:
        terminalreporter.write_line(
            f"hypothesis drew {drawn['cases']:,} cases for {drawn['properties']} properties"
        )


CPU_DEVICES = [device for device in (ndl.cpu(), ndl.cpu_numpy()) if device.enabled()]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """Every CPU device available here, or the one that --device names."""
    return request.param


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """A cache of compiled models that only the tests of one session share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEEDLE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest):
    """Seed the generator, so that each test draws the same numbers in every run, and restore it."""
    before = needle_rng.get_state()
    np.random.seed(zlib.crc32(request.node.nodeid.encode()))
    yield
    needle_rng.set_state(before)


@pytest.fixture
def wide_torch():
    """PyTorch's default dtype is float64, in which it then keeps numbers such as mu_product."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)
