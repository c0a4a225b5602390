"""`jit`: a function of tensors that is compiled for each signature at its first call."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from needle import Tensor
from needle.autograd import Value
from needle.common import tree
from needle.common.state import state
from needle.errors import DimError, TraceError
from needle.trace import trace_flat
from needle.trace.captures import Surroundings, found_in
from needle.trace.graph import is_tensor
from needle.trace.weights import differences
from needle_runtime.errors import TargetError, UsageError
from needle_runtime.process.paths import StrPath
from needle_runtime.text import counted
from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.entries import Compiled, Eager, Entry, Stepped
from needle_tvm.compiler.request import Choices, check_dims, request
from needle_tvm.compiler.signatures import Args, Key, Kwargs, Signature, rebuilt
from needle_tvm.compiler.step_export import Traced, executable
from needle_tvm.errors import EagerWarning, RecompilationWarning, TranslationError
from needle_tvm.frontend.model import source_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Log = Callable[[str], None] | bool | None


def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    static: Collection[str] = (),
    maxsize: int = 16,
    dims: Mapping[Any, Any] | None = None,
    fallback: str | None = None,
    log: Log = None,
    **choices: Unpack[Choices],
) -> Any:
    """Compile a `function` of tensors at its first call, and again for each new signature.

    It is a decorator, `@jit` or `@jit(static=("mode",))`, for functions, methods and Modules. The
    result is called like the function and returns the same Tensors, in lists, tuples and dicts,
    without an autograd graph. A signature consists of

    - the shape, dtype, device and `requires_grad` of each tensor among the arguments, and the
      structure of lists, tuples and dicts around them. NumPy arrays and anything with DLPack become
      Tensors without a gradient;
    - numbers, strings and None among the arguments: *each new value causes a compilation*. Pass
      values that change from call to call as arrays (`np.array(0.1, "float32")`); arrays are
      inputs;
    - the arguments named in `static`, which must be hashable. Those that equal only themselves,
      such as functions, are watched like the outer values below; the others must not change;
    - whether gradients are recorded (`needle.no_grad`);
    - the outer values that the function reads: variables, items of lists and dicts, elements of
      NumPy arrays, and attributes of Modules (train or eval mode), objects, classes and modules, at
      any depth. Each call compares them. Values that the function itself writes are left out;
      arrays of other libraries are refused.

    Code of installed packages is not searched for such values. Tensors outside the function (in a
    closure, in a Module, in the method's object) may change: a call uses their current values. The
    function's Python code runs only while it is traced, so side effects such as printing happen
    only then. Reading values (`numpy()`, `float()`, `if`) raises a TraceError that names the line.

    A whole training step can be compiled as it is usually written: `loss.backward()`, clipping,
    `optimizer.step()`, a schedule's `step()` and an EMA's `update()`, statistics of batch norm,
    dropout and other random numbers. Eager code draws the same random numbers after the same
    `needle.manual_seed`. The function's writes (to Parameters, buffers, the state of optimizers and
    averages) go to the arrays that eager code sees. Schedules and learning rates stay in Python:
    each call steps and reads them. Writes to arguments, tensors assigned to new attributes, and
    writes in the body of a loop raise a TraceError.

    Gradients live inside a call. The function must return the gradients that `backward` leaves in
    Parameters or pass them to an optimizer; afterwards `.grad` is None. A step that adds to
    gradients of earlier calls raises a TraceError: call `zero_grad()` in it. No gradient passes
    through a call from outside: `backward` on its result raises an error.

    - `dims`, as for `compile`, leaves sizes open; these are not part of the signature.
    - `maxsize` is the number of compiled signatures that are kept; the least recently used one is
      unloaded first. Each signature keeps the objects and Modules of its first call alive.
    - `fallback="eager"` makes a function run eagerly, with one warning, if it cannot be traced.
    - `log` is a function; each compilation calls it with a line of text that gives the reason. True
      writes the line to stderr.
    - `choices` are further keywords, as in `compile`: `target`, `stage`, `dtype` and others.

    Inside another trace (another jit function, a model that is being compiled) a call is inlined.
    Calls are safe from any thread; each function compiles one signature at a time.

    Raises UsageError for keywords that do not fit. A call raises InputError for an argument of an
    unsupported kind, TraceError or TranslationError for a function that cannot be compiled,
    MismatchError, and any error of the function itself.

    >>> @needle_tvm.jit
    ... def scaled(x, scale):
    ...     return ndl.softmax(x * scale)
    >>> scaled(ndl.zeros(2, 4), np.array(3.0, "float32")).numpy().tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]

    >>> model = nn.Linear(2, 1)
    >>> optimizer = ndl.optim.AdamW(model.parameters(), lr=0.1)
    >>> @needle_tvm.jit
    ... def train_step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = nn.functional.mse_loss(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> x, y = ndl.ones(4, 2), ndl.zeros(4, 1)
    >>> first, second = float(train_step(x, y)), float(train_step(x, y))
    >>> second < first
    True
    """
    if function is None:
        options: dict[str, Any] = {"dims": dims, "fallback": fallback, "log": log}
        return functools.partial(jit, static=static, maxsize=maxsize, **options, **choices)
    return Jit(function, static, maxsize, dims, fallback, log, choices)


class CacheInfo(NamedTuple):
    """The number of `compilations` so far. `currsize` signatures are kept, at most `maxsize`."""

    compilations: int
    maxsize: int
    currsize: int


class Jit:
    """The compiled function that `jit` returns."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., Any],
        static: Collection[str],
        maxsize: int,
        dims: Mapping[Any, Any] | None,
        fallback: str | None,
        log: Log,
        choices: Choices,
    ) -> None:
        _check_function(function)
        if isinstance(static, str) or not all(isinstance(name, str) for name in static):
            raise UsageError(f'jit: static={static!r}: must be names, as in static=("mode",)')
        if type(maxsize) is not int or maxsize < 1:
            raise UsageError(f"jit: maxsize={maxsize!r}: must be a whole number of at least 1")
        if fallback not in (None, "eager"):
            raise UsageError(f"jit: fallback={fallback!r}: must be None or 'eager'")
        if not (log is None or isinstance(log, bool) or callable(log)):
            raise UsageError(f"jit: log={log!r}: must be a function, True or False")
        asked = request(**choices)
        if dims:
            check_dims(asked)
        self._signature = Signature(function, static, dims or {})
        # A Module's attributes must not be copied to this object.
        self._binds = isinstance(function, types.FunctionType)
        functools.update_wrapper(self, function, updated=("__dict__",) if self._binds else ())
        self.__wrapped__ = function
        self._dims, self._maxsize, self._choices = dims, maxsize, choices
        self._falls_back = fallback == "eager"
        self._log = _to_stderr if log is True else log or None
        self._compilations = 0
        self._warned: set[type] = set()
        # Entries by key, the most recently used first. Each tuple is immutable, so readers need no
        # lock.
        self._entries: dict[Key, tuple[Entry, ...]] = {}
        self._lock = threading.RLock()
        _ALL.add(self)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None or not self._binds else types.MethodType(self, instance)

    def __reduce__(self) -> str:  # copied and pickled by name, like a function
        return self.__qualname__

    def __repr__(self) -> str:
        kept = counted(len(self._all()), "signature")
        return f"<needle_tvm.jit of {self._signature.name}: {kept} compiled>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, compiled for these arguments; see `jit`."""
        if state.trace is not None:
            return self.__wrapped__(*args, **kwargs)
        args, given = self._signature.spelled(args, kwargs)
        leaves: list[Any] = []
        key = (state.grad, state.autocast, *self._signature.key(args, given, leaves))
        entries = self._entries.get(key)
        if entries and entries[0].is_current():
            return entries[0](leaves)
        with self._lock:  # a thread that waited here finds the code that another thread compiled
            entry = next((e for e in self._entries.get(key, ()) if e.is_current()), None)
            if entry is None:
                entry = self._compiled(key, args, given, leaves)
            self._keep(entry)
        return entry(leaves)

    def cache_info(self) -> CacheInfo:
        """Return the number of compilations and of kept signatures."""
        return CacheInfo(self._compilations, self._maxsize, len(self._all()))

    def export(
        self,
        path: StrPath,
        *,
        calls: int | None = None,
        sign: StrPath | None = None,
        target: str | dict[str, Any] | None = None,
    ) -> Path:
        """Write the function, as compiled for the last call, to the folder `path`: an artifact that
        `needle_tvm.load` and `needle_runtime.load` open.

        All values that the function writes become the artifact's state, with their current values:
        weights, an optimizer's moments and counts, statistics, averages, the random numbers'
        counter. So the folder of a training step trains without needle: data in, loss out.
        `Program.state` returns the state, and `load_state` continues from it. Other weights are
        stored as they are. `calls` is the number of calls for which the learning rates of a
        schedule are stored; later calls use the last rate. `sign` is as for `Executable.export`.
        `target`, as for `compile`, is another machine's processor to compile the artifact for.

        Raises UsageError if nothing has been compiled, or if the function steps a schedule and
        `calls` is not given. Raises the errors of a call and of `Executable.export`.

        >>> weight = nn.Parameter(np.ones(2, "float32"))
        >>> optimizer = ndl.optim.SGD([weight], lr=0.25)
        >>> @needle_tvm.jit
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = ((weight * x) ** 2).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> x = np.ones(2, "float32")
        >>> first = step(x)
        >>> folder = step.export("step")
        >>> program = needle_runtime.load("step")
        >>> float(program(x)), program.state()["weight"].tolist()
        (0.5, [0.25, 0.25])
        """
        entries = [each for each in self._all() if isinstance(each, Compiled)]
        if not entries:
            raise UsageError(f"{self._signature.name}: export: call it once first, to compile it")
        if calls is not None and (type(calls) is not int or calls < 1):
            raise UsageError(f"{self._signature.name}: export: calls={calls!r}: must be at least 1")
        with self._lock:
            last = max(entries, key=lambda each: each.used)
            choices = self._choices if target is None else {**self._choices, "target": target}
            found = executable(last.traced, request(**choices), calls)
        return found.export(path, sign=sign)

    def clear_cache(self) -> None:
        """Unload all compiled code; later calls compile again."""
        with self._lock:
            self._entries.clear()

    def _compiled(self, key: Key, args: Args, kwargs: Kwargs, leaves: list[Any]) -> Entry:
        """Trace and compile the function for this call."""
        function, signature = self.__wrapped__, self._signature
        facts: dict[str, Any] = {"recording of gradients": state.grad, "autocast": state.autocast}
        facts |= signature.facts(args, kwargs)
        trees, names = signature.trees(args, kwargs)
        count, keywords = len(args), list(kwargs)  # the arguments themselves must not be kept
        arguments = {**signature.objects(args, kwargs), **signature.modules(args, kwargs)}
        around = types.MethodType(function, args[0]) if signature.owner else function

        def call(tensors: Sequence[Tensor]) -> Any:
            call_args, call_kwargs = rebuilt(trees, iter(tensors), count, keywords)
            return function(*call_args, **call_kwargs)

        def checked(tensors: Sequence[Tensor]) -> Any:
            result = call(tensors)
            _check_result(result)
            return result

        def find() -> Surroundings:
            return found_in(around, arguments, values=True)

        entry: Entry
        try:
            inputs = list(zip(names, leaves, strict=True))
            graph = trace_flat(
                checked, inputs, find, True, self._dims, signature.positions, writes=True
            )
            if not graph.outputs:
                raise TraceError(
                    "the result holds no tensor and nothing is written, so there is nothing to "
                    "compile"
                )
            if self._log is not None:
                why = self._reason({**facts, **graph.weights.baked})
                self._log(f"{signature.name}: compilation {self._compilations + 1}: {why}")
            entry = self._built(Traced(graph, trees, count, keywords, graph.output_tree, None))
        except DimError as error:
            raise UsageError(f"{signature.name}: {error}") from None
        except (TraceError, TranslationError) as error:
            text = str(error)
            error.args = (f"{signature.name}: {text}",)
            if not self._falls_back:
                raise
            self._warn(EagerWarning, f"runs eagerly: {text}")
            entry = Eager(call, find)
        entry.key, entry.facts = key, {**facts, **entry.baked}
        return entry

    def _built(self, traced: Traced) -> Compiled:
        graph = traced.graph
        kept = graph.effects.kept
        outputs = graph.outputs[: len(graph.outputs) - len(kept)]
        output_tree, single = graph.output_tree, len(outputs) == 1
        graph.output_tree = tree.LEAF if single else {"tuple": [tree.LEAF] * len(outputs)}
        asked = request(**self._choices)
        source = source_of(graph, asked.variant)
        found = compile_source(source, asked)
        try:
            program = found.program
        except TargetError as error:
            raise TargetError(
                f"{self._signature.name}: {error}; for another machine, compile the function for "
                "this one, call it once, and export it with export(path, target=...)"
            ) from None
        self._compilations += 1
        with_gradient = [node.requires_grad for node in outputs]
        parts = self._signature.name, program, graph.weights, output_tree, with_gradient
        effects = graph.effects
        made = Stepped(effects, self._turn, *parts) if effects else Compiled(*parts)
        made.traced = traced
        for leaf in graph.inputs:
            del leaf.value  # otherwise the arguments of the first call stay alive
        return made

    def _turn(self) -> threading.RLock:
        return self._lock

    def _keep(self, entry: Entry) -> None:
        """Put an entry before the others with its key. If too many are kept, drop the least
        recently used."""
        entry.use()
        self._entries[entry.key] = (entry, *self._without(entry))
        entries = self._all()
        if len(entries) > self._maxsize:
            oldest = min(entries, key=lambda each: each.used)
            self._entries[oldest.key] = self._without(oldest)
            if not self._entries[oldest.key]:
                del self._entries[oldest.key]
            self._warn(
                RecompilationWarning,
                f"compiled {self._compilations} times, but only {self._maxsize} signatures are "
                f"kept (maxsize); last compiled because {self._reason(entry.facts, entry)}",
            )

    def _without(self, entry: Entry) -> tuple[Entry, ...]:
        """Return the other entries with this entry's key."""
        return tuple(each for each in self._entries.get(entry.key, ()) if each is not entry)

    def _all(self) -> list[Entry]:
        return [entry for entries in self._entries.copy().values() for entry in entries]

    def _reason(self, facts: Mapping[str, Any], but: Entry | None = None) -> str:
        """Return why a signature is compiled: its differences from the nearest known signature."""
        others = [(differences(facts, each.facts), each) for each in self._all() if each is not but]
        if not others:
            return "this is its first call"
        changes, nearest = min(others, key=lambda pair: (len(pair[0]), -pair[1].used))
        return "; ".join(changes[:_MOST_CHANGES]) or nearest.outdated

    def _warn(self, kind: type[Warning], text: str) -> None:
        """Warn once for each kind of warning, at the line of the call."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self._signature.name}: {text}", kind, stacklevel=_outside())


_ALL: weakref.WeakSet[Jit] = weakref.WeakSet()
_MOST_CHANGES = 3  # changes that a reason names


def _unlock() -> None:
    """Replace the locks in a forked child: a thread that does not exist in the child may hold
    one."""
    for each in _ALL:
        each._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def _check_function(function: Any) -> None:
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"jit: {function!r}: must be a function, a method or a Module")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"jit: {function!r}: a generator or coroutine cannot be compiled")


def _check_result(result: Any) -> None:
    """Raise TraceError unless compiled code can return this result."""
    pending = [result]
    while pending:
        each = pending.pop()
        if type(each) in (list, tuple):
            pending += each
        elif type(each) is dict:
            pending += each.values()
        elif not (each is None or isinstance(each, Value) or is_tensor(each)):
            raise TraceError(
                f"the result holds a {type(each).__name__}; only tensors, None, and lists, tuples "
                "and dicts of them can be returned"
            )


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"needle_tvm.jit: {line}\n")


def _outside() -> int:
    """Return the stacklevel of the first caller outside this file."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level
