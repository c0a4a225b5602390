"""`make gpu-test` and `make gpu-bench`: needle and the lab's GPU ladders on a machine with a GPU.

For a bare host: standard library until TVM is at hand. Where TVM is not importable and
`.gpu/setup.sh` is there, which unpacks it without a network, that is sourced first. Nothing needs
to be built beforehand: `test` builds needle's native modules for the GPU it finds, into this
folder, and the lab compiles each rung with nvcc as it goes.

`test` runs the tests marked `gpu`, models and ops compiled for the GPU, the tests of arrays and ops
on the device, and some of those under compute-sanitizer (benchmarks/gpu_steps.py). `bench` times
all ladders beside PyTorch and writes DATE-lab-GPU.md and .json, again after each ladder; what does
not fit into the time it is given is listed as not measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import gpu_steps

ROOT = Path(__file__).resolve().parent.parent
SETUP = ROOT / ".gpu" / "setup.sh"
STARTED = "NEEDLE_GPU_STARTED"  # when the first process began; set once .gpu/setup.sh was sourced

_SECONDS = 570  # of gpu-bench in all: a host that takes a command for ten minutes sees its end
_LEAST_SECONDS = 20  # a ladder's processes are not even up within less
_LENIENCE = 1.5  # a ladder may take so many times its share of what is left

# In the order of interest: what comes last is what may be left out. The numbers are shares.
LADDERS = {
    "gemm": 16,
    "gemm_bf16": 8,
    "gemm-4096": 8,
    "gemm_f16": 6,
    "conv1d": 8,
    "depthwise": 8,
    "gelu_matmul": 5,
    "separable": 4,
    "vector_add": 5,
}

# Another size of a ladder: its name, the size, and the rung it begins with. What comes before that
# takes seconds for each launch there.
AT_SIZE = {"gemm-4096": ("gemm", {"M": 4096, "N": 4096, "K": 4096}, "register_tile")}


class Refusal(Exception):
    """Why nothing can be done here, in one line."""


@dataclass(frozen=True)
class Gpu:
    """What nvidia-smi says of the first GPU."""

    name: str
    driver: str
    architecture: str

    @property
    def slug(self) -> str:
        """Its name as part of a file's: "h200"."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower()).split()
        return "-".join(word for word in words if word != "nvidia") or "gpu"


def find_gpu() -> Gpu:
    """The first GPU; Refusal where there is none. Nothing is imported or installed for it."""
    if shutil.which("nvidia-smi") is None:
        raise Refusal("there is no GPU here: no nvidia-smi on the PATH")
    query = "--query-gpu=name,driver_version,compute_cap"
    done = _told(["nvidia-smi", query, "--format=csv,noheader"])
    lines = done.stdout.strip().splitlines()
    fields = [field.strip() for field in lines[0].split(",")] if lines else []
    if done.returncode or len(fields) != 3:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise Refusal(f"there is no GPU here: nvidia-smi says: {said[:200]}")
    return Gpu(fields[0], fields[1], "sm_" + fields[2].replace(".", ""))


def need_tools(command: str) -> None:
    """Refusal where nvcc, or a module, is missing; TVM may still come by .gpu/setup.sh."""
    if shutil.which("nvcc") is None and not _can_set_up():
        raise Refusal("there is no nvcc on the PATH, which compiles the GPU rungs")
    modules = ["numpy", "ml_dtypes"]
    if command == "test":
        modules += ["pytest", "hypothesis", "safetensors"]
    if not _can_set_up():
        modules.insert(0, "tvm")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"{sys.executable} has no module {', '.join(missing)}: install the project with its"
            " [tvm] and [test] extras, or unpack TVM's offline bundle as .gpu/"
        )


def _can_set_up() -> bool:
    return SETUP.is_file() and STARTED not in os.environ


