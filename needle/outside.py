"""Code that `reach` does not follow: which code that is, its version, and what it reads outside.

A function that reads a file or the time may give another result tomorrow although no code changed.
A table lists such functions, both by the names that code uses and by those that they report
themselves: `os.getcwd` is `posix.getcwd` too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import os
import re
import sys
import sysconfig
import types
from importlib import metadata
from pathlib import Path
from typing import Any

BY_VERSION = ("numpy", "scipy", "torch", "tvm", "tvm_ffi", "ml_dtypes", "needle_tvm")
_LIBRARY = tuple(
    f"{folder}/"
    for folder in (Path(os.__file__).parent, *map(sysconfig.get_path, ("stdlib", "platstdlib")))
)

_ANY = ".*"


def _but(*names: str) -> str:
    return rf"(?!({'|'.join(names)})$).*"


# Effect: modules, and a pattern of their names that have it.
_READERS = {
    "finds code only as it runs": {
        "builtins": "eval|exec|compile|__import__",
        "importlib runpy pkgutil": _ANY,
        "sys": "modules|path|meta_path|path_hooks",
    },
    "looks at frames, sources or all objects": {
        "inspect": r"currentframe|stack|trace|getmodule|getfile|get\w*source\w*|findsource",
        "sys": r"_getframe\w*|_current_frames",
        "gc linecache": _ANY,
    },
    "reads the environment": {
        "os posix nt": "environb?|getenvb?|_Environ",
        "sys": "argv|orig_argv|executable|prefix",
        "platform locale getpass pwd grp site sysconfig": _ANY,
    },
    "reads files": {
        "builtins io _io": "open|open_code|FileIO",
        "pathlib": r"(?!Pure).*",
        "posixpath ntpath genericpath os.path": _but(
            *("join", "basename", "dirname", "split", "splitext", "splitdrive", "normpath"),
            *("normcase", "isabs", "commonpath", "commonprefix", r"\w*sep", r"\w*dir"),
        ),
        "tempfile glob shutil fileinput mmap zipfile tarfile shelve dbm sqlite3 configparser": _ANY,
        "gzip bz2 lzma codecs tokenize": r"open|\w*File",
        "xml.etree.ElementTree": "parse|iterparse",
    },
    "asks the system": {
        "os posix nt": _but("path", "fspath", "PathLike", "name", r"\w*sep", r"\w*dir"),
        "sys": "stdin|__stdin__",
        "builtins": "input",
        "subprocess socket ssl urllib.request http ctypes _ctypes multiprocessing resource": _ANY,
    },
    "tells the time": {
        "time": _ANY,
        "datetime": r"(datetime|date)\.(now|today|utcnow)",
    },
    "draws random numbers": {"random _random secrets uuid": _ANY},
}
_MADE_BY_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE, a bit of a type's flags
_TABLE = [
    (module, re.compile(names), what)
    for what, readers in _READERS.items()
    for modules, names in readers.items()
    for module in modules.split()
]
# There are too many packages to list: these patterns match the usual names in any of them.
_OF_PACKAGES = {
    "draws random numbers": re.compile(r"rand\w*|rng|default_rng"),
    "reads files": re.compile(
        r"(im)?(load|open|read|fetch)(_\w+|txt)?|fromfile|genfromtxt|fromregex|memmap"
        r"|safe_open|File"
    ),
}
# Attributes that have an effect on any object: the code does not show which object it is.
_OF_OBJECTS = {
    "finds code only as it runs": re.compile(
        r"__(globals|builtins|subclasses|loader)__|f_(globals|locals|back)"
    ),
    "reads files": re.compile("read_text|read_bytes"),
    "tells the time": re.compile("now|utcnow|today"),
}


def reads(module: str, name: str = "") -> str | None:
    """A description of what `name` of a module does beyond its arguments, or None.

    Without a name, the same for anything in the module.
    """
    if not is_library(module):
        parts = f"{module}.{name}".split(".")[1:]
        for what, pattern in _OF_PACKAGES.items():
            if any(map(pattern.fullmatch, parts)):
                return what
        return None
    for home, names, what in _TABLE:
        if (module == home or module.startswith(home + ".")) and names.fullmatch(name):
            return what
    return None


def attribute_reads(attribute: str) -> str | None:
    """Like `reads`, for an attribute of this name on any object."""
    found = (what for what, names in _OF_OBJECTS.items() if names.fullmatch(attribute))
    return next(found, None)


def home(thing: Any) -> tuple[str, str]:
    """The module and qualified name of an object, or of its class."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__, ""
    by_name = isinstance(thing, type) or is_known(type(thing).__module__)
    name = getattr(thing, "__qualname__", None) if by_name else None
    if name is None:
        return _text(type(thing).__module__), type(thing).__qualname__
    owner = getattr(thing, "__objclass__", None) or getattr(thing, "__self__", None)
    if getattr(thing, "__module__", None) is None and owner is not None:
        thing = owner if isinstance(owner, type) else type(owner)
    return _text(getattr(thing, "__module__", None)), str(name)


def _text(module: Any) -> str:
    return module if isinstance(module, str) else ""  # a class may set it to anything


def is_library(module: str) -> bool:
    """Whether a module is part of Python's library, and not a user's file of that name."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    return top in sys.stdlib_module_names and (file is None or file.startswith(_LIBRARY))


def is_known(module: Any) -> bool:
    """Whether a name and a version identify a module's code."""
    top = _text(module).partition(".")[0]
    if top in BY_VERSION or top.startswith(("_cython_", "nanobind")):  # native function types
        return True
    return is_library(top) or _recorded(top) != ""


def is_ours(module: Any) -> bool:
    """Whether a module belongs to needle."""
    return _text(module).partition(".")[0] == "needle"


def is_told(thing: Any) -> bool:
    """Whether its module's version identifies the code of a function, class or instance."""
    module, name = home(thing)
    if not (is_known(module) or is_ours(module)):
        return False
    if not isinstance(thing, type) or not thing.__flags__ & _MADE_BY_CLASS:
        return True
    # A class that a library's function made for user code names the library as its module.
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def is_import(value: Any) -> bool:
    """Whether a module imports a value, under its own name, from a package not followed."""
    module, name = home(value)
    if not is_told(value):
        return False
    if isinstance(value, types.FunctionType):  # wraps() copies the module of another function
        return value.__globals__.get("__name__") == module
    by_name = (types.ModuleType, types.BuiltinFunctionType, type)
    does = reads(module, name)
    return isinstance(value, by_name) or does is not None


def version(module: str) -> str:
    """A text that differs between versions of a module's package, or of Python for its library."""
    top = module.partition(".")[0]
    if is_library(top):
        return sys.version
    if top not in BY_VERSION and (recorded := _recorded(top)):
        return recorded
    version = str(getattr(sys.modules.get(top), "__version__", ""))
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    if file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        version += hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return version


def _recorded(top: str) -> str:
    """The file hashes that a package's installer recorded; "" if there are none."""
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return _record(top) if "/site-packages/" in file or "/dist-packages/" in file else ""


@functools.cache
def _record(top: str) -> str:
    texts = [
        metadata.distribution(name).read_text("RECORD") or ""
        for name in metadata.packages_distributions().get(top, [])
    ]
    return hashlib.sha256("".join(texts).encode()).hexdigest() if any(texts) else ""
