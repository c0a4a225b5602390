"""A digest is never silently stale: code reached by a computed name changes it or is reported.

Code that reads files, the environment or the time is reported too. Ordinary code is followed.
"""

import builtins
import importlib
import importlib.machinery
import itertools
import os
import re
import sys
import textwrap
import types

import numpy as np
import pytest

import needle as ndl
from needle import outside
from needle.op import REGISTRY, Elementwise, register
from needle.reach import digest
from needle.trace import trace

HELPER = """
FACTOR = 1000
def f(x): return x * FACTOR
"""


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Digests of the function `rule` in files that differ only in their numbers."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for module in (builtins, np):  # cases set this attribute; monkeypatch removes it again
        monkeypatch.setattr(module, "reach_extra", None, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    package = tmp_path / "pack"
    (package / "sub").mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "profile", raising=False)  # imported by cProfile
    before = set(sys.modules)

    def forget():
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("main_", "h", "pack", "lazy", "profile"):
                del sys.modules[name]

    def load(main, number, helper=HELPER):
        forget()
        texts = {
            "main_.py": main,
            "h.py": helper,
            "pack/__init__.py": "",
            "pack/sub/__init__.py": "",
            "pack/sub/deep.py": HELPER,
            "lazy.py": LAZY,
            "profile.py": HELPER,
            "table.txt": "1000",
        }
        for name, text in texts.items():
            text = textwrap.dedent(text).replace("1000", str(number))
            (tmp_path / name).write_text(text)
        np.save(tmp_path / "table.npy", np.array([number]))
        monkeypatch.setenv("REACH_TEST", str(number))
        importlib.invalidate_caches()
        return digest(importlib.import_module("main_").rule)

    yield load
    forget()


LAZY = """
import importlib
import importlib.machinery
def __getattr__(name):
    return 1000
"""