def set_up(arguments: Sequence[str]) -> None:
    """Start anew with .gpu/setup.sh sourced, where TVM is missing and that is there."""
    if importlib.util.find_spec("tvm") is not None or not _can_set_up():
        return
    os.environ[STARTED] = str(time.time())
    script = '. .gpu/setup.sh && exec "$0" -m benchmarks.gpu "$@"'
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execvp("bash", ["bash", "-c", script, sys.executable, *arguments])


def test(arguments: Sequence[str], gpu: Gpu, started: float) -> int:
    """Builds needle for the GPU and runs its tests; 0 only where some ran and none failed."""
    print(f"gpu-test: building needle's modules for {gpu.architecture}", flush=True)
    reason = gpu_steps.build(gpu.architecture)
    if reason is not None:
        raise Refusal(f"needle's native modules cannot be built: {reason}")
    # Only files that have such tests: the others import what a GPU host need not have.
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    code, told = gpu_steps.run_all(gpu_steps.steps(files), arguments, started + _SECONDS)
    print("\n".join(f"gpu-test: {line}" for line in told))
    return code


def bench(options: argparse.Namespace, gpu: Gpu, started: float) -> int:
    """Times the ladders and writes the results after each; 1 where nothing was measured."""
    out = (ROOT / options.out).resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {options.out}: {error}") from error
    if not os.access(out, os.W_OK):
        raise Refusal(f"--out {options.out} is not writable")
    result: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": asdict(gpu),
        "command": " ".join(
            ["make gpu-bench", *([f'ARGS="{options.given}"'] * bool(options.given))]
        ),
        "rounds": options.rounds,
        "versions": versions(),
        "ladders": [],
        "not_measured": {},
    }
    stem = out / f"{result['date'][:10]}-lab-{gpu.slug}"
    names = options.only or list(LADDERS)

    def keep(name: str, found: dict[str, Any] | str) -> None:
        if isinstance(found, str):
            result["not_measured"][name] = found
        else:
            result["versions"].update(found.pop("versions"))
            result["ladders"].append(found)
        write(result, stem)

    in_turn(
        {name: LADDERS[name] for name in names},
        started + options.seconds,
        lambda name, seconds: run_ladder(name, options.rounds, seconds),
        keep,
    )
    print(f"wrote {stem}.md and {stem.name}.json")
    for name, reason in result["not_measured"].items():
        print(f"not measured: {name}: {reason}")
    return 0 if result["ladders"] else 1


def in_turn(
    shares: Mapping[str, int],
    deadline: float,
    run: Callable[[str, float], dict[str, Any] | str],
    keep: Callable[[str, dict[str, Any] | str], None],
    clock: Callable[[], float] = time.time,
) -> None:
    """Runs each ladder within a share of the time left; what it does not use goes to the next.

    `run(name, seconds)` returns a ladder's result, or why there is none; `keep` is handed either.
    """
    pending = dict(shares)
    for name, share in shares.items():
        left = deadline - clock()
        seconds = min(left, _LENIENCE * left * share / sum(pending.values()))
        del pending[name]
        if seconds < _LEAST_SECONDS:
            keep(name, f"{max(0.0, left):.0f} s were left of the time for all ladders")
        else:
            keep(name, run(name, seconds))


