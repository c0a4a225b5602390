"""Compiling and loading where TMPDIR is small, read-only or noexec, without /proc, without linker.

In each place the results are right, or one sentence says what cannot be had; no process ends by a
signal, and nothing is left.
"""

import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import needle_tvm
from needle_tvm.errors import ToolchainError
from tests import ROOT
from tests.needle_tvm.conftest import make_mlp, tensor

X = np.linspace(-1, 1, 2 * 8, dtype=np.float32).reshape(2, 8)
MODEL = make_mlp(8, 4)

PLACES = {
    "small": "mount -t tmpfs -o size=12k none $T",
    "read-only": "mount -t tmpfs -o ro none $T",
    "noexec": "mount -t tmpfs -o noexec none $T",
    "noexec everywhere": "for folder in $T /var/tmp /dev/shm; do "
    "mount -t tmpfs -o noexec none $folder; done; mount -o remount,noexec /tmp",
}
PROC = {"/proc": "true", "no /proc": "mount --bind $E /proc"}

COMPILE = """
import numpy as np, needle_tvm
from tests.needle_runtime.process.test_hosts import MODEL, X, tensor
made = needle_tvm.compile(MODEL, tensor(X), recompile=True)
np.testing.assert_allclose(made(X).numpy(), MODEL(tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
"""
COMMANDS = {
    "compile": ["-c", COMPILE],
    "inspect": ["-m", "needle_tvm", "inspect", "{art}"],
    "verify": ["-m", "needle_tvm", "verify", "{art}", "--json"],
    "run": ["-m", "needle_tvm", "run", "{art}", "--random"],
    "profile": ["-m", "needle_tvm", "profile", "{art}", "--json"],
    "eval": ["apps/tvm_eval.py", "-m", "mlp", "-d", "cpu", "--stages", "fused", "--out", "{out}"],
}
# The project stays where it is, also below /tmp, which is mounted over. Other processes leave
# nothing in folders of its own.
SCRIPT = """
mount --bind $R /mnt && mount -t tmpfs none /tmp && mkdir -p $R && mount --bind /mnt $R || exit 99
for folder in /var/tmp /dev/shm; do mount -t tmpfs none $folder || exit 99; done
umount /mnt && cd $R && mkdir $T && {place} && {proc} || exit 99
"$@"; code=$?
for wait in 0 .1 .2 .4 .8 1.6; do  # for what removes the folders of processes that were killed
  sleep $wait
  ls -A $T /tmp /var/tmp /dev/shm 2> /dev/null | grep needle- || exit $code
done
exit 98
"""


def can_mount():
    asked = ["unshare", "-m", "true"]
    there = os.geteuid() == 0 and shutil.which("unshare") is not None
    return there and subprocess.run(asked, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def art(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    needle_tvm.compile(MODEL, tensor(X)).export(folder / "art")
    return folder / "art"


def refusals(place, proc, command):
    """The words of which a sentence has some, where the command cannot be right."""
    if command == "inspect":
        return ()
    if command in ("compile", "eval") and place == "small":
        return ("cannot be written", "No space left on device", "Bus error")
    if place == "noexec everywhere" and proc == "no /proc":
        return ("compiled code cannot be loaded here: not from memory",)
    return ()


def tier(command, place, proc):
    """Running in every run; compiling in CI; of the others, CI has those with or without /proc, and
    of the evaluation, which takes longest, two."""
    if command == "run":
        return ()
    in_ci = command == "compile" or (place in ("small", "noexec")) == (proc == "/proc")
    if command == "eval":
        in_ci = (place, proc) in (("noexec", "/proc"), ("read-only", "no /proc"))
    return pytest.mark.slow if in_ci else pytest.mark.long


HOSTS = [
    pytest.param(*host, marks=tier(*host)) for host in itertools.product(COMMANDS, PLACES, PROC)
]


@pytest.mark.skipif(not can_mount(), reason="mounting needs root")
@pytest.mark.parametrize(("command", "place", "proc"), HOSTS)
def test_it_is_right_or_one_sentence(art, command, place, proc):
    home = ROOT / "build" / f"hosts-{os.getpid()}"
    shutil.copytree(art, home / "art")
    (home / "empty").mkdir()
    script = SCRIPT.format(place=PLACES[place], proc=PROC[proc])
    arguments = [each.format(art=home / "art", out=home / "out") for each in COMMANDS[command]]
    places = {"T": "/tmp/t", "E": str(home / "empty"), "R": str(ROOT), "TMPDIR": "/tmp/t"}
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **places, "NEEDLE_CACHE_DIR": str(home / "cache")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert not list((home / "cache").glob("**/.*")) and not (home / "empty" / "x").exists()
    finally:
        shutil.rmtree(home)
    allowed = refusals(place, proc, command)
    if done.returncode == 0:
        return
    assert allowed and done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    last = done.stderr.strip().splitlines()[-1]
    assert any(words in last for words in allowed), done.stderr


@pytest.mark.parametrize(
    ("cxx", "words"),
    [
        (
            "/bin/false",
            "/bin/false failed to link code for this machine: no output (exit code",
        ),
        ("/bin/true", "/bin/true wrote no library"),
        ("/nowhere/g++", "/nowhere/g++ cannot link code for this machine: running it failed (No"),
        ("sh -c 'echo out of ink >&2; exit 3' sh", "out of ink (exit code 3 of `sh -c"),
        ("sh -c 'kill -7 $$' sh", "no output (signal 7 of"),
        (None, "linking needs a C++ compiler, and there is none"),
    ],
)
def test_a_linker_that_fails_is_named_with_its_words(monkeypatch, tmp_path, cxx, words):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if cxx is None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", cxx)
    with pytest.raises(ToolchainError) as caught:
        needle_tvm.compile(MODEL, tensor(X), stage="noopt", recompile=True)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_compiler_of_several_words_links(monkeypatch):
    monkeypatch.setenv("CXX", f"{os.environ.get('CXX', 'c++')} -Wl,--no-undefined-version")
    made = needle_tvm.compile(MODEL, tensor(X), stage="noopt", recompile=True)
    np.testing.assert_allclose(made(X).numpy(), MODEL(tensor(X)).numpy(), rtol=1e-5, atol=1e-6)


FILES = """
import resource, sys
from tests.needle_runtime.process.test_hosts import MODEL, X, needle_tvm, tensor
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    needle_tvm.compile(MODEL, tensor(X), recompile=True)
except needle_tvm.errors.NeedleTVMError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [16384, 32768])
def test_a_limit_on_files_is_an_exception(tmp_path, limit):
    """LLVM would end the process, and a signal the linker."""
    env = {**os.environ, "NEEDLE_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", FILES, str(limit)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "object files of up to" in done.stdout
    assert not list(tmp_path.glob("needle-*"))