# Rules that reach the changed code other than by a plain name, and are still followed.
FOLLOWED = {
    "getattr": 'import h\ndef rule(x): return getattr(h, "f")(x)',
    "computed getattr": 'import h\ndef rule(x): return getattr(h, "".join(["f"]))(x)',
    "getattr by a helper": """
        import h
        def get(where, name): return getattr(where, name)
        def rule(x): return get(h, "f")(x)""",
    "vars": 'import h\ndef rule(x): return vars(h)["f"](x)',
    "a module's __dict__": 'import h\ndef rule(x): return h.__dict__["f"](x)',
    "a kept __dict__": 'import h\nN = vars(h)\ndef rule(x): return N["f"](x)',
    "attrgetter": """
        import h, operator
        def rule(x): return operator.attrgetter("f")(h)(x)""",
    "methodcaller": """
        import h, operator
        CALL = operator.methodcaller("f", 1)
        def rule(x): return CALL(h)""",
    "globals": """
        def g(x): return x * 1000
        def rule(x): return globals()["g"](x)""",
    "module's __getattr__": "import lazy\ndef rule(x): return lazy.anything * x",
    "metaclass property": """
        class Meta(type):
            @property
            def factor(cls): return 1000
        class Own(metaclass=Meta): pass
        def rule(x): return Own.factor * x""",
    "singledispatch": """
        import functools
        @functools.singledispatch
        def g(x): return x
        @g.register
        def _(x: int): return x * 1000
        def rule(x): return g(x)""",
    "singledispatchmethod": """
        import functools
        class Own:
            @functools.singledispatchmethod
            def g(self, x): return x
            @g.register
            def _(self, x: int): return x * 1000
        def rule(x): return Own().g(x)""",
    "a module in a list": "import h\nALL = [h]\ndef rule(x): return ALL[0].f(x)",
    "a module as a default": "import h\ndef rule(x, h=h): return h.f(x)",
    "a module as an attribute": """
        import h
        class Own:
            tools = h
            def f(self, x): return self.tools.f(x)
        def rule(x): return Own().f(x)""",
    "a module in a variable": "import h\ndef rule(x):\n    m = h\n    return m.f(x)",
    "a module in a closure": """
        import h
        def make(m):
            def rule(x): return m.f(x)
            return rule
        rule = make(h)""",
    "a submodule": "import pack.sub.deep\ndef rule(x): return pack.sub.deep.f(x)",
    "an imported submodule": """
        def rule(x):
            import pack.sub.deep
            return pack.sub.deep.f(x)""",
    "an imported submodule, renamed": """
        def rule(x):
            import pack.sub.deep as d
            return [d.f(y) for y in x]""",
    "a submodule from a package": """
        def rule(x):
            from pack.sub import deep
            return deep.f(x)""",
    "a name from a submodule": """
        def rule(x):
            from pack.sub.deep import f
            return f(x)""",
    "getattr of an imported module": """
        def rule(x):
            import h
            return getattr(h, "f")(x)""",
    "star": "from h import *\ndef rule(x): return f(x)",
    "a helper of a library module's name": "import profile\ndef rule(x): return profile.f(x)",
    "a wrapper that has a library function's name": """
        import functools, math
        @functools.wraps(math.floor)
        def g(x): return x * 1000
        def rule(x): return g(x)""",
    "contextmanager": """
        import contextlib
        @contextlib.contextmanager
        def g(): yield 1000
        def rule(x):
            with g() as factor: return x * factor""",
    "decorator of a class": """
        import functools
        class Decorated:
            def __init__(self, f):
                functools.update_wrapper(self, f)
                self.f = f
            def __call__(self, x): return self.f(x) * 1000
        @Decorated
        def g(x): return x
        def rule(x): return g(x)""",
    "decorator that wraps nothing": """
        def twice(f):
            return lambda x: f(f(x))
        @twice
        def g(x): return x * 1000
        def rule(x): return g(x)""",
    "needle's decorator": """
        from needle.op import in_float32
        @in_float32
        def g(self, x): return x * 1000
        def rule(x): return g(None, x)""",
    "partialmethod": """
        import functools
        def g(self, x): return x * 1000
        class Own:
            h = functools.partialmethod(g, 1)
        def rule(x): return Own().h()""",
    "cached_property": """
        import functools
        class Own:
            @functools.cached_property
            def n(self): return 1000
        def rule(x): return Own().n""",
    "own property": """
        class Prop(property): pass
        class Own:
            @Prop
            def n(self): return 1000
        def rule(x): return Own().n""",
    "descriptor": """
        class D:
            def __get__(self, at, cls): return 1000
        class Own:
            n = D()
        def rule(x): return Own().n""",
    "__init_subclass__": """
        class Base:
            def __init_subclass__(cls): cls.n = 1000
        class Own(Base): pass
        def rule(x): return Own.n""",
    "a class attribute set later": """
        class Own: pass
        Own.f = lambda self, x: x * 1000
        def rule(x): return Own().f(x)""",
    "a function's attribute": """
        def rule(x): return x * rule.factor
        rule.factor = 1000""",
    "default_factory": """
        import dataclasses
        def make(): return 1000
        @dataclasses.dataclass
        class Own:
            n: int = dataclasses.field(default_factory=make)
        def rule(x): return Own().n""",
    "metadata of a field": """
        import dataclasses
        @dataclasses.dataclass
        class Own:
            n: int = dataclasses.field(default=1, metadata={"factor": 1000})
        def rule(x): return dataclasses.fields(Own)[0].metadata["factor"]""",
    "method of a C object": "GET = {1: 1000}.get\ndef rule(x): return GET(1) * x",
    "slot method of a C object": "MUL = (1000).__mul__\ndef rule(x): return MUL(x)",
    "closure over a list": """
        def make():
            ns = [1]
            ns.append(1000)
            return lambda x: ns[-1] * x
        rule = make()""",
    "lambdas in a dict": 'T = {"a": lambda x: x * 1000}\ndef rule(x): return T["a"](x)',
    "callables in a dict": """
        class C:
            def __init__(self, n): self.n = n
            def __call__(self, x): return x * self.n
        T = {"a": C(1000)}
        def rule(x): return T["a"](x)""",
    "functions in an OrderedDict": """
        import collections
        def g(x): return x * 1000
        T = collections.OrderedDict(a=g)
        def rule(x): return T["a"](x)""",
    "functions in a defaultdict": """
        import collections
        def g(): return 1000
        T = collections.defaultdict(g)
        def rule(x): return T["a"]""",
    "functions in a namespace": """
        import types
        T = types.SimpleNamespace(f=lambda x: x * 1000)
        def rule(x): return T.f(x)""",
    "functions in a read-only dict": """
        import types
        T = types.MappingProxyType({"f": lambda x: x * 1000})
        def rule(x): return T["f"](x)""",
    "functions in an array": """
        import numpy as np
        def g(x): return x * 1000
        T = np.array([g, None], dtype=object)
        def rule(x): return T[0](x)""",
    "np.vectorize": """
        import numpy as np
        @np.vectorize
        def g(x): return x * 1000
        def rule(x): return g(x)""",
    "lru_cache": """
        import functools
        @functools.lru_cache
        def g(x): return x * 1000
        T = {"a": [g]}
        def rule(x): return T["a"][0](x)""",
    "a cached function in a namespace": """
        import functools, types
        @functools.cache
        def g(x): return x * 1000
        T = types.SimpleNamespace(g=g)
        def rule(x): return T.g(x)""",
    "own dict": """
        class D(dict): pass
        T = D(a=1000)
        def rule(x): return T["a"]""",
    "methods of an own dict": """
        class D(dict):
            def __missing__(self, name): return 1000
        T = D()
        def rule(x): return T["a"]""",
    "methods of an own int": """
        class N(int):
            def __mul__(self, other): return other * 1000
        T = N(3)
        def rule(x): return T * x""",
    "named tuple": """
        import typing
        class P(typing.NamedTuple):
            x: int
            def scaled(self): return self.x * 1000
        P1 = P(1)
        def rule(x): return P1.scaled()""",
    "own array": """
        import numpy as np
        class A(np.ndarray):
            def scaled(self): return self * 1000
        T = np.zeros(3).view(A)
        def rule(x): return T.scaled()""",
    "enum": """
        import enum
        class Kind(enum.Enum):
            A = 1000
        def rule(x): return Kind.A.value""",
    "methods of an enum": """
        import enum
        class Kind(enum.IntEnum):
            A = 1
            def factor(self): return 1000
        ONE = Kind.A
        def rule(x): return ONE.factor()""",
    "slots": """
        class S:
            __slots__ = "n"
        T = S()
        T.n = 1000
        def rule(x): return T.n""",
    "private slots": """
        class S:
            __slots__ = ("__n",)
            def __init__(self, n): self.__n = n
            def get(self): return self.__n
        T = S(1000)
        def rule(x): return T.get()""",
    "exception": "E = ValueError(1000)\ndef rule(x): return E.args[0]",
    "generic alias": "T = dict[int, 1000]\ndef rule(x): return T.__args__[1]",
    "class in a function": """
        def rule(x):
            import h
            class Own:
                n = h.FACTOR
            return Own.n""",
    "own deque": """
        import collections
        class D(collections.deque): pass
        T = D([1000])
        def rule(x): return T[0]""",
    "own number of numpy's": """
        import numpy as np
        class N(np.float32): pass
        T = N(1000)
        def rule(x): return T""",
    "a class that a library's function made": """
        import dataclasses
        C = dataclasses.make_dataclass("C", [], namespace={"n": 1000})
        def rule(x): return C.n""",
    "a class that a metaclass was called for": """
        import abc
        C = abc.ABCMeta("C", (), {"n": 1000})
        def rule(x): return C.n""",
    "added to Python's own names": """
        import builtins
        builtins.reach_extra = lambda: 1000
        def rule(x): return reach_extra()""",
    "added to a package": """
        import numpy as np
        np.reach_extra = lambda: 1000
        def rule(x): return np.reach_extra()""",
    "metadata of a dtype": """
        import numpy as np
        T = np.dtype("f4", metadata={"n": 1000})
        def rule(x): return T.metadata["n"]""",
    "parts of a generic class": """
        class A: n = 1000
        T = list[A]
        def rule(x): return T.__args__[0].n""",
    "parts of a type": """
        import typing
        class A: n = 1000
        T = typing.Optional[A]
        def rule(x): return T.__args__[0].n""",
    "samples of a table": """
        class Table: samples = (1000,)
        def rule(x): return Table.samples""",
    "annotations": """
        import typing
        class Own:
            x: "list[1000]"
        def rule(x): return typing.get_type_hints(Own)""",
    "module of another class": """
        import sys, types
        class M(types.ModuleType):
            @property
            def factor(self): return 1000
        m = M("m")
        def rule(x): return m.factor * x""",
    "an escaping submodule": """
        import pack.sub.deep
        def rule(x): return getattr(pack.sub, "deep").f(x)""",
}
# Rules that no digest can cover, with the reason that is reported.
NAMED = {
    "eval": ('def rule(x): return eval("x * 1000")', "rule: eval finds code"),
    "eval of a file's name": (
        'def rule(x): return eval(open("table.txt").read())',
        "open reads files",
    ),
    "exec": ('def rule(x): exec("import h", {})', "exec"),
    "compile": ('def rule(x): return compile("1", "", "eval")', "compile"),
    "eval in a dict": ('T = {"a": eval}\ndef rule(x): return T["a"]("1")', "eval"),
    "import_module": (
        'import importlib\ndef rule(x): return getattr(importlib.import_module("h"), "f")(x)',
        "importlib.import_module",
    ),
    "__import__": ('def rule(x): return __import__("h").f(x)', "__import__"),
    "sys.modules": ('import sys\ndef rule(x): return sys.modules["h"].f(x)', "sys.modules"),
    "__globals__": ('import h\ndef rule(x): return h.f.__globals__["FACTOR"]', "__globals__"),
    "subclasses": ("class A: pass\ndef rule(x): return A.__subclasses__()", "__subclasses__"),
    "environ": (
        'import os\ndef rule(x): return os.environ["REACH_TEST"]',
        "os.environ.*environment",
    ),
    "environ by name": (
        'from os import environ as e\ndef rule(x): return e["REACH_TEST"]',
        "environment",
    ),
    "environ's method": (
        'import os\nE = os.environ.get\ndef rule(x): return E("REACH_TEST")',
        "environment",
    ),
    "getenv": (
        'from os import getenv\ndef rule(x): return getenv("REACH_TEST")',
        "getenv.*environment",
    ),
    "environ, imported inside": (
        'def rule(x):\n    import os as system\n    return system.environ["REACH_TEST"]',
        "environment",
    ),
    "os as a whole": ('import os\ndef rule(x): return getattr(os, "environ")', "os asks"),
    "open": ('def rule(x): return open("table.txt").read()', "open reads files"),
    "open in a closure": (
        'def make(f):\n    return lambda x: f("table.txt")\nrule = make(open)',
        "files",
    ),
    "read_text": (
        'from pathlib import Path\ndef rule(x): return Path("table.txt").read_text()',
        r"pathlib\S*\.Path reads files",
    ),
    "read_text of a constant": (
        'import pathlib\nP = pathlib.Path("table.txt")\ndef rule(x): return P.read_text()',
        "files",
    ),
    "exists": ('import os\ndef rule(x): return os.path.exists("table.txt")', "files"),
    "np.load": (
        'import numpy as np\ndef rule(x): return np.load("table.npy")',
        "numpy.load reads files",
    ),
    "np.load by name": (
        'from numpy import loadtxt\ndef rule(x): return loadtxt("table.txt")',
        "files",
    ),
    "resources": (
        'from importlib import resources\ndef rule(x): return resources.files("pack")',
        "importlib",
    ),
    "pkgutil": ('import pkgutil\ndef rule(x): return pkgutil.get_data("pack", "x")', "pkgutil"),
    "time": ("import time\ndef rule(x): return time.time()", "time.time tells the time"),
    "time by name": (
        "from time import perf_counter as t\ndef rule(x): return t()",
        "tells the time",
    ),
    "now": ("import datetime\ndef rule(x): return datetime.datetime.now()", "now tells the time"),
    "today by name": (
        "from datetime import date\ndef rule(x): return date.today()",
        "tells the time",
    ),
    "now of a class in a variable": (
        "from datetime import datetime\ndef rule(x):\n    d = datetime\n    return d.now()",
        "now tells the time",
    ),
    "read_text of a result": (
        "def rule(x): return x.parent.read_text()",
        "rule: read_text reads files",
    ),
    "random": ("import random\ndef rule(x): return random.random()", "random"),
    "np.random": (
        "import numpy as np\ndef rule(x): return np.random.rand()",
        "numpy.random.*random",
    ),
    "default_rng": (
        "import numpy as np\nR = np.random.default_rng()\ndef rule(x): return R.normal()",
        "random",
    ),
    "context variable": (
        'import contextvars\nV = contextvars.ContextVar("v")\ndef rule(x): return V.get()',
        "ContextVar",
    ),
    "weak reference": (
        "import weakref\nclass A: n = 1000\na = A()\nR = weakref.ref(a)\ndef rule(x): return R().n",
        "R in rule",
    ),
    "generator": ("G = (n for n in [1000])\ndef rule(x): return next(G)", "a generator"),
    "subprocess": ('import subprocess\ndef rule(x): return subprocess.run(["ls"])', "subprocess"),
    "frames": (
        "import inspect\ndef rule(x): return inspect.currentframe()",
        "inspect.currentframe",
    ),
    "in a helper": (
        "import os\ndef g(): return os.getcwd()\ndef rule(x): return g()",
        "^g: os.getcwd",
    ),
    "in a module by a computed name": (
        'import h\ndef rule(x): return getattr(h, "f")(x)',
        "f: .*open",
    ),
}
READER = 'def f(x): return open("table.txt").read()'


