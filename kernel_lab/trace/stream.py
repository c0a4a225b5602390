"""Count the bytes that a CPU kernel moves at a size too large for a trace.

The addresses of a kernel's loads and stores depend only on its loop variables, never on data. So
its loops become C++ that computes only the addresses and passes them to a model of the caches. A
compiled program handles about a hundred million accesses per second; `trace` needs a minute for ten
million. The two agree access by access: same order, same addresses, same assignment to workers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kernel_lab.trace.errors import NotInterpreted, TraceTooLarge
from kernel_lab.trace.expressions import EXTERNALS, INFIX_CALLS, INTRINSICS, call_name, dtype_of
from kernel_lab.trace.interpreter import lowered, placed
from kernel_lab.trace.loops import PARALLEL, THREAD_BINDING, VECTORIZED, constant_extent
from kernel_lab.trace.machine import numpy_dtype
from kernel_lab.trace.statements import SILENT_ATTRIBUTES
from needle_runtime.process.scratch import scratch_folder
from needle_tvm.errors import ToolchainError
from needle_tvm.lower import linking

T = TypeVar("T")

LIMIT = 5_000_000_000  # accesses: about a quarter of a minute
LINE = 64  # bytes of a cache line
OPERATORS = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "&&",
    "Or": "||",
    "LShift": "<<",
    "RShift": ">>",
}
FUNCTIONS = {"FloorDiv": "floor_div", "FloorMod": "floor_mod", "Min": "least", "Max": "most"}


_HEAD = """
#include <cstdio>
typedef long long Int;
static inline Int floor_div(Int a, Int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static inline Int floor_mod(Int a, Int b) { return a - b * floor_div(a, b); }
static inline Int least(Int a, Int b) { return a < b ? a : b; }
static inline Int most(Int a, Int b) { return a > b ? a : b; }

// Looks a line up in its set, which has the most recently used line first; 0 is an empty entry.
static inline bool misses(Int* held, Int sets, Int ways, Int line) {
  Int* set = held + line % sets * ways;
  const Int wanted = line + 1;
  Int moved = wanted;
  for (Int way = 0; way < ways; ++way) {
    const Int here = set[way];
    set[way] = moved;
    if (here == wanted) return false;
    moved = here;
  }
  return true;
}
static Int worker, accessed;
"""


@dataclass(frozen=True)
class Cache:
    """A cache of one core: its size in bytes, and the number of lines in a set."""

    size: int
    ways: int


@dataclass(frozen=True)
class Moved:
    """The bytes that all loads and stores access, and the bytes of each cache's missed lines.
    Buffers of scope "local" stand for registers and do not count."""

    accessed: int
    missed: tuple[int, ...]


def moved(
    func_or_module: Any, caches: Sequence[Cache] = (), *, cores: int = 2, limit: int = LIMIT
) -> Moved:
    """Return the bytes that a scheduled CPU kernel moves, without running its arithmetic.

    Each core has its own `caches`, the smallest first. They are set-associative with LRU
    replacement, stores allocate, and a cache sees only the misses of the smaller cache before it.
    Lines that are written back, and prefetching, are not modelled. Parallel loops are assigned to
    `cores` workers as `trace` assigns them.

    Raises NotInterpreted for a GPU kernel, for loops whose length is not a constant, and if an
    address depends on data; TraceTooLarge if the kernel could make more than `limit` accesses;
    NotLowered if TVM rejects the schedule; ToolchainError if there is no C++ compiler.
    """
    name, function = lowered(func_or_module)
    stream = Stream(cores)
    text = stream.program(function, caches)
    if stream.estimate > limit:
        raise TraceTooLarge(
            f"stream: {name} makes up to {stream.estimate:,} accesses, more than the limit of"
            f" {limit:,}"
        )
    accessed, *misses = _run(text)
    return Moved(accessed, tuple(count * LINE for count in misses))


def _run(text: str) -> list[int]:
    """Compile and run a program; return the numbers that it prints."""
    compiler = linking.cxx_compiler()
    if compiler is None:
        raise ToolchainError("stream: counting cache misses needs a C++ compiler; there is none")
    with scratch_folder("kernel-lab-") as folder:
        source, program = folder / "stream.cpp", folder / "stream"
        source.write_text(text)
        linking.run([compiler, "-O2", "-o", str(program), str(source)], "compile the accesses")
        done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


class Term(NamedTuple):
    """An expression in C++ (None if it depends on data), and the number of its vector lanes (0 if
    it is equal in all lanes)."""

    code: str | None
    lanes: int = 0


class Stream:
    """The C++ program of one PrimFunc's accesses. `estimate` bounds their number."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.buffers: list[tuple[str, str, str, tuple[int, ...]]] = []  # name, scope, dtype, shape
        self.estimate = 0
        self._numbers: dict[Any, int] = {}  # the number in `buffers` of a buffer variable
        self._variables: dict[Any, Term] = {}
        self._masks: list[Term] = []  # conditions that differ between lanes
        self._lines: list[str] = []
        self._lanes = 0  # the extent of the vectorised loop around the code
        self._parallel = False
        self._times = 1  # how often the code that is being emitted runs, conditions aside
        self._names = 0

    def program(self, function: Any, caches: Sequence[Cache]) -> str:
        """Return the program, which prints the bytes accessed and the misses of each cache."""
        for parameter in function.params:
            self._new_buffer(parameter)
        self._statement(function.body)
        declared = [
            f"const Int base{n} = {info.base};" for n, info in enumerate(placed(self.buffers))
        ]
        looked_up, printed = [], ["accessed"]
        for number, cache in enumerate(caches):
            sets = cache.size // LINE // cache.ways
            declared.append(f"static Int held{number}[{self.cores}][{sets * cache.ways}];")
            declared.append(f"static Int missed{number};")
            looked_up.append(
                f"if (!misses(held{number}[worker], {sets}, {cache.ways}, line)) return;\n"
                f"++missed{number};"
            )
            printed.append(f"missed{number}")
        return "\n".join(
            [
                _HEAD,
                *declared,
                "static inline void touch(Int address, Int size) {",
                f"accessed += size;\nconst Int line = address / {LINE};",
                *looked_up,
                "}",
                "int main() {",
                *self._lines,
                *(f'printf("%lld\\n", {name});' for name in printed),
                "}",
            ]
        )

    def _emit(self, text: str) -> None:
        self._lines.append(text)

    def _fresh(self, stem: str) -> str:
        self._names += 1
        return "".join(c if c.isalnum() else "_" for c in stem) + f"_{self._names}"

    def _new_buffer(self, buffer: Any) -> None:
        scope = str(buffer.scope()) or "global"
        if scope not in ("global", "local"):
            raise NotInterpreted(f"stream: {buffer.name} has scope {scope!r}, which is a GPU's")
        if not all(hasattr(extent, "value") for extent in buffer.shape):
            raise NotInterpreted(f"stream: buffer {buffer.name} has a symbolic size")
        shape = tuple(int(extent.value) for extent in buffer.shape)
        self._numbers[buffer] = len(self.buffers)
        self.buffers.append((buffer.name, scope, str(buffer.dtype), shape))

    # Statements.

    def _statement(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for child in node.seq:
                self._statement(child)
        elif kind == "For":
            self._loop(node)
        elif kind == "IfThenElse":
            self._branch(node)
        elif kind == "BufferStore":
            value, index = self._term(node.value), self._index(node.indices)
            self._access(node.buffer, Term(index.code, max(index.lanes, value.lanes)), stores=True)
        elif kind == "Bind":
            self._bind(node.var, self._term(node.value))
        elif kind == "AllocBuffer":
            if node.buffer not in self._numbers:
                self._new_buffer(node.buffer)
        elif kind == "DeclBuffer":
            data = node.data
            source = data.args[0] if getattr(data, "args", None) else data
            self._numbers[node.buffer] = self._numbers[source]
        elif kind == "AttrStmt" and str(node.attr_key).startswith(SILENT_ATTRIBUTES):
            self._statement(node.body)
        elif kind == "Evaluate":
            self._term(node.value)
        else:
            raise NotInterpreted(f"stream: statement {kind} is not interpreted")

    def _loop(self, node: Any) -> None:
        kind, extent = int(node.kind), constant_extent(node)
        first = self._term(node.min).code
        self._times *= extent
        if kind == VECTORIZED:
            if self._lanes:
                raise NotInterpreted(f"stream: vectorised loop {node.loop_var.name} inside another")
            self._lanes = extent
            self._variables[node.loop_var] = Term(f"({first} + lane)", extent)
            self._statement(node.body)
            self._lanes = 0
        elif kind == THREAD_BINDING or (kind == PARALLEL and self._parallel):
            raise NotInterpreted(f"stream: loop {node.loop_var.name} is not interpreted")
        else:
            name = self._fresh(node.loop_var.name)
            self._variables[node.loop_var] = Term(name)
            self._emit(f"for (Int {name} = {first}; {name} < {first} + {extent}; ++{name}) {{")
            if kind == PARALLEL:
                self._parallel = True
                self._emit(f"worker = ({name} - {first}) / {-(-extent // self.cores)};")
            self._statement(node.body)
            self._emit("}")
            if kind == PARALLEL:
                self._parallel = False
                self._emit("worker = 0;")
        self._times //= extent

    def _branch(self, node: Any) -> None:
        condition = self._term(node.condition)
        self._where(condition, lambda: self._statement(node.then_case))
        if node.else_case is not None:
            self._where(_inverse(condition), lambda: self._statement(node.else_case))

    def _where(self, condition: Term, emit: Callable[[], T]) -> T:
        """Run `emit`, whose accesses are made only where the condition holds."""
        before = len(self._lines)
        if condition.lanes:
            self._masks.append(condition)
            found = emit()
            self._masks.pop()
        else:
            self._emit(f"if ({condition.code}) {{")
            found = emit()
            self._emit("}")
        if condition.code is None and any("touch" in line for line in self._lines[before:]):
            raise NotInterpreted("stream: whether a load or store is made depends on data")
        if not any("touch" in line for line in self._lines[before:]):
            del self._lines[before:]
        return found

    def _bind(self, variable: Any, value: Term) -> None:
        if value.code is None or value.lanes:
            self._variables[variable] = value
            return
        name = self._fresh(variable.name)
        self._emit(f"const Int {name} = {value.code};")
        self._variables[variable] = Term(name)

    # Expressions.

    def _term(self, node: Any) -> Term:
        """Emit the loads of an expression; return the expression in C++."""
        kind = type(node).__name__
        if kind == "Var":
            return self._variables[node]
        if kind == "IntImm":
            return Term(str(int(node.value)))
        if kind in ("FloatImm", "StringImm"):
            return Term(None)
        if kind in ("And", "Or"):
            left = self._term(node.a)
            decided = left if kind == "And" else _inverse(left)
            right = self._where(decided, lambda: self._term(node.b))
            return _joined(f"({{}} {OPERATORS[kind]} {{}})", left, right)
        if kind in OPERATORS:
            return _joined(f"({{}} {OPERATORS[kind]} {{}})", *self._terms(node.a, node.b))
        if kind in FUNCTIONS:
            return _joined(f"{FUNCTIONS[kind]}({{}}, {{}})", *self._terms(node.a, node.b))
        if kind == "Not":
            return _inverse(self._term(node.a))
        if kind == "Cast":
            value = self._term(node.value)
            return value if _is_integer(node) else Term(None, value.lanes)
        if kind == "Select":
            parts = self._terms(node.condition, node.true_value, node.false_value)
            return _joined("({} ? {} : {})", *parts)
        if kind == "Let":
            self._bind(node.var, self._term(node.value))
            return self._term(node.body)
        if kind == "Broadcast":
            return self._term(node.value)
        if kind == "Ramp":
            base, stride = self._terms(node.base, node.stride)
            code = _joined("({} + lane * {})", base, stride).code
            return Term(code, int(node.lanes))
        if kind == "TensorLoad":
            index = self._index(node.indices)
            self._access(node.source, index, stores=False)
            return Term(None, index.lanes)
        if kind == "Call":
            return self._call(node)
        raise NotInterpreted(f"stream: expression {kind} is not interpreted: {node}")

    def _terms(self, *nodes: Any) -> list[Term]:
        return [self._term(node) for node in nodes]

    def _call(self, node: Any) -> Term:
        name = call_name(node)
        if name == "likely":
            return self._term(node.args[0])
        if name == "if_then_else":
            condition = self._term(node.args[0])
            then = self._where(condition, lambda: self._term(node.args[1]))
            other = self._where(_inverse(condition), lambda: self._term(node.args[2]))
            return _joined("({} ? {} : {})", condition, then, other)
        known = {*INTRINSICS, *INFIX_CALLS, "reinterpret", "ret"}
        if name not in known and not (
            name == "call_pure_extern" and node.args[0].value in EXTERNALS
        ):
            raise NotInterpreted(f"stream: intrinsic {name} is not interpreted")
        parts = self._terms(*node.args)
        if name in INFIX_CALLS and _is_integer(node):
            return _joined(f"({{}} {INFIX_CALLS[name]} {{}})", *parts)
        return Term(None, max((part.lanes for part in parts), default=0))

    def _index(self, indices: Any) -> Term:
        if len(indices) != 1:
            raise NotInterpreted(f"stream: access with {len(indices)} indices was not flattened")
        return self._term(indices[0])

    def _access(self, buffer: Any, index: Term, stores: bool) -> None:
        """Emit a load or a store: one access for each lane, or a single access if a load's address
        is the same in all lanes."""
        number = self._numbers[buffer]
        _, scope, dtype, _ = self.buffers[number]
        if scope == "local":
            return
        if index.code is None:
            raise NotInterpreted(f"stream: an address in {buffer.name} depends on data")
        self.estimate += self._times
        size = numpy_dtype(dtype).itemsize
        touch = f"touch(base{number} + {index.code} * {size}, {size});"
        lanes = max([index.lanes, *(mask.lanes for mask in self._masks)])
        if lanes:
            if not index.lanes:  # one access if any lane is active
                touch = f"{{ {touch} break; }}"
            holds = " && ".join(str(mask.code) for mask in self._masks) or "true"
            touch = f"for (Int lane = 0; lane < {lanes}; ++lane) if ({holds}) {touch}"
        self._emit(touch)


def _joined(pattern: str, *terms: Term) -> Term:
    """Insert the terms into a pattern. The result depends on data if one of the terms does."""
    codes = [term.code for term in terms]
    lanes = max(term.lanes for term in terms)
    return Term(None if None in codes else pattern.format(*codes), lanes)


def _inverse(condition: Term) -> Term:
    return _joined("(!{})", condition)


def _is_integer(node: Any) -> bool:
    return numpy_dtype(dtype_of(node)).kind in "iub"
