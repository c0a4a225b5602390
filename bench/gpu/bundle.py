"""`make gpu-bundle`: one archive for a GPU host without a network or a compiler.

It is made on a machine without a GPU: compiling code for `cuda:sm_90` needs none. Weights are not
packed: the host draws them from the models' seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.gpu import host, measure, plan
from bench.gpu.host import CONTESTS, MANIFEST, ROOT, SITE, TREE, Refusal
from needle_runtime._tvm import versions
from needle_runtime.process.child import Child, ChildError
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.text import error_line
from needle_tvm.target import nvcc
from needle_tvm.terminal import progress

LIMIT = 60_000_000  # bytes of bundle and working tree: a host accepts 64 MiB
_WORK = ROOT / "build" / "gpu"
_WHEELS = ("platformdirs", "typing_extensions")  # dependencies that hosts may lack
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64")
_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
_CUDART = "libcudart.so.13"  # TVM's library for CUDA is linked to it
_SECONDS = 600.0  # time limit to compile the contestants of one contest
_PART = 33_000_000  # bytes of a part of the second bundle
_AT_ONCE = max(1, len(os.sched_getaffinity(0)))


def run(options: argparse.Namespace) -> int:
    """Make the bundle in the folder `out`; return 1 if it is too large for a host, otherwise 0."""
    start = time.time()
    archive = options.out / (host.COMPILER if options.compiler else host.BUNDLE.name)
    options.out.mkdir(parents=True, exist_ok=True)
    with scratch_folder("needle-bundle-") as folder, progress() as bar:
        stage = _Stage(folder, bar)
        if options.compiler:
            _compiler(folder)
        else:
            python = find_python(options.python)
            stage.say("packages")
            site = _site(options.python)
            shutil.copytree(site, folder / SITE, ignore=shutil.ignore_patterns("include"))
            stage.say("needle's native modules")
            _native(folder, site, python, options)
            manifest = _contests(folder / CONTESTS, options, stage)
            manifest |= {"python": options.python, "arch": options.arch}
            if options.rehearsal:
                _emulation(folder)
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
        stage.say("compressing")
        _pack(folder, archive)
    files = _parts(archive) if options.compiler else [archive]
    sizes, others = [path.stat().st_size for path in files], travelling_bytes()
    told = ", ".join(f"{path} {size:,} bytes" for path, size in zip(files, sizes, strict=True))
    sys.stdout.write(
        f"{told}; {time.time() - start:.0f} s; with the working tree "
        f"{max(sizes) + others:,} of at most {LIMIT:,} bytes\n"
    )
    return 0 if max(sizes) + others <= LIMIT else 1


class _Stage:
    """Reports the current step; the number of steps grows as they become known."""

    def __init__(self, folder: Path, bar: Any) -> None:
        self._bar, self.done, self.total = bar, 0, 4

    def say(self, text: str) -> None:
        self._bar(self.done, max(self.total, self.done + 1), text)
        self.done += 1


def travelling() -> list[str]:
    """Return the files that travel with the bundle: the working tree's files that git does not
    ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = filter(None, listed.stdout.decode().split("\0"))
    return [name for name in names if (ROOT / name).is_file()]


def travelling_bytes() -> int:
    """Return the total size of the files that travel with the bundle."""
    return sum((ROOT / name).stat().st_size for name in travelling())


def find_python(version: str) -> str:
    """Return a Python of this version ("3.12") with its headers, to compile modules for it:
    `pythonX.Y` on PATH, one of pyenv's, or the running one. Raises Refusal if there is none."""
    ask = "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2], s.get_path('include'))"
    named = [shutil.which(f"python{version}"), *map(str, _pyenv(version)), sys.executable]
    for candidate in filter(None, named):
        done = host.run([candidate, "-c", ask])
        told, _, include = done.stdout.strip().partition(" ")
        if done.returncode == 0 and told == version and Path(include, "Python.h").is_file():
            return candidate
    raise Refusal(
        f"there is no python{version} with headers here, to compile needle's modules for it"
    )