@pytest.mark.parametrize("case", FOLLOWED)
def test_what_is_reached_by_other_ways_changes_the_digest(versions, case):
    first, unknown = versions(FOLLOWED[case], 1000)
    assert unknown == []
    assert versions(FOLLOWED[case], 1000)[0] == first
    assert versions(FOLLOWED[case], 2000)[0] != first


@pytest.mark.parametrize("case", NAMED)
def test_what_cannot_be_followed_is_named_with_the_function_and_the_reason(versions, case):
    text, message = NAMED[case]
    _, unknown = versions(text, 1000, *([READER] if "computed" in case else []))
    assert any(re.search(message, each) for each in unknown), unknown


# Ordinary rules in which something could be mistaken for a read of files, environment or time.
ORDINARY = {
    "getattr of an argument": 'def rule(k, x): return getattr(k.topi, "exp")(x)',
    "getattr of self": """
        class Own:
            kinds = ("a", "b")
            def a(self, x): return x
            def rule(self, x): return getattr(self, self.kinds[0])(x)
        rule = Own.rule""",
    "getattr of numpy": "import numpy as np\ndef rule(x): return getattr(np, 'exp')(x)",
    "names of a path": "import os\ndef rule(x): return os.path.join('a', x) + os.sep",
    "an attribute that is called open": "def rule(x): return x.open(), x.load(), x.time, x.environ",
    "a module's own function of such a name": """
        import h
        def rule(x): return h.now(x)""",
    "own functions of such names": """
        import math
        def load(x): return x
        def rule(x, time=1, random=math.pi): return load(x) * time * random""",
    "dates": "import datetime\nD = datetime.date(2020, 1, 1)\ndef rule(x): return D.year",
    "a logger": "import logging\nL = logging.getLogger('a')\ndef rule(x): L.info('%s', x)",
    "what its module imports": """
        import os, sys, time, random, pathlib
        from time import time as now
        HERE = pathlib.Path(__file__).parent
        def main(): print(open(sys.argv[1]).read(), os.environ, now(), random.random())
        def rule(x): return x""",
    "what a module imports that is read by a computed name": """
        import h
        def rule(x): return getattr(h, 'f')(x)""",
    "a package that is not there": """
        def rule(x):
            try:
                import no_such_package_at_all
            except ImportError:
                return x""",
    "enum, dataclass, typing": """
        import dataclasses, enum, typing
        T = typing.TypeVar("T")
        class Kind(enum.Flag):
            A = enum.auto()
            B = enum.auto()
        @dataclasses.dataclass(frozen=True)
        class Own(typing.Generic[T]):
            kind: Kind = Kind.A
            sizes: "list[int] | None" = None
        def rule(x): return Own(Kind.A | Kind.B)""",
    "itertools, operator, re": """
        import functools, itertools, math, operator, re
        import numpy as np
        W = re.compile("a+")
        ADD = operator.itemgetter(1)
        def rule(x):
            y = functools.reduce(operator.mul, itertools.accumulate(x))
            return y, W.match("a"), ADD, np.s_[1:]""",
    "abstract class": """
        import abc
        class Base(abc.ABC):
            @abc.abstractmethod
            def f(self, x): ...
        class Own(Base):
            def f(self, x): return super().f(x)
        def rule(x): return Own().f(x)""",
    "random values as constants": """
        import numpy as np
        T = np.random.default_rng(0).random(3)
        def rule(x): return T""",
    "warnings": "import warnings\ndef rule(x): warnings.warn('a', stacklevel=2)",
}


