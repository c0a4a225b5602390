"""Run the cases of PyTorch's `test/inductor/test_torchinductor.py` through the backend: `python -m
tests.power.inductor_cases path/to/test_torchinductor.py`.

The file comes from PyTorch's repository at the release that is installed. A case is one call of
`self.common(model, inputs)`, under `torch.no_grad()`. Cases that draw random numbers are left out,
as are those that `backend="aot_eager"` does not do as eager code. A case is *right* if values,
dtypes, strides, what results share memory with, and what is written are as in eager code, at two
calls. It is *compiled* if needle computed every graph of it, *views* if there was nothing to
compute, and *left* if a graph ran in PyTorch. The backend's own comparison is off, unless --check.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import inspect
import json
import re
import signal
import subprocess
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_leaves

from needle.torch.oracle import is_close
from needle.torch.reading import array_of
from needle_tvm.compiler import aot_code, dynamo

_SECONDS = 150  # for one test
_MISSING = 16  # names that the file may import in vain


class _TooLong(BaseException):
    """A test takes longer than _SECONDS."""


class Watch:
    """What the backend did while a case ran."""

    def __init__(self) -> None:
        self.compiled, self.views, self.reasons = 0, 0, list[str]()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context in which it watches."""
        backend: Any = dynamo
        ready: Any = aot_code.Bound
        before = backend.warn, ready.__init__

        def noted(bound: Any, graph: Any, code: Any, numbers: Any) -> None:
            before[1](bound, graph, code, numbers)
            self.compiled += code is not None
            self.views += code is None

        backend.warn, ready.__init__ = self.reasons.append, noted
        try:
            yield
        finally:
            backend.warn, ready.__init__ = before

    @property
    def verdict(self) -> str:
        """What became of the case's graphs."""
        if self.reasons:
            return "left"
        if self.compiled:
            return "compiled"
        return "views" if self.views else "no graph"


def tensors_of(value: Any) -> list[Any]:
    """The leaves of a value."""
    return tree_leaves(value)


def sharing(results: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[int, int]]:
    """Pairs of tensors, the first of them a result, that share a storage."""
    tensors = [each for each in results if isinstance(each, torch.Tensor)]
    both = [*tensors, *(each for each in inputs if isinstance(each, torch.Tensor))]
    storages = [each.untyped_storage() for each in both]
    keys = [each._cdata if each.nbytes() else -i for i, each in enumerate(storages, 1)]
    return [
        (i, j) for i in range(len(tensors)) for j in range(i + 1, len(both)) if keys[i] == keys[j]
    ]


def difference(found: Any, wanted: Any) -> str | None:
    """How one run, (result, inputs afterwards), differs from another."""
    for what, have, want in zip(("result", "input"), found, wanted, strict=True):
        a, b = tensors_of(have), tensors_of(want)
        if len(a) != len(b):
            return f"{len(a)} {what}s for {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if isinstance(y, torch.Tensor) != isinstance(x, torch.Tensor):
                return f"{what} {i} is a {type(x).__name__} for a {type(y).__name__}"
            if not isinstance(y, torch.Tensor):
                if x != y and not (x != x and y != y):
                    return f"{what} {i} is {x} for {y}"
                continue
            if x.dtype != y.dtype or x.shape != y.shape:
                return f"{what} {i} is {x.dtype}{list(x.shape)} for {y.dtype}{list(y.shape)}"
            if y.layout == torch.strided and y.numel() and x.stride() != y.stride():
                return f"{what} {i} has the strides {x.stride()} for {y.stride()}"
            if not _same(x, y):
                return f"{what} {i} differs: {_excerpt(x)} for {_excerpt(y)}"
    pairs = [sharing(tensors_of(run[0]), tensors_of(run[1])) for run in (found, wanted)]
    return None if pairs[0] == pairs[1] else f"shares memory as {pairs[0]} for {pairs[1]}"


def _same(x: Any, y: Any) -> bool:
    a, b = array_of(x), array_of(y)
    if b is None:
        return bool(torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)))
    return is_close(a, b)


def _excerpt(x: Any) -> str:
    return str([*x.detach().reshape(-1)[:4].tolist()])