def _pyenv(version: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return sorted(root.glob(f"versions/{version}.*/bin/python{version}"))


def _site(version: str) -> Path:
    """Return a folder, kept for later calls, with packages for the host's Python: tvm-ffi, TVM's
    runtime without Python code, and others."""
    site = _WORK / f"site-{version}-{versions.TVM}-{versions.FFI}"
    if site.is_dir():
        return site
    fresh = site.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    wheels = fresh / "wheels"
    platforms = [word for each in _PLATFORMS for word in ("--platform", each)]
    names = [f"apache-tvm-ffi=={versions.FFI}", *_WHEELS]
    options = ["-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp", *platforms]
    do(
        [
            *(sys.executable, "-m", "pip", "download", "--python-version", version),
            *(*options, "-d", str(wheels), *names),
        ],
        "packages for the host cannot be downloaded",
    )
    for wheel in wheels.glob("*.whl"):
        do([sys.executable, "-m", "zipfile", "-e", str(wheel), str(fresh)], str(wheel))
    shutil.rmtree(wheels)
    libraries = _tvm_libraries()
    kept = fresh / "tvm" / "lib"
    kept.mkdir(parents=True)
    for name in _LIBRARIES:
        shutil.copy(libraries / name, kept)
    shutil.copy(libraries.parent / "_version.py", kept.parent)
    cudart = _cudart()
    if cudart is not None:
        shutil.copy(cudart, kept / _CUDART)
    fresh.replace(site)
    return site


def _tvm_libraries() -> Path:
    libraries = versions.tvm_library_folder()
    if libraries is None:
        raise Refusal(f"TVM is not installed: {versions.INSTALL_HINT}")
    return libraries


def _cudart() -> Path | None:
    """Return the toolkit's CUDA runtime library; without it the host must have one."""
    compiler = nvcc.find()
    if compiler is None:
        return None
    roots = [Path(compiler).resolve().parents[1], Path("/usr/local/cuda")]
    found = (root / lib / _CUDART for root in roots for lib in ("lib64", "lib"))
    return next((path for path in found if path.is_file()), None)


def _native(folder: Path, site: Path, python: str, options: argparse.Namespace) -> None:
    """Build needle's native modules for the host's Python, in a folder kept for later calls."""
    kind = "emulated" if options.rehearsal else options.arch
    build = _WORK / f"native-{options.python}-{kind}"
    tools = Path(sys.executable).parent
    import pybind11

    choices = [
        f"-DPython_EXECUTABLE={python}",
        f"-DNEEDLE_PYBIND11_INCLUDE={pybind11.get_include()}",
        "-DNEEDLE_BLAS=OFF",
        f"-DNEEDLE_CUDA={'EMULATED' if options.rehearsal else 'ON'}",
        f"-DCMAKE_CUDA_ARCHITECTURES={options.arch.removeprefix('sm_')}-real",
    ]
    if not (build / "CMakeCache.txt").exists() and (tools / "ninja").exists():
        choices += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    environment = {**os.environ, "PYTHONPATH": str(site)}  # where CMake finds tvm_ffi
    what = "needle's native modules cannot be built"
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(build), *choices],
        [cmake, "--build", str(build), "-j", str(_AT_ONCE)],
        [cmake, "--install", str(build), "--prefix", str(folder / TREE), "--strip"],
    ):
        do(command, what, environment)
    runtime = folder / TREE / "needle_runtime"
    for copy in (runtime / "lib").glob("libtvm*"):
        copy.unlink()  # the site has them
    (folder / TREE / "runtime").mkdir()
    runtime.rename(folder / TREE / "runtime" / runtime.name)  # beside the sources
    if options.rehearsal:  # the install step leaves the emulated module out
        (module,) = (build / "src" / "cuda").glob("_cuda.*.so")
        shutil.copy(module, folder / TREE / "needle" / "backend_ndarray")