@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_code_is_followed_and_stays_the_same(versions, case):
    helper = "import os, time, pathlib\nfrom os.path import exists\n" + HELPER
    helper += "HERE = pathlib.Path('.')\nfrom time import time as t\ndef now(x): return x\n"
    found = versions(ORDINARY[case], 1000, helper)
    assert found[1] == []
    assert versions(ORDINARY[case], 1000, helper) == found


def test_needles_own_ops_are_followed():
    assert {name: digest(op)[1] for name, op in REGISTRY.items() if digest(op)[1]} == {}


def test_an_op_with_an_enum_is_traced_and_one_that_reads_a_file_is_named():
    import enum

    class Kind(enum.Enum):
        DOUBLE = 2

    class OwnScaled(Elementwise):
        """y = number * x."""

        def compute(self, x):
            return x * Kind.DOUBLE.value

        def emit_te(self, k, x):
            return k.topi.multiply(x, Kind.DOUBLE.value)

    cls = register(OwnScaled)
    x = ndl.Tensor(np.ones(2, "float32"), device=ndl.cpu_numpy())
    try:
        assert trace(lambda x: cls()(x), x).unfollowed() == []
        cls.emit_te = lambda self, k, x: k.topi.multiply(x, len(os.environ))
        (named,) = trace(lambda x: cls()(x), x).unfollowed()
        assert "op own_scaled" in named and "os.environ reads the environment" in named
    finally:
        del REGISTRY["own_scaled"]


