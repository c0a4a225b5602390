"""Check the keywords of public functions and constructors. Other libraries' names for an argument,
such as dim for axis, work too, and the error for an unknown keyword suggests the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

# Groups of names for one argument. A function with one name of a group accepts the others too.
_SAME = (
    frozenset(("axis", "axes", "dim", "dims")),
    frozenset(("keepdims", "keepdim")),
    frozenset(("start_axis", "start_dim")),
    frozenset(("end_axis", "end_dim")),
    frozenset(("input", "x", "a")),
    frozenset(("target", "y")),
    frozenset(("num_features", "dim")),
    frozenset(("k", "diagonal")),
    frozenset(("source", "src", "value")),
    frozenset(("root", "outputs")),
    frozenset(("ord", "p")),
    frozenset(("correction", "unbiased")),
    frozenset(("count", "steps")),
    frozenset(("stop", "end")),
    frozenset(("out_grad", "gradient", "grad_outputs")),
    frozenset(("shape", "size")),
    frozenset(("items", "modules", "parameters", "values")),
    frozenset(("lr_lambda", "fn")),
    frozenset(("start_factor", "start")),
    frozenset(("end_factor", "end")),
    frozenset(("total_iters", "total")),
)
_SEVERAL = ("axes", "dims")

# The arguments that users of other libraries may mean by a keyword, for the error's suggestion.
_MEANT = {
    "dimension": ("axis", "axes", "dim"),
    "dropout": ("p",),
    "epsilon": ("eps",),
    "filters": ("out_channels",),
    "learning_rate": ("lr",),
    "other": ("b",),
    "prob": ("p",),
    "rate": ("p", "lr"),
    "units": ("out_features",),
    "use_bias": ("bias",),
    "wd": ("weight_decay",),
}

_TENSORS = ("Tensor", "Operand")
_CHECKED: set[Callable[..., Any]] = set()
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def named(
    function: Callable[..., Any],
    owner: str | None = None,
    is_method: bool = False,
    is_composed: bool = False,
) -> Callable[..., Any]:
    """Wrap `function` so that its keywords are checked. Return it unchanged if it is already
    wrapped, accepts any keyword, or takes only tensors, which callers do not pass by name.
    The arguments of a starred parameter, such as `*shape`, may also be passed by name, as one
    tuple. `owner` is the function's name in errors; None means a constructor, whose errors name the
    class. With `is_method`, the first parameter is never passed by name. With `is_composed`, errors
    from the functions that `function` calls also begin with `owner`: a caller of `kl_div` does not
    know `multiply`."""
    if function in _CHECKED:
        return function
    parameters = list(inspect.signature(function).parameters.values())
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if open_ended or all(p.annotation in _TENSORS for p in parameters if p.name != "self"):
        return function
    own = frozenset(p.name for p in parameters if p.kind in _KEYWORDS)
    renamed = _Renaming(parameters, owner, is_method)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not kwargs.keys() <= own:
            args, kwargs = renamed(args, kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def composed(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs and not kwargs.keys() <= own:
                args, kwargs = renamed(args, kwargs)
            return function(*args, **kwargs)
        except (TypeError, ValueError, IndexError) as error:
            if error.args and not str(error.args[0]).startswith(str(owner)):
                error.args = (f"{owner}: {error.args[0]}", *error.args[1:])
            raise

    checked = composed if is_composed else call
    _CHECKED.add(checked)
    return checked


class _Renaming:
    """Renames the keywords of a call to the function's own parameter names."""

    def __init__(
        self, parameters: list[inspect.Parameter], owner: str | None, is_method: bool
    ) -> None:
        self._owner = owner
        self._hidden = 1 if is_method or owner is None else 0  # self
        named = [p.name for p in parameters if p.kind in _KEYWORDS]
        star = [i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL]
        self._star = star[0] if star else None
        self._names = [parameters[i].name for i in star] + named[self._hidden :]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [p.name for p in parameters if p.kind in positional]
        self._defaults = {p.name: p.default for p in parameters}

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        owner = self._owner or type(args[0]).__name__
        if self._star is None:
            if len(args) > len(self._positional):
                return args, {}  # Python's own error says how many arguments it takes
            given = dict(zip(self._positional[self._hidden :], args[self._hidden :], strict=False))
            if twice := given.keys() & kwargs.keys():
                raise TypeError(f"{owner}: {min(twice)!r} is given twice")
            # An argument that has its default value counts as not given, so another name for it may
            # be given.
            given |= kwargs
            empty, defaults = inspect.Parameter.empty, self._defaults
            given = {k: v for k, v in given.items() if v is not defaults.get(k, empty)}
            return args[: self._hidden], _renamed(owner, self._names, given)
        kwargs = _renamed(owner, self._names, kwargs)
        star = self._names[0]
        if star in kwargs:
            if len(args) != self._star:
                raise TypeError(f"{owner}: {star!r} is given twice")
            args = (*args, kwargs.pop(star))
        return args, kwargs


def name_functions(
    functions: Iterable[tuple[str, Callable[..., Any]]], are_composed: bool = False
) -> dict[str, Any]:
    """Return a dict from names to the functions, wrapped by `named`. The wrapped functions also
    replace the originals in their modules, because a pickle refers to a function by its module.
    `are_composed` is passed to `named` as `is_composed`."""
    out = {}
    for name, function in functions:
        out[name] = checked = named(function, name, is_composed=are_composed)
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
    """Return `kwargs` under the function's own parameter names. Raises TypeError for a keyword that
    names no argument, or if two keywords name the same one."""
    out: dict[str, Any] = {}
    for key, value in kwargs.items():
        name = key if key in names else _same(key, names)
        if name is None:
            text = f"{owner}: there is no argument {key!r}; {_advice(key, names)}"
            raise TypeError(text)
        if name in out or (name != key and name in kwargs):
            others = " and ".join(repr(k) for k in kwargs if k == name or _same(k, names) == name)
            raise TypeError(f"{owner}: {others} are one argument; give it once")
        one = key in _SEVERAL and name not in _SEVERAL
        if one and isinstance(value, (tuple, list)) and len(value) == 1:
            value = value[0]
        out[name] = value
    return out


def _same(key: str, names: list[str]) -> str | None:
    """Return the argument for which `key` is another name; None if there is not exactly one."""
    for group in _SAME:
        found = [name for name in names if name in group]
        if key in group and found:
            return found[0] if len(found) == 1 else None
    return None


def _advice(key: str, names: list[str]) -> str:
    meant = [name for name in _MEANT.get(key, ()) if name in names]
    close = meant or difflib.get_close_matches(key, names, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it takes {', '.join(name for name in names if name != 'self')}"
