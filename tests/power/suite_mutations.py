"""Count the planted faults that the tests find: `python -m tests.power.suite_mutations`.

tests/mutations.json lists the faults, one line of code each. The tool applies each alone to a copy
of the tree, with an environment of its own, and runs there what `make test` runs, to the first
failure.

It first records, one test file after the other, which functions each test calls, in its own process
and in those it starts. For each fault it then runs the files that reach the mutated function (for a
line outside of functions, the files that import it), cheap ones first, and in each file the tests
that call the function first: the other tests share fixtures and compiled models with them. A fault
in C++ is compiled, and all files run, those of arrays first. A failure counts if the test passes
without the mutation.

`--out` keeps the records and the verdicts: the same command goes on where it ended. Another tree
needs another folder.
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
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from needle_tvm.process.scratch import scratch_folder
from tests.power.mutations import ROOT, functions, own_environment

_LEFT_OUT = (".git", ".venv", ".gpu", ".hypothesis", "build", "out")
_SECONDS = 900.0  # a run may take so much more than three times the recorded time
_MEMORY = (12 << 30,) * 2  # bytes of data of a process: a mutated loop may never end


def located(entry: dict[str, Any], tree: Path) -> tuple[Path, str]:
    """The file of a mutation in a tree, and its mutated text.

    The search goes through the mutation's own file first, then its whole package; it looks for all
    its lines, then for fewer around it. If the line itself was rewritten since, `now` in the entry
    has `file`, `lead`, `before`, `after` and `trail` as they are today. Raises LookupError unless
    the place is found exactly once.
    """
    own = tree / entry["file"]
    package = sorted((tree / Path(entry["file"]).parts[0]).rglob("*"))
    others = [f for f in package if f.suffix in (".py", ".h", ".cc", ".inc") and f != own]
    lead, before, trail = ([x.strip() for x in entry[key]] for key in ("lead", "before", "trail"))
    around = ((lead, trail), (lead, []), ([], trail), (lead[-1:], []), ([], trail[:1]))
    for above, below in around:
        wanted = [*above, *before, *below]
        for files in ([own] if own.exists() else [], others):
            hits = []
            for file in files:
                lines = [line.strip() for line in file.read_text().splitlines()]
                starts = range(len(lines) - len(wanted) + 1)
                hits += [(file, i) for i in starts if lines[i : i + len(wanted)] == wanted]
            if len(hits) > 1:
                raise LookupError(f"is there {len(hits)} times")
            if hits:
                file, at = hits[0][0], hits[0][1] + len(above)
                lines = file.read_text().splitlines()
                was, now = (x[: -len(x.lstrip())] for x in (entry["before"][0], lines[at]))
                lines[at : at + len(before)] = [now + x.removeprefix(was) for x in entry["after"]]
                return file, "\n".join(lines) + "\n"
    if "now" in entry:
        return located(entry["now"], tree)
    raise LookupError("is not there")


class Suite:
    """A copy of a tree in `folder` and its tests; `out` keeps the records of the tests."""

    def __init__(self, tree: Path, folder: Path, out: Path, arguments: Sequence[str]) -> None:
        self.folder, self.tree, self.out = folder, folder / "tree", out
        shutil.copytree(
            tree,
            self.tree,
            ignore=lambda at, _: {"__pycache__", *(_LEFT_OUT if Path(at) == tree else ())},
        )
        packages = own_environment(folder, self.tree)
        shutil.copy(Path(__file__).with_name("suite_plugin.py"), packages)
        hook = 'import os; os.environ.get("SUITE_REACHED") and __import__("suite_plugin")\n'
        (packages / "suite.pth").write_text(hook)
        (markers,) = re.findall(r'(?ms)^test:.*?-m "([^"]+)"', (tree / "Makefile").read_text())
        self.arguments = ["-m", markers, *arguments]
        self.unsound: list[str] = []  # tests that also fail without a mutation
        tools = Path(sys.executable).parent
        configure = [tools / "cmake", "-S", self.tree, "-B", folder / "cmake", "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={tools}/ninja", f"-DCMAKE_INSTALL_PREFIX={self.tree}"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}"]
        self.build = [tools / "cmake", "--build", folder / "cmake", "-j", "2", "-t", "install"]
        for step in (configure, self.build):
            subprocess.run(step, check=True, stdout=subprocess.DEVNULL)

    def put(self, file: Path, text: str) -> None:
        """Write a file of the copy, and build it if it is C++."""
        file.write_text(text)
        if file.suffix != ".py":
            subprocess.run(self.build, check=True, stdout=subprocess.DEVNULL)

    def run(
        self, files: Sequence[str], seconds: float | None, **plan: Any
    ) -> tuple[str, list[Any]]:
        """Run pytest; returns how it ended and its reports (test, outcome, seconds). The plugin
        reads `plan`."""
        reports, planned = self.folder / "reports.jsonl", self.folder / "plan.json"
        planned.write_text(json.dumps({**plan, "unsound": self.unsound}))
        reports.write_text("")
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # what failed before
        options = ["-q", "--basetemp", self.folder / "tmp", "-p", "suite_plugin", *self.arguments]
        options += ["-p", "no:cacheprovider", "--hypothesis-seed=1"]  # the same in every run
        options += [] if "record" in plan else ["-x"]
        own = {"SUITE_PLAN": planned, "SUITE_REPORTS": reports, "SUITE_ROOT": self.tree}
        own |= {"SUITE_REACHED": plan["record"]} if "record" in plan else {}
        with (self.folder / "said.txt").open("w") as said:
            process = subprocess.Popen(
                [self.folder / "venv/bin/python", "-m", "pytest", *options, *files],
                cwd=self.tree,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **own},
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, _MEMORY),
            )
            try:
                ended = "passed" if process.wait(seconds) in (0, 5) else "failed"  # 5: no tests
            except subprocess.TimeoutExpired:
                ended = "timeout"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return ended, [json.loads(line) for line in reports.read_text().splitlines()]

    def recorded(self, file: str) -> dict[str, Any]:
        """The seconds of each test of a file, and the numbers of the tests that reach each
        function. Number 0 stands for the import of the file and for calls of no known test."""
        kept = self.out / "recorded" / f"{file.replace('/', '.')}.json"
        if not kept.exists():
            print(f"recording {file}", flush=True)
            raw = self.folder / "reached.jsonl"
            raw.write_text("")
            seconds: dict[str, float] = defaultdict(float, {"": 0.0})
            for test, _, took in self.run([file], None, record=str(raw))[1]:
                seconds[test] += took
            numbers = {test: number for number, test in enumerate(seconds)}
            reached: dict[str, set[int]] = defaultdict(set)
            with raw.open() as lines:
                for test, place in map(json.loads, lines):
                    reached[place].add(numbers.get(test, 0))
            kept.parent.mkdir(parents=True, exist_ok=True)
            found = {place: sorted(reached[place]) for place in sorted(reached)}
            kept.write_text(json.dumps({"seconds": seconds, "reached": found}))
        entry: dict[str, Any] = json.loads(kept.read_text())
        return entry

    def reaching(self, file: Path, text: str, tests: Sequence[str]) -> dict[str, dict[str, float]]:
        """The test files to run, in order, each with the seconds of the tests that call the mutated
        function, or of all its tests if the mutated line is in no function."""
        name, python, found = str(file.relative_to(self.tree)), file.suffix == ".py", {}
        wanted = set(functions(name, file.read_text(), text)) if python else set()
        for test in tests:
            seconds, reached = self.recorded(test).values()
            inside = wanted or {place for place in reached if place.startswith(f"{name}:")}
            numbers = {number for place in inside for number in reached.get(place, ())}
            calling = {each for i, each in enumerate(seconds) if i and i in numbers} or seconds
            if numbers or not python:
                found[test] = {each: seconds[each] for each in calling}
        after = "" if python else "/ndarray/"
        return dict(sorted(found.items(), key=lambda x: (after not in x[0], sum(x[1].values()))))

    def judged(self, entry: dict[str, Any], tests: Sequence[str]) -> dict[str, Any]:
        """Judge a mutation: killed or timeout (with the test), survived, unreached (by any test),
        or lost (its place is not found)."""
        try:
            file, text = located(entry, self.tree)
        except LookupError as error:
            return {"verdict": "lost", "what": f"its text {error}"}
        before, files = file.read_text(), self.reaching(file, text, tests)
        about = {"at": str(file.relative_to(self.tree)), "files": len(files)}
        if not files:
            return {"verdict": "unreached", **about}
        first = [test for each in files.values() for test in each]
        whole = sum(sum(self.recorded(each)["seconds"].values()) for each in files)
        while True:
            try:
                self.put(file, text)
                ended, reports = self.run(list(files), _SECONDS + 3 * whole, first=first)
            finally:
                self.put(file, before)
            about["tests"] = len({test for test, *_ in reports})
            if ended == "passed":
                return {"verdict": "survived", **about}
            # Where the process itself was ended, the last test.
            failures = [each for each in reports if each[1] == "failed"] or reports[-1:]
            if not failures:
                raise RuntimeError(f"pytest: {(self.folder / 'said.txt').read_text()[-2000:]}")
            about["test"] = test = failures[0][0]
            if ended == "timeout":
                return {"verdict": "timeout", **about}
            if self.run([test.partition("::")[0]], _SECONDS, only=[test])[0] == "passed":
                return {"verdict": "killed", **about}
            self.unsound.append(test)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.power.suite_mutations", description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="begin with this entry (%(default)s)")
    parser.add_argument("--only", metavar="N,..", help="these entries; 0 to record alone")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose tests (%(default)s)")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="of the tests, instead of all")
    parser.add_argument("--pytest", default="", metavar="ARGS", help="more arguments of pytest")
    parser.add_argument("--locate", action="store_true", help="show their places, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/suite_mutations"))
    options = parser.parse_args(arguments)
    tree, out = options.tree.resolve(), options.out.resolve()
    entries = json.loads((ROOT / "tests/mutations.json").read_text())["mutations"]
    only = set(map(int, options.only.split(","))) if options.only else range(options.first, 1000)
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
        suite = Suite(tree, folder, out, shlex.split(options.pytest))
        found = sorted(str(file.relative_to(tree)) for file in tree.glob("tests/**/test_*.py"))
        tests = options.tests or found
        for test in tests:
            suite.recorded(test)
        for entry in entries:
            if entry["number"] in done:
                continue
            began = time.monotonic()
            verdict = suite.judged(entry, tests)
            said = {key: entry[key] for key in ("number", "file", "function", "operator")}
            said |= {**verdict, "seconds": round(time.monotonic() - began)}
            print(json.dumps(said), flush=True)
            results.write(json.dumps(said) + "\n")
            results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