def test_a_use_that_leaves_traces_on_a_class_changes_nothing():
    class Plain:
        def f(self, x):
            return x

    before = digest(Plain)
    pickle_like = Plain().__reduce_ex__(2)  # Python keeps the slots' names on the class
    assert pickle_like and digest(Plain) == before


def test_what_an_abstract_class_takes_for_its_own_is_part_of_it():
    import abc

    class Base(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    before = digest(Base)[0]
    Base.register(int)
    assert digest(Base)[0] != before


def test_iterators_and_counters_are_what_is_left_of_them():
    numbers = iter([1, 2, 3])
    before, unknown = digest(numbers)
    next(numbers)
    assert unknown == [] and digest(numbers)[0] != before
    assert len(list(itertools.islice(numbers, 2))) == 2


@pytest.mark.parametrize(
    "one, other",
    [
        ("def rule(xs): return xs", "def rule(*xs): return xs"),
        ("def rule(x, y): return x", "def rule(x, *, y): return x"),
        ("def rule(x, y): return x", "def rule(x, /, y): return x"),
    ],
)
def test_signatures_are_part_of_a_function(versions, one, other):
    assert versions(one, 0)[0] != versions(other, 0)[0]


def test_sets_have_no_order():
    class Kind:
        pass

    functions = [lambda x: x, len, Kind, "a", ("b", 1)]
    assert digest(set(functions)) == digest(set(reversed(functions)))


def test_attributes_that_raise_are_not_asked_for():
    class Raises:
        __slots__ = ()

        def __getattr__(self, name):
            raise ValueError(name)

    assert digest([Raises(), {"a": Raises()}])[1] == []


def test_what_is_installed_is_told_by_its_files_hashes_and_what_is_compiled_by_its_own(
    tmp_path, monkeypatch
):
    assert outside.is_known("pytest") and len(outside.version("pytest")) == 64
    library = tmp_path / ("own" + importlib.machinery.EXTENSION_SUFFIXES[0])
    library.write_bytes(b"one build")
    monkeypatch.setitem(sys.modules, "reach_own", types.ModuleType("reach_own"))
    sys.modules["reach_own"].__file__ = str(library)
    before = outside.version("reach_own")
    library.write_bytes(b"another")
    assert not outside.is_known("reach_own") and outside.version("reach_own") != before