def judged(model: Any, inputs: Any, kwargs: Any, check: bool) -> tuple[str, str]:
    """(verdict, reason) of a case."""

    def run(call: Callable[..., Any]) -> Any:
        args, named = copy.deepcopy((list(inputs), kwargs))
        with torch.no_grad():
            result = call(*args, **named)
        return result, (args, named)

    def compiled(backend: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        made = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model
        return torch.compile(made, backend=backend, **options)

    state = torch.get_rng_state()
    try:
        wanted = run(copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model)
        if not torch.equal(state, torch.get_rng_state()):
            return "random", ""
        control = compiled("aot_eager")
        for _ in range(2):
            what = difference(run(control), wanted)
            if what is not None:
                return "control", what
    except Exception as error:
        return "control", f"{type(error).__name__}: {error}".partition("\n")[0]
    watch = Watch()
    try:
        with watch.active():
            call = compiled(dynamo.needle, options={"stage": "noopt", "check": check})
            for _ in range(2):
                what = difference(run(call), wanted)
                if what is not None:
                    return "wrong", f"{watch.verdict}: {what} {watch.reasons}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}".partition("\n")[0]
    return watch.verdict, "; ".join(watch.reasons)


def load(path: Path) -> Any:
    """The file as a module. What the installed PyTorch does not have skips, if it decorates."""
    spec = importlib.util.spec_from_file_location("test_torchinductor", path)
    assert spec is not None and spec.loader is not None
    for _ in range(_MISSING):
        module = importlib.util.module_from_spec(spec)
        sys.modules["test_torchinductor"] = module
        try:
            spec.loader.exec_module(module)
            return module
        except ImportError as error:
            name = re.match(r"cannot import name '(\w+)'", str(error))
            if name is None or error.name is None:
                raise
            skipped = unittest.skip(f"{name[1]} is not in this PyTorch")
            setattr(importlib.import_module(error.name), name[1], skipped)
    raise ImportError(f"{path} is of another PyTorch than {torch.__version__}")


def cases(module: Any, names: Sequence[str], check: bool) -> Iterator[dict[str, Any]]:
    """The verdict of each case of these tests."""
    found: list[dict[str, Any]] = []

    class Cases(module.CommonTemplate, TestCase):
        device = "cpu"
        current = ""

        def common(self, model: Any, example_inputs: Any, kwargs: Any = None, **_: Any) -> None:
            verdict, reason = judged(model, example_inputs, kwargs or {}, check)
            number = sum(each["test"] == self.current for each in found)
            found.append({"test": self.current, "case": number} | _line(verdict, reason))

        def is_dtype_supported(self, dtype: Any) -> bool:
            return True

    def too_long(*_: Any) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, too_long)
    for name in names:
        test, before = Cases(name), len(found)
        test.current = name
        signal.alarm(_SECONDS)
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(test, name)()
        except unittest.SkipTest as skipped:
            found.append({"test": name} | _line("skipped", str(skipped)))
        except _TooLong:
            found.append({"test": name} | _line("too long", f"{_SECONDS} s"))
        except BaseException as error:  # the test's own
            found.append({"test": name} | _line("test", f"{type(error).__name__}: {error}"))
        finally:
            signal.alarm(0)
        yield from found[before:]
        yield {"done": name}


def _line(verdict: str, reason: str) -> dict[str, Any]:
    return {"verdict": verdict, "reason": reason.partition("\n")[0][:400]}


def names_of(module: Any) -> list[str]:
    """The tests with cases."""
    return sorted(
        name
        for name, test in vars(module.CommonTemplate).items()
        if name.startswith("test_") and "common(" in inspect.getsource(test)
    )


def apart(options: argparse.Namespace, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same in another process, which may die of a case: then another goes on after it."""
    waiting = list(names)
    while waiting:
        command = [sys.executable, "-m", "tests.power.inductor_cases", str(options.file)]
        command += [*waiting, "--here", *(["--check"] if options.check else [])]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            for text in child.stdout:
                if not text.startswith('{"'):
                    continue
                line = json.loads(text)
                if "done" in line:
                    waiting.remove(line["done"])
                else:
                    yield line
        if waiting:  # the first of them was running
            yield {"test": waiting.pop(0)} | _line("wrong", f"died with {child.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a case is wrong."""
    parser = argparse.ArgumentParser(prog="tests.power.inductor_cases", description=__doc__)
    parser.add_argument("file", type=Path, help="test_torchinductor.py")
    parser.add_argument("names", nargs="*", help="regular expressions of tests; all without any")
    parser.add_argument("--check", action="store_true", help="with the backend's own comparison")
    parser.add_argument("--here", action="store_true", help="in this process; names are exact")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th test")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    module = load(options.file)
    if options.here:
        for line in cases(module, options.names, options.check):
            print(json.dumps(line), flush=True)
        return 0
    names = [
        name
        for name in names_of(module)
        if not options.names or any(re.fullmatch(each, name) for each in options.names)
    ]
    first, step = map(int, options.part.split("/"))
    lines = []
    for line in apart(options, names[first - 1 :: step]):
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.out is not None:
            options.out.write_text("\n".join(map(json.dumps, lines)))
    counts = Counter(line["verdict"] for line in lines)
    served, left = counts["compiled"] + counts["views"], counts["left"] + counts["wrong"]
    print(dict(counts), f"compiled: {served} of {served + left}")
    reasons = Counter(line["reason"] for line in lines if line["verdict"] == "left")
    for reason, count in reasons.most_common(40):
        print(count, reason)
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