def _contests(folder: Path, options: argparse.Namespace, stage: _Stage) -> dict[str, Any]:
    """Compile the contestants of all contests; return their entries for the manifest."""
    small = options.rehearsal
    everything = plan.chosen(options.only, plan.contests(small))
    target = "cuda" if options.rehearsal else f"cuda:{options.arch}"
    jobs = [
        job
        for contest in everything.values()
        for job in _jobs(contest, folder / contest.name, target, options)
    ]
    stage.total += len(jobs)
    failed: dict[str, str] = {}

    def compile_one(job: tuple[str, str, dict[str, Any]]) -> None:
        name, service, setup = job
        stage.say(name)
        try:
            with Child(name, f"{__name__}:{service}", setup, timeout=_SECONDS) as child:
                child.receive("compile")
        except ChildError as error:
            failed[name] = error_line(error).removeprefix(f"{name}: ")
            Path(f"{setup['path']}.refused").parent.mkdir(parents=True, exist_ok=True)
            Path(f"{setup['path']}.refused").write_text(failed[name])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(compile_one, jobs))
    for name, reason in failed.items():
        sys.stderr.write(f"not compiled: {name}: {reason}\n")
    return {"small": small, "contests": list(everything), "failed": failed}


def _jobs(
    contest: plan.Contest, folder: Path, target: str, options: argparse.Namespace
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a contest's compilations: a name, a service of this module and its setup."""
    subject = contest.subject.get("case") or contest.subject
    for title, choices in contest.artifacts.items():
        yield (
            f"{contest.name}: {title}",
            "compile_artifact",
            {
                "case": {key: subject[key] for key in ("name", "batch", "options")},
                "choices": {**choices, "target": target},
                "path": str(folder / measure.slug(title)),
            },
        )
    if contest.kind == "ladder":
        setup = {key: contest.subject[key] for key in ("name", "size", "rungs")}
        arch = options.arch
        yield contest.name, "compile_ladder", {**setup, "arch": arch, "path": str(folder)}


def compile_artifact(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, compile a case and write its code, without weights, to `path`."""
    import needle_tvm
    from needle_runtime.artifact.layout import LIBRARY
    from needle_runtime.artifact.manifest import write_manifest

    with scratch_folder("needle-bundle-") as scratch:
        subject = measure.case_of(**setup["case"]).subject(scratch)
        executable = needle_tvm.compile(subject.model, *subject.tensors, **setup["choices"])
    path = Path(setup["path"])
    path.mkdir(parents=True)
    (path / LIBRARY).write_bytes(executable.artifact.read(LIBRARY))
    facts = {k: v for k, v in executable.manifest.items() if k not in ("key", "golden")}
    write_manifest(path, facts)
    yield {}


def compile_ladder(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, compile the rungs of a ladder into the folder `path`."""
    from kernel_lab.run import Request, compile_libraries

    chosen = {key: setup[key] for key in ("size", "rungs", "arch")}
    request = Request(setup["name"], device="cuda", timed=False, **chosen)
    compile_libraries(request, Path(setup["path"]))
    yield {}


def _emulation(folder: Path) -> None:
    """Put the emulated CUDA runtime and cuBLAS of the tests into the tree."""
    from tests.needle_tvm import emulated_gpu

    place = folder / TREE / "build" / "emulated"
    place.mkdir(parents=True)
    shutil.copy(emulated_gpu.build(), place)
    shutil.copy(emulated_gpu.build_cublas(), place)


def _compiler(folder: Path) -> None:
    """Pack TVM's compiler, for work that must compile on the host: a search, measured products."""
    left_out = shutil.ignore_patterns("__pycache__", "3rdparty", "web", "licenses", "cmake", "src")
    shutil.copytree(_tvm_libraries().parent, folder / SITE / "tvm", ignore=left_out)


def _pack(folder: Path, archive: Path) -> None:
    fresh = archive.with_suffix(".new")
    with tarfile.open(fresh, "w:xz", preset=6) as packed:
        for entry in sorted(folder.iterdir()):
            packed.add(entry, entry.name)
    fresh.replace(archive)


def _parts(archive: Path) -> list[Path]:
    """Cut an archive too large for one transfer into parts; a host keeps parts it has received."""
    data = archive.read_bytes()
    archive.unlink()
    found = []
    for number, start in enumerate(range(0, len(data), _PART)):
        found.append(archive.with_name(f"{archive.name}.{number}"))
        found[-1].write_bytes(data[start : start + _PART])
    return found


def do(command: Sequence[str], what: str, environment: dict[str, str] | None = None) -> None:
    """Run a command. If it fails, raise Refusal with `what` and the last lines of its output."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        wrong = [line for line in lines if "error" in line.lower()]
        reason = " ".join(" ".join((wrong or lines)[-12:]).split())[-600:]
        raise Refusal(f"{what}: {reason}")
