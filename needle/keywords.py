"""Keywords of public functions and constructors: an axis means the same under all its names, and a
wrong keyword is an error that names the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

# Names of one argument. A function has one name of such a group and takes the others as well.
_SAME = (
    frozenset(("axis", "axes", "dim", "dims")),
    frozenset(("keepdims", "keepdim")),
    frozenset(("start_axis", "start_dim")),
    frozenset(("end_axis", "end_dim")),
    frozenset(("input", "x", "a")),
    frozenset(("target", "y")),
    frozenset(("num_features", "dim")),
    frozenset(("items", "modules", "parameters", "values")),
)
_SEVERAL = ("axes", "dims")

# What users of other libraries may mean, for the error.
_MEANT = {
    "dimension": ("axis", "axes", "dim"),
    "dropout": ("p",),
    "epsilon": ("eps",),
    "filters": ("out_channels",),
    "learning_rate": ("lr",),
    "other": ("b",),
    "prob": ("p",),
    "rate": ("p", "lr"),
    "size": ("shape",),
    "units": ("out_features",),
    "use_bias": ("bias",),
    "wd": ("weight_decay",),
}

_TENSORS = ("Tensor", "Operand")
_CHECKED: set[Callable[..., Any]] = set()
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


_ABSENT: Any = object()  # the default of what has none


def named(
    function: Callable[..., Any], owner: str | None = None, is_method: bool = False
) -> Callable[..., Any]:
    """`function` with its keywords checked; itself if it was checked before, or if it takes any
    keyword or only tensors, which nobody gives by name. What follows a star, as `*shape`, may be
    given by name too, as a tuple. `owner` is the function's name in errors; that of a constructor
    is the class. The first parameter of a method, whatever its name, is given by nobody."""
    if function in _CHECKED:
        return function
    parameters = list(inspect.signature(function).parameters.values())
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if open_ended or all(p.annotation in _TENSORS for p in parameters if p.name != "self"):
        return function
    if owner is None or any(p.kind not in _KEYWORDS for p in parameters):
        call = _retrying(function, parameters, owner)
    else:
        call = _passing(function, parameters, owner, is_method)
    _CHECKED.add(functools.wraps(function)(call))
    return call


def _retrying(
    function: Callable[..., Any], parameters: list[inspect.Parameter], owner: str | None
) -> Callable[..., Any]:
    """A function that calls `function` again if Python has refused an unknown keyword, which it
    does before the function begins."""
    known = [p.name for p in parameters if p.kind in _KEYWORDS and p.name != "self"]
    star = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), None)
    several = [] if star is None else [parameters[star].name]

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            if kwargs.keys() <= set(known):
                raise
            name = owner or type(args[0]).__name__
            kwargs = _renamed(name, several + known, kwargs)
            if several and several[0] in kwargs:
                if len(args) != star:
                    raise TypeError(f"{name}: {several[0]!r} is given twice") from None
                args = (*args, kwargs.pop(several[0]))
        return function(*args, **kwargs)

    return call


def _passing(
    function: Callable[..., Any], parameters: list[inspect.Parameter], owner: str, is_method: bool
) -> Callable[..., Any]:
    """A function with the same parameters, which passes them on, and takes other keywords. Beside
    these, an argument that is its default counts as not given.

    Its text is compiled, as dataclasses do it: a call through *args and **kwargs would add 0.1 to
    0.2 microseconds to a small op's two.
    """
    names = [p.name for p in parameters]
    defaults = {p.name: _ABSENT if p.default is p.empty else p.default for p in parameters}

    def other(given: dict[str, Any], keywords: dict[str, Any]) -> Any:
        explicit = {name: value for name, value in given.items() if value is not defaults[name]}
        if is_method:
            return function(
                explicit.pop(names[0]), **_renamed(owner, names[1:], explicit | keywords)
            )
        return function(**_renamed(owner, names, explicit | keywords))

    heads = [f"{name}=_defaults[{name!r}]" for name in names]
    first = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if first is not None:
        heads.insert(first, "*")
    passed = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters]
    absent = [f"{name} is _absent" for name in names if defaults[name] is _ABSENT]
    given = ", ".join(f"{name!r}: {name}" for name in names)
    text = (
        f"def call({', '.join(heads)}, **_keywords):\n"
        f"    if {' or '.join(['_keywords', *absent])}:\n"
        f"        return _other({{{given}}}, _keywords)\n"
        f"    return _function({', '.join(passed)})\n"
    )
    scope = {"_defaults": defaults, "_absent": _ABSENT, "_other": other, "_function": function}
    exec(compile(text, f"{__file__}:{owner}", "exec"), scope)
    made: Callable[..., Any] = scope["call"]
    return made


def name_functions(functions: Iterable[tuple[str, Callable[..., Any]]]) -> dict[str, Any]:
    """The functions with their keywords checked, by name. Their modules get them too, because a
    pickle refers to a function by its module."""
    out = {}
    for name, function in functions:
        out[name] = checked = named(function, name)
        module = sys.modules[function.__module__]
        if vars(module).get(name) is function:
            setattr(module, name, checked)
    return out


def name_constructors(classes: Iterable[Any]) -> None:
    """Check the keywords of the classes' own constructors."""
    for cls in classes:
        if inspect.isclass(cls) and inspect.isfunction(vars(cls).get("__init__")):
            setattr(cls, "__init__", named(cls.__init__))  # noqa: B010  (for type checkers)


def _renamed(owner: str, names: list[str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords under the function's own names. TypeError for one that is none of them."""
    out: dict[str, Any] = {}
    for key, value in kwargs.items():
        name = key if key in names else _same(key, names)
        if name is None:
            text = f"{owner}: there is no argument {key!r}; {_advice(key, names)}"
            raise TypeError(text) from None
        if name in out or (name != key and name in kwargs):
            others = " and ".join(repr(k) for k in kwargs if k == name or _same(k, names) == name)
            raise TypeError(f"{owner}: {others} are one argument; give it once") from None
        one = key in _SEVERAL and name not in _SEVERAL
        if one and isinstance(value, (tuple, list)) and len(value) == 1:
            value = value[0]
        out[name] = value
    return out


def _same(key: str, names: list[str]) -> str | None:
    """The one argument that `key` is another name of."""
    for group in _SAME:
        if key in group:
            found = [name for name in names if name in group]
            return found[0] if len(found) == 1 else None
    return None


def _advice(key: str, names: list[str]) -> str:
    meant = [name for name in _MEANT.get(key, ()) if name in names]
    close = meant or difflib.get_close_matches(key, names, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it takes {', '.join(name for name in names if name != 'self')}"
