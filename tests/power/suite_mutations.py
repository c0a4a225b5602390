"""Count the planted faults that the tests find: `python -m tests.power.suite_mutations`.

tests/mutations.json lists the faults, one line of code each. The tool applies each alone to a copy
of the tree, with an environment of its own, and runs there what `make test` (or another `--tier`)
runs, to the first failure: first the tests in the folder that mirrors the mutated file's, then all
others. A fault in C++ is compiled. A failure counts if the test passes without the mutation.

`--near` stops after the folder's own tests, so that what is found is a lower bound. `--out` keeps
the verdicts: the same command goes on where it ended. Another tree needs another folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from needle_runtime.process.scratch import scratch_folder
from tests.power.mutations import ROOT, own_environment

_LEFT_OUT = (".git", ".venv", ".gpu", ".hypothesis", "build", "out")
_SECONDS = 1800.0  # for a run of pytest: a mutated loop may have no end
_MEMORY = (12 << 30,) * 2  # bytes of data for a process, for the same reason
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


def located(entry: dict[str, Any], tree: Path) -> tuple[Path, str]:
    """The file of a mutation in a tree, and its mutated text.

    The search goes through the mutation's own file first, then its whole package; it looks for all
    its lines, then for fewer around it. If the line itself was rewritten since, `now` in the entry
    has `file`, `lead`, `before`, `after` and `trail` as they are today. Raises LookupError unless
    the place is found exactly once.
    """
    own = tree / entry["file"]
    roots = (Path(entry["file"]).parts[0], "runtime")  # where needle_tvm's lines may be today
    package = sorted(path for root in roots for path in (tree / root).rglob("*"))
    others = [f for f in package if f.suffix in (".py", ".h", ".cc", ".inc") and f != own]
    lead, before, trail = ([x.strip() for x in entry[key]] for key in ("lead", "before", "trail"))
    around: tuple[tuple[list[str], list[str]], ...] = (
        (lead, trail),
        (lead, []),
        ([], trail),
        (lead[-1:], []),
        ([], trail[:1]),
    )
    for above, below in around:
        wanted = [*above, *before, *below]
        for files in ([own] if own.exists() else [], others):
            hits = []
            for file in files:
                lines = [line.strip() for line in file.read_text().splitlines()]
                starts = range(len(lines) - len(wanted) + 1)
                hits += [(file, i) for i in starts if lines[i : i + len(wanted)] == wanted]
            if len(hits) > 1 and "now" not in entry:
                raise LookupError(f"is there {len(hits)} times")
            if len(hits) == 1:
                file, at = hits[0][0], hits[0][1] + len(above)
                lines = file.read_text().splitlines()
                was, now = (x[: -len(x.lstrip())] for x in (entry["before"][0], lines[at]))
                lines[at : at + len(before)] = [now + x.removeprefix(was) for x in entry["after"]]
                return file, "\n".join(lines) + "\n"
    if "now" in entry:
        return located(entry["now"], tree)
    raise LookupError("is not there")


class Suite:
    """A copy of a tree in `folder`, and the tests that `make <tier>` runs there."""

    def __init__(self, tree: Path, folder: Path, tier: str, arguments: Sequence[str]) -> None:
        self.folder, self.tree = folder, folder / "tree"
        shutil.copytree(
            tree,
            self.tree,
            ignore=lambda at, _: {"__pycache__", *(_LEFT_OUT if Path(at) == tree else ())},
        )
        (self.tree / "needle_runtime").symlink_to(Path("runtime", "needle_runtime"))
        own_environment(folder, self.tree)
        rules = (tree / "Makefile").read_text()
        (markers,) = re.findall(rf'(?ms)^{tier}: build.*?-m "([^"]+)"', rules)
        self.arguments = ["-m", markers, *arguments]
        self.unsound: list[str] = []  # tests that fail without a mutation as well
        tools = Path(sys.executable).parent
        configure: list[str | Path] = [
            tools / "cmake",
            "-S",
            self.tree,
            "-B",
            folder / "cmake",
            "-G",
            "Ninja",
        ]
        configure += [f"-DCMAKE_MAKE_PROGRAM={tools}/ninja", f"-DCMAKE_INSTALL_PREFIX={self.tree}"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}"]
        self.build: list[str | Path] = [
            tools / "cmake",
            "--build",
            folder / "cmake",
            "-j",
            "2",
            "-t",
            "install",
        ]
        for step in (configure, self.build):
            subprocess.run(step, check=True, stdout=subprocess.DEVNULL)

    def put(self, file: Path, text: str) -> None:
        """Replace the text of a file of the copy, and compile it if it is C++."""
        file.write_text(text)
        if file.suffix != ".py":
            subprocess.run(self.build, check=True, stdout=subprocess.DEVNULL)

    def failure(self, tests: Sequence[str]) -> str | None:
        """Run tests to the first failure; return its name, "timeout", or None if all pass."""
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # what failed before
        options: list[str] = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=1",
            *self.arguments,
        ]
        options += [f"--basetemp={self.folder / 'tmp'}"]
        options += [f"--deselect={test}" for test in self.unsound]
        said = self.folder / "said.txt"
        with said.open("w") as output:
            process = subprocess.Popen(
                [self.folder / "venv/bin/python", "-m", "pytest", *options, *tests],
                cwd=self.tree,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, _MEMORY),
            )
            try:
                code = process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                return "timeout"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code in (0, 5):  # 5: no tests were chosen
            return None
        found = _FAILED.search(said.read_text())
        return found.group(1) if found else f"pytest ended with {code}"

    def near(self, file: Path) -> list[str]:
        """The test files of the folder that mirrors the file's, or of the nearest one above it
        that has any, without those of its subfolders.
        """
        folder = file.relative_to(self.tree).parent
        if folder.parts[0] == "src":
            folder = Path("needle/backend_ndarray")
        if folder.parts[0] == "runtime":
            folder = Path("needle_runtime", *folder.parts[2:])
        while not (found := sorted((self.tree / "tests" / folder).glob("test_*.py"))):
            folder = folder.parent
        return [str(each.relative_to(self.tree)) for each in found]

    def judged(self, entry: dict[str, Any], near: bool) -> dict[str, Any]:
        """Judge a mutation: killed (by a test), survived, or lost (its place is not found)."""
        try:
            file, text = located(entry, self.tree)
        except LookupError as error:
            return {"verdict": "lost", "what": f"its text {error}"}
        about: dict[str, Any] = {"at": str(file.relative_to(self.tree))}
        before, first = file.read_text(), self.near(file)
        rest = ["tests", *(f"--ignore={each}" for each in first)]
        for tests in [first] if near else [first, rest]:
            while True:
                try:
                    self.put(file, text)
                    test = self.failure(tests)
                finally:
                    self.put(file, before)
                if test is None:
                    break
                if "::" not in test or self.failure([test]) is None:
                    return {"verdict": "killed", **about, "test": test}
                self.unsound.append(test)
        return {"verdict": "survived", **about, "near": near}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.power.suite_mutations", description=__doc__)
    parser.add_argument("--only", metavar="N,..", help="these entries")
    parser.add_argument("--near", action="store_true", help="only the folder's own tests")
    parser.add_argument("--tier", default="test", help="of the Makefile (%(default)s)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose tests (%(default)s)")
    parser.add_argument("--pytest", default="", metavar="ARGS", help="more arguments of pytest")
    parser.add_argument("--locate", action="store_true", help="show their places, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/suite_mutations"))
    options = parser.parse_args(arguments)
    tree, out = options.tree.resolve(), options.out.resolve()
    entries = json.loads((ROOT / "tests/mutations.json").read_text())["mutations"]
    if options.only:
        only = set(map(int, options.only.split(",")))
        entries = [entry for entry in entries if entry["number"] in only]
    if options.locate:
        for entry in entries:
            try:
                print(f"{entry['number']}: {located(entry, tree)[0].relative_to(tree)}")
            except LookupError as error:
                print(f"{entry['number']}: {entry['file']}: its text {error}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    with scratch_folder("needle-suite-") as folder, (out / "results.jsonl").open("a+") as results:
        results.seek(0)
        done = {json.loads(line)["number"] for line in results}
        suite = Suite(tree, folder, options.tier, shlex.split(options.pytest))
        for entry in entries:
            if entry["number"] in done:
                continue
            began = time.monotonic()
            verdict = suite.judged(entry, options.near)
            said = {key: entry[key] for key in ("number", "file", "function", "operator")}
            said |= {**verdict, "seconds": round(time.monotonic() - began)}
            print(json.dumps(said), flush=True)
            results.write(json.dumps(said) + "\n")
            results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
