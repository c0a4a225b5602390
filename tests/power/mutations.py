"""Count the planted faults that the campaign of random programs finds.

`python -m tests.power.mutations` draws mutations of passes, schedule rules and ops by seed from all
that cosmic-ray makes (`pip install cosmic-ray`). It applies each alone to a copy of the tree and
runs the campaign there to its first failure; a third of the programs have gradients and a third are
PyTorch's. A mutation that the campaign does not find survives: either nothing depends on it, or the
generator does not draw the programs that do.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from needle_runtime.process.scratch import scratch_folder

ROOT = Path(__file__).parents[2]
# Each group gets an equal share; by size, passes would get most and ops least. Programs on a CPU
# reach no GPU rule.
GROUPS = ("needle_tvm/graph", "needle_tvm/kernels", "needle/ops")
_FOR_GPUS = ("gpu", "cuda", "library_products", "mma", "wmma")
SAID = ("verdict", "after", "reached_by", "what")
_SECONDS = 1800.0  # for the programs of one mutation


def sources(group: str) -> list[Path]:
    """The files of a group that compiling for a CPU reaches."""
    return [f for f in sorted((ROOT / group).rglob("*.py")) if not f.name.startswith(_FOR_GPUS)]


def places(files: Sequence[Path]) -> list[tuple[Path, str, Any, int]]:
    """List all mutations of the files: (file, source, operator, occurrence)."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    kinds = [get_operator(name) for name in sorted(operator_names())]
    operators = [kind() for kind in kinds if not kind.arguments()]
    found = []
    for file in files:
        code = file.read_text()
        nodes = list(ast_nodes(get_ast(code)))
        for operator in operators:
            count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            found += [(file, code, operator, occurrence) for occurrence in range(count)]
    return found


def drawn(count: int, seed: int) -> Iterator[tuple[Path, str, str, str]]:
    """Draw `count` mutations: (file, operator, source, mutated source)."""
    from cosmic_ray.mutating import mutate_code

    candidates = [places(sources(group)) for group in GROUPS]
    rng = random.Random(seed)
    for number in range(count):
        file, code, operator, occurrence = rng.choice(candidates[number % len(GROUPS)])
        yield file, type(operator).__name__, code, mutate_code(code, operator, occurrence)


def functions(name: str, code: str, mutated: str) -> list[str]:
    """The functions and lambdas around a mutation, as NAME:LINE of their code objects. The list is
    empty if the mutated line is outside of any function."""
    lines = [code.splitlines(), mutated.splitlines()]
    matched = difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    changed = {i + 1 for tag, low, high, *_ in matched if tag != "equal" for i in range(low, high)}
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            inside = range(
                node.body[0].lineno if decorators or hasattr(node, "name") else first,
                (node.end_lineno or first) + 1,
            )
            if changed <= set(inside):
                found.append(f"{name}:{first}")
    return found


def judged(file: Path, code: str, mutated: str, tree: Path, programs: int) -> dict[str, object]:
    """Run the campaign in the copy `tree` with one file mutated. The answer has the number of
    programs that reach the mutation and the first that failed, counted from 1 (None if none
    did)."""
    name = str(file.relative_to(ROOT))
    target = tree / name
    before = target.read_text()
    target.write_text(mutated)
    at = [f"--function={each}" for each in functions(name, code, mutated)]
    try:
        done = ran(tree, "--programs", str(programs), *at)
    except subprocess.TimeoutExpired:
        return {"after": 1, "verdict": "timeout", "what": f"more than {_SECONDS:.0f} s"}
    finally:
        target.write_text(before)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        return {"after": 1, "verdict": "import", "what": "".join(said)}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def ran(tree: Path, *arguments: str, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    """Run `tests.power.mutated` with the sources in `tree`."""
    command = [str(tree / "venv/bin/python"), "-m", "tests.power.mutated", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds
    )


def copy_tree(folder: Path) -> None:
    """Copy what runs into `folder`, with an environment of its own: an editable install would be
    imported instead of the copy."""
    packages = ("needle", "needle_tvm", "runtime/needle_runtime", "apps", "kernel_lab")
    for name in (*packages, "tests/power"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "needle_runtime").symlink_to(Path("runtime", "needle_runtime"))
    installed = Path(sysconfig.get_path("purelib"))
    for built in installed.glob("needle*/**/*.so"):
        (folder / built.relative_to(installed)).parent.mkdir(exist_ok=True)
        shutil.copy(built, folder / built.relative_to(installed))
    own_environment(folder)


def own_environment(folder: Path, *paths: Path) -> Path:
    """Make `folder`/venv and return its site-packages. It finds modules in `paths` first, then what
    is installed here, except editable installs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    own = next((folder / "venv/lib").glob("python*/site-packages"))
    lines = [*paths, sysconfig.get_path("purelib")]
    (own / "base.pth").write_text("".join(f"{line}\n" for line in lines))
    return own


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.power.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="mutations (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="begin with this one (%(default)s)")
    parser.add_argument("--programs", type=int, default=500, help="at most, for each (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show them, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/mutations.jsonl"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("needle-mutations-") as folder:
        if not options.list:
            copy_tree(folder)
            recorded = ("--programs", str(options.programs), "--record")
            ran(folder, *recorded, seconds=10 * _SECONDS).check_returncode()
        for number, (file, operator, code, mutated) in enumerate(
            drawn(options.count, options.seed)
        ):
            if number < options.first:
                continue
            name = str(file.relative_to(ROOT))
            lines = difflib.unified_diff(code.splitlines(), mutated.splitlines(), n=0, lineterm="")
            diff = [line for line in lines if not line.startswith(("---", "+++"))]
            print(f"{number}: {name} {operator}", *diff, sep="\n  ", flush=True)
            if options.list:
                continue
            found = judged(file, code, mutated, folder, options.programs)
            print(f"  => {json.dumps({key: found.get(key) for key in SAID})}", flush=True)
            entry = {"number": number, "file": name, "operator": operator, "diff": diff, **found}
            with open(options.out, "a") as out:
                print(json.dumps(entry), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