def run_ladder(name: str, rounds: int, seconds: float) -> dict[str, Any] | str:
    """A ladder in a process of its own: its result, or why there is none."""
    print(f"{name}: up to {seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        command = [sys.executable, "-m", "benchmarks.gpu", "ladder", name]
        command += ["--rounds", str(rounds), "--json", str(path)]
        try:  # its contestants end with it: each asks the kernel to be killed when its parent dies
            done = subprocess.run(
                command,
                cwd=ROOT,
                timeout=seconds,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it was not done within the {seconds:.0f} s it was given"
        if done.returncode or not path.is_file():
            lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
            print("\n".join(lines[-20:]), file=sys.stderr)
            return lines[-1][:300]
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def measure(name: str, rounds: int) -> dict[str, Any]:
    """A ladder's result. In the ladder's own process, with TVM.

    A contestant that fails or is wrong is left out, with the reason under "left_out".
    """
    from kernel_lab import registry
    from kernel_lab.errors import ContestantError
    from kernel_lab.run import Request, run
    from needle_tvm._tvm import tvm
    from needle_tvm.timing import TimingError

    name, size, first = AT_SIZE.get(name, (name, {}, None))
    standing = registry.ladder(name, "cuda").rungs
    rungs = [rung.name for rung in standing if first is None or rung.kind != "failed"]
    rungs = rungs[rungs.index(first) if first else 0 :]
    peers, left_out = True, {}
    while True:
        request = Request(name, "cuda", size, rungs=rungs, rounds=rounds, peers=peers)
        try:
            result = run(request).to_dict()
        except (ContestantError, TimingError) as error:
            name_of = getattr(error, "contestant", str(error).partition(": ")[0])
            guilty = name_of.removesuffix(", one launch")
            left_out[guilty] = str(error)
            if guilty in rungs and len(rungs) > 1:
                rungs.remove(guilty)
            elif guilty not in rungs and peers:
                peers = False
            else:
                raise
            continue
        return {**result, "left_out": left_out, "versions": {"TVM": str(tvm.__version__)}}


def ladder(options: argparse.Namespace) -> int:
    """The process of one ladder: its result as JSON, or why there is none as one line."""
    from needle_tvm.errors import NeedleTVMError
    from needle_tvm.timing import TimingError

    try:
        found = measure(options.name, options.rounds)
    except (NeedleTVMError, TimingError) as error:
        details = getattr(error, "details", "")  # what a contestant's process wrote
        sys.stderr.write(f"{details}\n{' '.join(str(error).split())}\n")
        return 1
    Path(options.json).write_text(json.dumps(found, allow_nan=False))
    return 0


def versions() -> dict[str, str]:
    """Of what the figures depend on; TVM's is told by the ladders, which import it."""
    found = {
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    for title, distribution in (("NumPy", "numpy"), ("PyTorch", "torch")):
        try:
            found[title] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[title] = "not installed"
    release = [
        line for line in _told(["nvcc", "--version"]).stdout.splitlines() if "release" in line
    ]
    found["nvcc"] = release[0].split("release", 1)[1].strip() if release else "unknown"
    return found


def _told(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def write(result: Mapping[str, Any], stem: Path) -> None:
    """STEM.json and STEM.md."""
    from benchmarks import gpu_report

    for suffix, text in (
        (".json", json.dumps(result, indent=2, allow_nan=False) + "\n"),
        (".md", gpu_report.markdown(result)),
    ):
        path = stem.with_name(stem.name + suffix)
        part = path.with_name(path.name + ".part")
        part.write_text(text)
        part.replace(path)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _rounds(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("test", help="run the tests marked gpu; further arguments go to pytest")
    timed = commands.add_parser("bench", help="time all GPU ladders")
    timed.add_argument("--seconds", type=float, default=_SECONDS, help="in all (%(default)s)")
    timed.add_argument("--rounds", type=_rounds, default=3, help="timed blocks each (%(default)s)")
    timed.add_argument("--only", nargs="+", choices=list(LADDERS), metavar="LADDER", help="(all)")
    timed.add_argument("--out", default="docs/results", help="folder to write to (%(default)s)")
    one = commands.add_parser("ladder", help="one ladder, in this process")
    one.add_argument("name", choices=list(LADDERS))
    one.add_argument("--rounds", type=_rounds, default=3)
    one.add_argument("--json", required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = make_parser().parse_known_args(given)
    if rest and options.command != "test":
        make_parser().error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "ladder":
        return ladder(options)
    started = float(os.environ.get(STARTED, time.time()))
    try:
        gpu = find_gpu()
        need_tools(options.command)
        set_up(given)
        print(
            f"gpu-{options.command}: {gpu.name}, {gpu.architecture}, driver {gpu.driver}",
            flush=True,
        )
        if options.command == "test":
            return test(rest, gpu, started)
        options.given = " ".join(given[1:])
        return bench(options, gpu, started)
    except Refusal as refusal:
        sys.stderr.write(f"gpu-{options.command}: {refusal}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
